-- Member $2 of group $1 lives for $3 seconds from now; gives the number of live members, it included. Long-dead ones go.
with gone as (
    delete from outboxd.member
    where group_name = $1::text and member <> $2::text and until < clock_timestamp() - interval '10 minutes'
),
joined as (
    insert into outboxd.member (group_name, member, until)
    values ($1::text, $2::text, clock_timestamp() + make_interval(secs => $3::double precision))
    on conflict (group_name, member) do update set until = excluded.until
)
select 1 + count(*) as living
from outboxd.member
where group_name = $1::text and member <> $2::text and until > clock_timestamp()
