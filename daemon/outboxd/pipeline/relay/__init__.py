"""The relay: from the rows of an outbox table to records in topics."""
