-- The home of letters. The life cycle is kept by the trigger `letter_guard`: whoever moves a letter, a wrong move is
-- refused and a right one stands in `letter_event`.

-- Every letter that was ever written, so that a repeat writes nothing. Outlives the letters themselves.
create table if not exists outboxd.letter_key (
    id uuid primary key,
    created_at timestamptz not null
);

create table if not exists outboxd.letter (
    id uuid not null,
    created_at timestamptz not null,
    pipeline text not null,
    consumer_group text,
    handler text not null,
    topic text not null,
    partition integer not null,
    "offset" bigint not null,
    record_timestamp bigint not null,
    timestamp_type text not null,
    message_key bytea,
    message_value bytea,
    headers jsonb not null,
    stage text not null,
    error_class text not null,
    error_root_class text not null,
    error_message text not null,
    error_traceback text not null,
    rule text not null,
    fingerprint text not null,
    retry_count integer not null,
    first_failed_at timestamptz not null,
    last_failed_at timestamptz not null,
    traceparent text,
    status text not null default 'NEW' check (
        status in ('NEW', 'BLOCKED', 'PROCESSING', 'REPLAYED', 'RESOLVED', 'FAILED', 'DISCARDED', 'ARCHIVED')
    ),
    sink text not null,
    outbox_id text,
    replay_count integer not null default 0,
    updated_at timestamptz not null,
    replayed_at timestamptz,
    resolved_at timestamptz,
    primary key (id, created_at)
) partition by range (created_at);

create table if not exists outboxd.letter_default partition of outboxd.letter default;

create index if not exists letter_created_at on outboxd.letter (created_at desc, id desc);
create index if not exists letter_pipeline on outboxd.letter (pipeline, created_at desc, id desc);
create index if not exists letter_status on outboxd.letter (status, created_at desc, id desc);
create index if not exists letter_fingerprint on outboxd.letter (fingerprint, created_at desc, id desc);

create table if not exists outboxd.letter_event (
    event_id bigint generated always as identity primary key,
    letter_id uuid not null,
    at timestamptz not null default clock_timestamp(),
    from_status text,
    to_status text not null,
    actor text not null,
    reason text
);
create index if not exists letter_event_letter on outboxd.letter_event (letter_id, event_id desc);

-- The status from which a letter came into the one it has; for a letter that was discarded, archived and restored to
-- DISCARDED the one before it was discarded.
create or replace function outboxd.letter_status_before(letter_id uuid, status text)
returns text language sql stable as $function$
    select e.from_status from outboxd.letter_event e
    where e.letter_id = letter_status_before.letter_id and e.to_status = letter_status_before.status
        and not (e.from_status = 'ARCHIVED' and e.to_status = 'DISCARDED')
    order by e.event_id desc limit 1
$function$;

-- The life cycle. PROCESSING goes back to where the claim found the letter; DISCARDED and ARCHIVED are restored so too.
create or replace function outboxd.letter_move_allowed(letter_id uuid, from_status text, to_status text)
returns boolean language sql stable as $function$
    select case
        when from_status = 'BLOCKED' and to_status in ('NEW', 'PROCESSING', 'DISCARDED', 'ARCHIVED') then true
        when from_status in ('NEW', 'FAILED') and to_status in ('PROCESSING', 'DISCARDED', 'ARCHIVED') then true
        when from_status = 'FAILED' and to_status = 'RESOLVED' then true
        when from_status = 'PROCESSING' and to_status in ('REPLAYED', 'RESOLVED', 'FAILED') then true
        when from_status = 'REPLAYED' and to_status in ('RESOLVED', 'FAILED', 'DISCARDED', 'ARCHIVED') then true
        when from_status in ('RESOLVED', 'DISCARDED') and to_status = 'ARCHIVED' then true
        when from_status in ('PROCESSING', 'DISCARDED', 'ARCHIVED')
            then coalesce(to_status = outboxd.letter_status_before(letter_id, from_status), false)
                and (from_status <> 'PROCESSING' or to_status = 'NEW')
        else false
    end
$function$;

create or replace function outboxd.letter_guard() returns trigger language plpgsql as $function$
declare
    moved_at timestamptz := clock_timestamp();
