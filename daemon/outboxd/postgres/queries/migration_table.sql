-- The schema and the list of what was applied to it.
create schema if not exists outboxd;
create table if not exists outboxd.migration (
    number integer primary key,
    phase text not null,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);
