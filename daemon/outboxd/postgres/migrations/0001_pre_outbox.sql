-- The default outbox table, the function that writes to it, and what a relay keeps beside its table.

create table if not exists outboxd.outbox (
    id bigint generated always as identity primary key,
    topic text not null,
    key text,
    payload bytea,
    headers jsonb,
    created_at timestamptz not null default clock_timestamp()
);

-- One row per relay pipeline: the id that names its rows outside the table, and the number of shards that is in force.
create table if not exists outboxd.relay (
    pipeline text primary key,
    table_name text not null,
    predicate text,
    relay_id uuid not null unique,
    shards integer not null check (shards in (1, 2, 4, 8, 16, 32, 64))
);

-- Rows that the broker has acknowledged and whose actions are not all done. `row_hash` is of the row as it was sent: a
-- row that was edited, or another one under the same id after a restore, is not taken for it.
create table if not exists outboxd.outbox_stage (
    relay_id uuid not null,
    row_id bigint not null,
    topic text not null,
    partition integer not null,
    "offset" bigint not null,
    next_action integer not null default 0,
    row_hash text not null,
    updated_at timestamptz not null default clock_timestamp(),
    primary key (relay_id, row_id)
);

-- What is wrong with headers, NULL when nothing is: an object {"name": value} or, where order or repeated names matter,
-- an array of pairs [["name", value], ...]; a value is a string, null or, for bytes, {"base64": "..."}.
create or replace function outboxd.headers_fault(headers jsonb) returns text language sql immutable as $function$
    with pair(name, value, is_pair) as (
        select e.key, e.value, true
        from jsonb_each(case jsonb_typeof(headers) when 'object' then headers else '{}' end) e
        union all
        select
            a.pair ->> 0, a.pair -> 1,
            jsonb_typeof(a.pair) = 'array' and jsonb_array_length(case jsonb_typeof(a.pair) when 'array' then a.pair else '[]' end) = 2
            and jsonb_typeof(a.pair -> 0) = 'string'
        from jsonb_array_elements(case jsonb_typeof(headers) when 'array' then headers else '[]' end) as a(pair)
    )
    select case
        when jsonb_typeof(headers) not in ('object', 'array')
            then 'headers are a JSON ' || jsonb_typeof(headers) || ', not an object or an array of pairs'
        else (
            select case when is_pair then format('the value of header %s is a JSON %s', to_json(name), jsonb_typeof(value))
                else 'an element of the headers is not a pair [name, value]' end
            from pair
            where not is_pair or not (
                jsonb_typeof(value) in ('string', 'null')
                or (jsonb_typeof(value) = 'object' and value - 'base64' = '{}' and jsonb_typeof(value -> 'base64') = 'string')
            )
            limit 1
        )
    end
$function$;

-- Puts one row into the default outbox, in the caller's transaction; returns its id.
create or replace function outboxd.enqueue(topic text, key text, payload bytea, headers jsonb default null)
returns bigint language plpgsql as $function$
declare
    new_id bigint;
    fault text;
begin
    if enqueue.topic is null or enqueue.topic = '' then
        raise exception using errcode = '22023', message = 'outboxd.enqueue: the topic is missing';
    end if;
    if enqueue.payload is null and enqueue.key is null then
        raise exception using errcode = '22023',
            message = 'outboxd.enqueue: a NULL payload is a tombstone, which deletes a key, and the key is NULL',
            hint = 'Give the key, or a payload that is not NULL.';
    end if;
    if enqueue.headers is not null then
        fault := outboxd.headers_fault(enqueue.headers);
        if fault is not null then
            raise exception using errcode = '22023', message = 'outboxd.enqueue: ' || fault,
                hint = 'Header values are strings, null, or {"base64": "..."} for bytes.';
        end if;
    end if;
    insert into outboxd.outbox (topic, key, payload, headers)
    values (enqueue.topic, enqueue.key, enqueue.payload, enqueue.headers)
    returning id into new_id;
    return new_id;
end
$function$;

-- Text is sent as its UTF-8 bytes. An untyped literal or parameter comes here too.
create or replace function outboxd.enqueue(topic text, key text, payload text, headers jsonb default null)
returns bigint language sql as $function$
    select outboxd.enqueue(topic, key, convert_to(payload, 'UTF8'), headers)
$function$;

-- jsonb is sent as the database's own text of it: keys sorted, duplicates gone. Whoever signs bytes sends bytes or text.
create or replace function outboxd.enqueue(topic text, key text, payload jsonb, headers jsonb default null)
returns bigint language sql as $function$
    select outboxd.enqueue(topic, key, convert_to(payload::text, 'UTF8'), headers)
$function$;

-- json keeps its text as it was written.
create or replace function outboxd.enqueue(topic text, key text, payload json, headers jsonb default null)
returns bigint language sql as $function$
    select outboxd.enqueue(topic, key, convert_to(payload::text, 'UTF8'), headers)
$function$;
