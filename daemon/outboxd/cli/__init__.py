"""The command `outboxd`: reads options, calls the layers below, prints for people or as JSON."""

from outboxd.cli.app import main

__all__ = ["main"]
