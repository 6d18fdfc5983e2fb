-- Replay jobs: a frozen set of letters, each run by one claimant at a time.

create table if not exists outboxd.replay_job (
    id uuid primary key,
    created_at timestamptz not null default clock_timestamp(),
    actor text not null,
    mode text not null,
    total integer not null,
    cancelled_at timestamptz
);

-- `state`: WAITING, CLAIMED, RESOLVED, FAILED, SKIPPED (the letter was closed before its turn). `attempt` is the letter's
-- replay_count of the claim; whoever finishes an item shows it, so that a claim that was given back decides nothing.
create table if not exists outboxd.replay_item (
    job_id uuid not null references outboxd.replay_job (id),
    letter_id uuid not null,
    letter_created_at timestamptz not null,
    pipeline text not null,
    consumer_group text not null,
    topic text not null,
    partition integer not null,
    "offset" bigint not null,
    state text not null default 'WAITING' check (state in ('WAITING', 'CLAIMED', 'RESOLVED', 'FAILED', 'SKIPPED')),
    owner text,
    attempt integer,
    error text,
    updated_at timestamptz not null default clock_timestamp(),
    primary key (job_id, letter_id)
);

-- A letter is in one open job at most.
create unique index if not exists replay_item_open on outboxd.replay_item (letter_id)
where state in ('WAITING', 'CLAIMED');
create index if not exists replay_item_waiting
on outboxd.replay_item (pipeline, consumer_group, topic, partition, "offset") where state = 'WAITING';
create index if not exists replay_item_claimed on outboxd.replay_item (pipeline, owner) where state = 'CLAIMED';

-- Ends one claim: the letter goes back to where the claim found it (NEW or FAILED), the item waits again.
-- False when this claim is not there any more.
create or replace function outboxd.give_back_replay_item(job_id uuid, letter_id uuid, attempt integer, reason text)
returns boolean language plpgsql as $function$
declare
    item outboxd.replay_item;
begin
    update outboxd.replay_item i set state = 'WAITING', owner = null, updated_at = clock_timestamp()
    where i.job_id = give_back_replay_item.job_id and i.letter_id = give_back_replay_item.letter_id
        and i.state = 'CLAIMED' and i.attempt = give_back_replay_item.attempt
    returning i.* into item;
    if not found then
        return false;
    end if;
    perform outboxd.act_as('replay ' || item.job_id, reason);
    update outboxd.letter l set status = outboxd.letter_status_before(l.id, 'PROCESSING')
    where l.id = item.letter_id and l.created_at = item.letter_created_at and l.status = 'PROCESSING';
    perform outboxd.act_as(null, null);
    return true;
end
$function$;

-- Claims up to `max_items` waiting items of these partitions for `claimant`, in the records' order. The claims of owners
-- whose heartbeat (a row of `member`, group `replay`) is over are given back first.
create or replace function outboxd.claim_replay_items(
    of_pipeline text, of_group text, topics text[], partitions integer[], claimant text, max_items integer
) returns table (job_id uuid, letter_id uuid, letter_created_at timestamptz, attempt integer)
language plpgsql as $function$
declare
    item outboxd.replay_item;
    replays integer;
begin
    for item in
        select i.* from outboxd.replay_item i
        where i.pipeline = of_pipeline and i.state = 'CLAIMED' and not exists (
            select from outboxd.member m
            where m.group_name = 'replay' and m.member = i.owner and m.until > clock_timestamp()
        )
        for update of i skip locked
    loop
        perform outboxd.give_back_replay_item(item.job_id, item.letter_id, item.attempt, 'claimant silent: ' || item.owner);
    end loop;
    for item in
        select i.*
        from outboxd.replay_item i
        join unnest(topics, partitions) as p(topic, partition) on p.topic = i.topic and p.partition = i.partition
        where i.pipeline = of_pipeline and i.consumer_group = of_group and i.state = 'WAITING'
        order by i.topic, i.partition, i."offset", i.letter_created_at, i.letter_id
        limit max_items
        for update of i skip locked
    loop
        perform outboxd.act_as('replay ' || item.job_id, 'claimed by ' || claimant);
        update outboxd.letter l set status = 'PROCESSING', replay_count = l.replay_count + 1
        where l.id = item.letter_id and l.created_at = item.letter_created_at and l.status in ('NEW', 'FAILED')
        returning l.replay_count into replays;
        if found then
            update outboxd.replay_item i
            set state = 'CLAIMED', owner = claimant, attempt = replays, updated_at = clock_timestamp()
            where i.job_id = item.job_id and i.letter_id = item.letter_id;
            job_id := item.job_id;
            letter_id := item.letter_id;
            letter_created_at := item.letter_created_at;
            attempt := replays;
            return next;
        else
            update outboxd.replay_item i
            set state = 'SKIPPED', error = 'the letter was closed before its turn', updated_at = clock_timestamp()
            where i.job_id = item.job_id and i.letter_id = item.letter_id;
        end if;
    end loop;
    perform outboxd.act_as(null, null);
end
$function$;

-- Ends a claim with its outcome. False when this claim is not there any more (given back, claimed again): then the
-- outcome decides nothing and the letter is run again.
create or replace function outboxd.finish_replay_item(
    job_id uuid, letter_id uuid, attempt integer, resolved boolean, error text
) returns boolean language plpgsql as $function$
declare
    item outboxd.replay_item;
    outcome text := case when resolved then 'RESOLVED' else 'FAILED' end;
begin
    update outboxd.replay_item i
    set state = outcome, error = finish_replay_item.error, updated_at = clock_timestamp()
    where i.job_id = finish_replay_item.job_id and i.letter_id = finish_replay_item.letter_id
        and i.state = 'CLAIMED' and i.attempt = finish_replay_item.attempt
    returning i.* into item;
    if not found then
        return false;
    end if;
    perform outboxd.act_as('replay ' || item.job_id, finish_replay_item.error);
    update outboxd.letter l
    set status = outcome,
        retry_count = l.retry_count + 1,
        last_failed_at = case when finish_replay_item.resolved then l.last_failed_at else clock_timestamp() end
    where l.id = item.letter_id and l.created_at = item.letter_created_at and l.status = 'PROCESSING';
    perform outboxd.act_as(null, null);
    return true;
end
$function$;
