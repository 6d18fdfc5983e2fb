-- Stores the broker's answers for rows of relay $1 under lease $2, $3, $4 (name, owner, epoch): $5 row ids, $6 topics,
-- $7 partitions, $8 offsets, $9 next actions. No row: the lease is lost and nothing was stored. A row that is done
-- meanwhile is left out, also when it is kept: nobody would ever drop its stage.
with held as (
    select name from outboxd.lease where name = $2::text and owner = $3::text and epoch = $4::bigint for share
),
stored as (
    insert into outboxd.outbox_stage (relay_id, row_id, topic, partition, "offset", next_action, row_hash)
    select $1::uuid, s.row_id, s.topic, s.partition, s."offset", s.next_action, {{row_hash}}
    from unnest($5::bigint[], $6::text[], $7::integer[], $8::bigint[], $9::integer[])
        as s(row_id, topic, partition, "offset", next_action)
    join (
        select {{id}} as row_id, {{topic}} as topic, {{key}} as key, {{payload}} as payload
        from {{table}}
        where ({{pending}}) and {{id}} = any($5::bigint[])
    ) measured on measured.row_id = s.row_id
    where exists (select from held)
    on conflict (relay_id, row_id) do update
    set topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset",
        next_action = excluded.next_action, row_hash = excluded.row_hash, updated_at = clock_timestamp()
)
select name from held
