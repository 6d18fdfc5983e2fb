"""First-party plugins; they import outboxd.api only."""
