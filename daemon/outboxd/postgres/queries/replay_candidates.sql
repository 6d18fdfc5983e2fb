-- The letters $1 as a new replay job meets them, with the open job that has each already.
select
    l.id, l.created_at, l.pipeline, coalesce(l.consumer_group, '') as consumer_group, l.topic, l.partition, l."offset",
    l.stage, l.status, i.job_id as open_job
from outboxd.letter_key k
join outboxd.letter l on l.id = k.id and l.created_at = k.created_at
left join outboxd.replay_item i on i.letter_id = l.id and i.state in ('WAITING', 'CLAIMED')
where k.id = any($1::uuid[])
