"""Which partition a key belongs to: murmur2 as the Java client computes it.

Source: Kafka's `Utils.murmur2` and `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

__all__ = ["murmur2", "partition_of"]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_CACHED_KEYS: Final = 65_536


def murmur2(data: bytes) -> int:
    """The 32-bit hash as an unsigned int; Java's is the same bits as a signed one."""
    length = len(data)
    tail = length & 3
    h = _SEED ^ length
    for k in struct.unpack(f"<{length >> 2}I", data[: length - tail]):
        k = (k * _M) & _MASK  # noqa: PLW2901 - the mixed word replaces the word, as in the original
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if tail:
        h = ((h ^ int.from_bytes(data[-tail:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


_cached_murmur2 = lru_cache(maxsize=_CACHED_KEYS)(murmur2)


def partition_of(key: bytes, partitions: int) -> int:
    """The key's partition among ``partitions``. An empty key is a key like any other (B020)."""
    return (_cached_murmur2(key) & _POSITIVE) % partitions
