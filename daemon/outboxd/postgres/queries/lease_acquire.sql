-- Takes the lease $1 for owner $2 and $3 seconds when it is free, expired or held by that very owner (whose token was
-- lost with an answer). No row: somebody else has it. `is_clean` when nobody held it, so that nothing is left half done.
with created as (
    insert into outboxd.lease (name, owner, epoch, until)
    select $1::text, $2::text, 1, clock_timestamp() + make_interval(secs => $3::double precision)
    where not exists (select from outboxd.lease where name = $1::text)
    on conflict (name) do nothing
    returning epoch, notes
),
free as (
    select name, owner is null as is_clean
    from outboxd.lease
    where name = $1::text and (owner is null or owner = $2::text or until <= clock_timestamp())
    for update
),
taken as (
    update outboxd.lease l
    set owner = $2::text, epoch = l.epoch + 1, until = clock_timestamp() + make_interval(secs => $3::double precision)
    from free f
    where l.name = f.name
    returning l.epoch, l.notes, f.is_clean
)
select epoch, notes::text as notes, true as is_clean from created
union all
select epoch, notes::text, is_clean from taken
