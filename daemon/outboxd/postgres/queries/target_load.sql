-- Every stored target state.
select pipeline, state, actor, at, reason from outboxd.pipeline_target
