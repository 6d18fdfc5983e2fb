-- Writes letters that are not known yet, each once (invariant 6); gives the ids of those that were new.
-- $1 the sink that took them first; then one array for each column.
with key as (
    insert into outboxd.letter_key (id, created_at)
    select distinct w.id, statement_timestamp() from unnest($2::uuid[]) as w(id)
    on conflict (id) do nothing
    returning id, created_at
),
written as (
    insert into outboxd.letter (
        id, created_at, updated_at, sink, pipeline, consumer_group, handler, topic, partition, "offset",
        record_timestamp, timestamp_type, message_key, message_value, headers, stage, error_class, error_root_class,
        error_message, error_traceback, rule, fingerprint, retry_count, first_failed_at, last_failed_at, traceparent,
        outbox_id
    )
    select distinct on (k.id)
        k.id, k.created_at, k.created_at, $1::text, w.pipeline, w.consumer_group, w.handler, w.topic, w.partition,
        w."offset", w.record_timestamp, w.timestamp_type, w.message_key, w.message_value, w.headers::jsonb, w.stage,
        w.error_class, w.error_root_class, w.error_message, w.error_traceback, w.rule, w.fingerprint, w.retry_count,
        w.first_failed_at, w.last_failed_at, w.traceparent, w.outbox_id
    from unnest(
        $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::bigint[], $9::bigint[],
        $10::text[], $11::bytea[], $12::bytea[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[],
        $18::text[], $19::text[], $20::text[], $21::integer[], $22::timestamptz[], $23::timestamptz[], $24::text[],
        $25::text[]
    ) as w(
        id, pipeline, consumer_group, handler, topic, partition, "offset", record_timestamp, timestamp_type,
        message_key, message_value, headers, stage, error_class, error_root_class, error_message, error_traceback,
        rule, fingerprint, retry_count, first_failed_at, last_failed_at, traceparent, outbox_id
    )
    join key k on k.id = w.id
)
select id from key
