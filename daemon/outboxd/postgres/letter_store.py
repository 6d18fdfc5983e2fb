"""The home of letters on Postgres: catalogue, drain and replay jobs in one object."""

from __future__ import annotations

from outboxd.postgres.letter_catalogue import LetterCatalogue
from outboxd.postgres.replay_jobs import ReplayJobs

__all__ = ["PostgresLetterStore"]


class PostgresLetterStore(LetterCatalogue, ReplayJobs):
    """The ports `LetterStore` and `DrainStore`, and `outboxd.api.LetterHome`, on one connection."""
