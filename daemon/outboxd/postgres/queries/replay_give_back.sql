-- Gives the claim of letter $2 in job $1 under attempt $3 back.
select outboxd.give_back_replay_item($1::uuid, $2::uuid, $3::integer, 'given back') as is_ours
