create table if not exists ticket (
    order_id bigint primary key,
    item text not null,
    status text not null
);

-- What goes wrong on purpose: the next so many calls for an order meet a serialisation failure, as a busy database
-- gives it; every call is written down.
create table if not exists trouble (
    order_id bigint primary key,
    failures_left integer not null
);

create table if not exists handler_call (
    order_id bigint not null,
    at timestamptz not null default clock_timestamp()
);

create or replace function fail_to_serialise() returns void language plpgsql as $$
begin
    raise exception 'could not serialize access due to concurrent update' using errcode = 'serialization_failure';
end
$$;
