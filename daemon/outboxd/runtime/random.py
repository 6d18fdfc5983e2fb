"""Real chance, behind the port `Random`."""

from __future__ import annotations

import random
import secrets
import uuid

__all__ = ["SystemRandom"]


class SystemRandom:
    """Chance from the operating system where it makes identities, from a fast generator where it makes jitter."""

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        return random.uniform(low, high)

    def token(self) -> str:
        """Eight hex digits."""
        return secrets.token_hex(4)

    def uuid(self) -> uuid.UUID:
        """A random uuid (version 4)."""
        return uuid.uuid4()
