"""First-party handlers."""
