"""First-party actions."""
