"""Measurements of outboxd beside its peers, on servers that they start themselves: ``python -m bench --help``."""
