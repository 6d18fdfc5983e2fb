-- For pipelines that keep published rows of the default table: when each was published, and the index of what is pending.
-- Switched on while many rows are pending, making the index holds writers up for as long as it takes.
alter table outboxd.outbox add column if not exists published_at timestamptz;
create index if not exists outbox_pending on outboxd.outbox (id) where published_at is null;
