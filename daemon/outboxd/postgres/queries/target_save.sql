-- Stores the target state of pipeline $1.
insert into outboxd.pipeline_target (pipeline, state, actor, at, reason)
values ($1::text, $2::text, $3::text, $4::timestamptz, $5::text)
on conflict (pipeline) do update
set state = excluded.state, actor = excluded.actor, at = excluded.at, reason = excluded.reason
