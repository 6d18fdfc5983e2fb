-- Ends the claim of letter $2 in job $1 under attempt $3: resolved or not ($4), with the error $5.
select outboxd.finish_replay_item($1::uuid, $2::uuid, $3::integer, $4::boolean, $5::text) as is_ours
