-- Marks rows done, each group only while its lease has its owner and epoch ($1, $2, $3: names, owners, epochs); $4 are
-- the row ids and $5 for each the number of its lease in these lists. Gives for each lease whether it holds, and how
-- many rows were marked. The share lock makes a take-over at the same moment wait for this statement, or this statement
-- see it. A lease that is past its time but was not taken is still good: nobody else acts under it.
with claim as (
    select * from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as c(name, owner, epoch, n)
),
held as (
    select c.n
    from claim c join outboxd.lease l on l.name = c.name and l.owner = c.owner and l.epoch = c.epoch
    for share of l
),
marked as (
    {{mark}} = any(array(
        select d.row_id from unnest($4::bigint[], $5::bigint[]) as d(row_id, n) join held on held.n = d.n
    ))
    returning 1
){{unstage}}
select c.name, c.n in (select n from held) as is_held, (select count(*) from marked) as marked from claim c
