"""A consumer pipeline: topic to handler, with lanes per key, contiguous commits, retries and dead letters."""
