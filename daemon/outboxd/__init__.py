"""outboxd: transactional outbox relay, Kafka consumer for handler plugins, and a dead-letter chain."""

__version__ = "0.1.0"
