"""First-party sinks."""
