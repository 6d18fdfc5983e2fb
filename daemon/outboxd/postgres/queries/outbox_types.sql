-- The types of the outbox table's columns or expressions, also when it has no row.
select
    pg_typeof(o.row_id)::text as id, pg_typeof(o.topic)::text as topic, pg_typeof(o.key)::text as key,
    pg_typeof(o.payload)::text as payload, pg_typeof(o.headers)::text as headers, pg_typeof(o.ts)::text as timestamp
from (select 1) as one
left join (
    select
        {{id}} as row_id, {{topic}} as topic, {{key}} as key, {{payload}} as payload, {{headers}} as headers,
        {{timestamp}} as ts
    from {{table}}
    where false
) o on true