begin
    if tg_op = 'INSERT' then
        if new.status not in ('NEW', 'BLOCKED') then
            raise exception using errcode = 'OXM01', message = format('letter %s cannot begin as %s', new.id, new.status);
        end if;
    else
        if new.status is not distinct from old.status then
            return new;
        end if;
        if not outboxd.letter_move_allowed(old.id, old.status, new.status) then
            raise exception using errcode = 'OXM01',
                message = format('letter %s is %s and cannot go to %s', old.id, old.status, new.status);
        end if;
        new.updated_at := moved_at;
        if new.status = 'REPLAYED' then
            new.replayed_at := moved_at;
        end if;
        new.resolved_at := case new.status when 'RESOLVED' then moved_at else old.resolved_at end;
    end if;
    insert into outboxd.letter_event (letter_id, at, from_status, to_status, actor, reason)
    values (
        new.id, moved_at, case tg_op when 'UPDATE' then old.status end, new.status,
        coalesce(nullif(current_setting('outboxd.actor', true), ''), session_user),
        nullif(current_setting('outboxd.reason', true), '')
    );
    return new;
end
$function$;

create or replace trigger letter_guard before insert or update of status on outboxd.letter
for each row execute function outboxd.letter_guard();

-- Says who moves letters in this transaction, and why.
create or replace function outboxd.act_as(actor text, reason text) returns void language plpgsql as $function$
begin
    perform set_config('outboxd.actor', coalesce(actor, ''), true);
    perform set_config('outboxd.reason', coalesce(reason, ''), true);
end
$function$;

-- Moves letters by hand, all or none: to DISCARDED or ARCHIVED, or from these back to the status before. The other moves
-- belong to jobs; a letter that a job has claimed is moved by that job alone.
create or replace function outboxd.move_letters(letter_ids uuid[], to_status text, actor text, reason text)
returns integer language plpgsql as $function$
declare
    item record;
    moved integer := 0;
begin
    perform outboxd.act_as(actor, reason);
    for item in
        select l.id, l.created_at, l.status
        from outboxd.letter_key k join outboxd.letter l on l.id = k.id and l.created_at = k.created_at
        where k.id = any(letter_ids) and l.status <> to_status
        order by l.id for update of l
    loop
        if item.status = 'PROCESSING' then
            raise exception using errcode = 'OXM01', message = format('letter %s is being replayed', item.id);
        elsif to_status not in ('DISCARDED', 'ARCHIVED') and item.status not in ('DISCARDED', 'ARCHIVED') then
            raise exception using errcode = 'OXM01',
                message = format('letter %s is %s and goes to %s by a replay only', item.id, item.status, to_status);
        end if;
        update outboxd.letter l set status = to_status where l.id = item.id and l.created_at = item.created_at;
        moved := moved + 1;
    end loop;
    perform outboxd.act_as(null, null);
    return moved;
end
$function$;

-- Makes the monthly partitions from this month on. One whose letters stand in the default partition already is left out.
create or replace function outboxd.make_letter_partitions(months_ahead integer) returns integer language plpgsql as $function$
declare
    first_day timestamp;
    name text;
    made integer := 0;
begin
    for i in 0..months_ahead loop
        first_day := date_trunc('month', now() at time zone 'UTC') + make_interval(months => i);
        name := 'letter_' || to_char(first_day, 'YYYY_MM');
        continue when to_regclass('outboxd.' || name) is not null;
        begin
            execute format(
                'create table outboxd.%I partition of outboxd.letter for values from (%L) to (%L)',
                name, first_day::text || '+00', (first_day + interval '1 month')::text || '+00'
            );
            made := made + 1;
        exception when check_violation then
            null;  -- the default partition holds letters of this month
        end;
    end loop;
    return made;
end
$function$;

-- Bytes as text where they are UTF-8 without NUL, else in Postgres's escaped form.
create or replace function outboxd.readable(value bytea) returns text language plpgsql immutable as $function$
begin
    return convert_from(value, 'UTF8');
exception when others then
    return encode(value, 'escape');
end
$function$;

create or replace view outboxd.letter_text as
select
    l.id, l.created_at, l.status, l.pipeline, l.consumer_group, l.handler, l.topic, l.partition, l."offset",
    case when l.record_timestamp between 0 and 253402300799999
        then to_timestamp(l.record_timestamp / 1000.0) end as record_time,
    outboxd.readable(l.message_key) as key_text,
    outboxd.readable(l.message_value) as value_text,
    (
        select string_agg(
            case jsonb_typeof(h.pair -> 0) when 'string' then h.pair ->> 0
                else outboxd.readable(decode(h.pair -> 0 ->> 'base64', 'base64')) end
            || '=' || coalesce(outboxd.readable(decode(h.pair ->> 1, 'base64')), 'NULL'),
            ', ' order by h.n
        )
        from jsonb_array_elements(l.headers) with ordinality as h(pair, n)
    ) as headers_text,
    l.stage, l.error_class, l.error_root_class, l.error_message, l.rule, l.fingerprint, l.retry_count,
    l.first_failed_at, l.last_failed_at, l.sink, l.outbox_id, l.replay_count, l.updated_at, l.replayed_at, l.resolved_at
from outboxd.letter l;
