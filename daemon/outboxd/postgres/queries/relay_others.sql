-- Other pipelines than $1 on table $2 whose rows may be ours too: those without a condition, or with ours ($3).
select pipeline from outboxd.relay
where pipeline <> $1::text and table_name = $2::text
    and (predicate is null or $3::text is null or predicate = $3::text)
order by pipeline
