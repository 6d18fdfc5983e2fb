-- What stands for pipeline $1, and whether rows of it are staged.
select r.relay_id, r.shards, exists (select from outboxd.outbox_stage s where s.relay_id = r.relay_id) as is_staged
from outboxd.relay r where r.pipeline = $1::text
