-- Takes member $2 out of group $1.
delete from outboxd.member where group_name = $1::text and member = $2::text
