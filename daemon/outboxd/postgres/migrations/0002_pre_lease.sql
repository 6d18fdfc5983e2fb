-- Who may act for a shard or a job, and which replicas are alive. Small rows that are updated often: room for HOT updates.

-- `owner` is NULL after a clean release. `epoch` grows by one each time the lease is taken.
create table if not exists outboxd.lease (
    name text primary key,
    owner text,
    epoch bigint not null default 0,
    until timestamptz not null,
    notes jsonb not null default '{}'
) with (fillfactor = 50);

create table if not exists outboxd.member (
    group_name text not null,
    member text not null,
    until timestamptz not null,
    primary key (group_name, member)
) with (fillfactor = 50);
