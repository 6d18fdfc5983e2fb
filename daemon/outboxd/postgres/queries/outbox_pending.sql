-- The rows among $1 that are still pending, whole, in row order.
select
    measured.row_id, measured.shard, measured.topic, {{key_bytes}} as key, {{payload_bytes}} as payload,
    measured.headers::text as headers, {{timestamp_ms}} as timestamp_ms{{stage_columns}}
from (
    select o.*, {{shard}} as shard from (
        select
            {{id}} as row_id, {{topic}} as topic, {{key}} as key, {{payload}} as payload, {{headers}} as headers,
            {{timestamp}} as ts
        from {{table}}
        where ({{pending}}) and {{id}} = any($1::bigint[])
    ) o
) measured{{stage_join}}
order by measured.row_id
