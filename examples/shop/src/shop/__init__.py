"""The example of outboxd: two services, each with its own database and its own transactional outbox."""
