-- A job $1 of actor $2, mode $3, over the letters $4.
with job as (
    insert into outboxd.replay_job (id, actor, mode, total)
    values ($1::uuid, $2::text, $3::text, cardinality($4::uuid[]))
    returning id
)
insert into outboxd.replay_item (
    job_id, letter_id, letter_created_at, pipeline, consumer_group, topic, partition, "offset"
)
select job.id, l.id, l.created_at, l.pipeline, coalesce(l.consumer_group, ''), l.topic, l.partition, l."offset"
from job, outboxd.letter_key k join outboxd.letter l on l.id = k.id and l.created_at = k.created_at
where k.id = any($4::uuid[])
