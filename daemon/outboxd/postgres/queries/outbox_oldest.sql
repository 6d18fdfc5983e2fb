-- Age in seconds of the pending row with the lowest id; no row when nothing is pending.
select extract(epoch from clock_timestamp())::double precision - {{timestamp_ms}} / 1000.0::double precision as age
from (
    select {{timestamp}} as ts from {{table}} where ({{pending}}) order by {{id}} limit 1
) measured
