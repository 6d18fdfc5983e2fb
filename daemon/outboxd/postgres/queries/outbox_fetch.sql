-- Pending rows in row order, from the lowest on, in one snapshot (invariant 2).
-- $1 shards (NULL: all), $2 row ids in flight, $3 rows at most, $4 bytes after which no further row is given,
-- $5 topics to leave, $6 and $7 (topic, key) pairs to leave.
-- (Both are subplans, not joins: a hash join would give up the order of the index and read the whole table.)
-- The innermost part reads narrow rows only: large payloads lie outside the table and are not touched before the running
-- total of their sizes has decided which of them are given.
select
    measured.row_id, measured.shard, measured.topic, {{key_bytes}} as key, {{payload_bytes}} as payload,
    measured.headers::text as headers, {{timestamp_ms}} as timestamp_ms, measured.total{{stage_columns}}
from (
    select candidate.*, sum(candidate.size) over (order by candidate.row_id rows unbounded preceding) as total
    from (
        select
            pending.*,
            coalesce({{payload_size}}, 0) + coalesce(pg_column_size(pending.headers), 0)
            + coalesce(pg_column_size(pending.key), 0) + 64 as size
        from (
            select o.*, {{shard}} as shard from (
                select
                    {{id}} as row_id, {{topic}} as topic, {{key}} as key, {{payload}} as payload, {{headers}} as headers,
                    {{timestamp}} as ts
                from {{table}}
                where ({{pending}}) and {{id}} <> all($2::bigint[])
            ) o
        ) pending
        where ($1::integer[] is null or pending.shard = any($1::integer[]))
            and (cardinality($5::text[]) = 0 or coalesce(pending.topic, '') <> all($5::text[]))
            and (
                cardinality($6::text[]) = 0 or pending.key is null
                or (coalesce(pending.topic, ''), {{pending_key_bytes}}) not in (
                    select s.topic, s.key from unnest($6::text[], $7::bytea[]) as s(topic, key)
                )
            )
        order by pending.row_id
        limit $3::bigint
    ) candidate
) measured{{stage_join}}
where measured.total - measured.size < greatest($4::bigint, 1)
order by measured.row_id
