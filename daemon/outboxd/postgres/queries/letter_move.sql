-- Moves the letters $1 to $2 by hand; $3 who, $4 why. Gives how many moved.
select outboxd.move_letters($1::uuid[], $2::text, $3::text, $4::text) as moved
