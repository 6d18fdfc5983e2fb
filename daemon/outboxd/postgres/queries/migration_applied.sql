-- The numbers of the migrations that were applied.
select number from outboxd.migration order by number
