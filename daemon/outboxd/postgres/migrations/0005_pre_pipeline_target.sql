-- What the operator wants of each pipeline, for all replicas.

create table if not exists outboxd.pipeline_target (
    pipeline text primary key,
    state text not null,
    actor text not null,
    at timestamptz not null,
    reason text
);
