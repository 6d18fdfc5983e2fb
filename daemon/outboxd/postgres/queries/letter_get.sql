-- The letter $1 as it stands.
select {{columns}}
from outboxd.letter_key k join outboxd.letter l on l.id = k.id and l.created_at = k.created_at
where k.id = $1::uuid
