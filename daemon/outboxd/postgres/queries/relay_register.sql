-- Registers pipeline $1 on table $2 with condition $3 and $5 shards, under the new id $4 when it is not known or stands
-- on another table now: the ids of another table's rows name other rows. The number of shards stays what it is.
insert into outboxd.relay as r (pipeline, table_name, predicate, relay_id, shards)
values ($1::text, $2::text, $3::text, $4::uuid, $5::integer)
on conflict (pipeline) do update
set table_name = excluded.table_name, predicate = excluded.predicate,
    relay_id = case when r.table_name = excluded.table_name then r.relay_id else excluded.relay_id end
where r.table_name <> excluded.table_name or r.predicate is distinct from excluded.predicate
