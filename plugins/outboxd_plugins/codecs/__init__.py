"""First-party codecs."""
