-- Job $1 and its items by state. No row: there is no such job.
select
    j.id, j.mode, j.total, j.created_at, j.actor, j.cancelled_at is not null as is_cancelled,
    count(*) filter (where i.state = 'WAITING') as waiting,
    count(*) filter (where i.state = 'CLAIMED') as claimed,
    count(*) filter (where i.state = 'RESOLVED') as resolved,
    count(*) filter (where i.state = 'FAILED') as failed,
    count(*) filter (where i.state = 'SKIPPED') as skipped,
    array_agg(i.letter_id order by i.topic, i.partition, i."offset", i.letter_id) as letters
from outboxd.replay_job j join outboxd.replay_item i on i.job_id = j.id
where j.id = $1::uuid
group by j.id
