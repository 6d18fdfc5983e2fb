"""Blocked keys of one shard: the row that failed, when it is tried again, and which rows wait behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum

from outboxd.pipeline.relay.dependencies import growing_wait
from outboxd.records import OutboxRow

__all__ = ["Admission", "Block", "BlockState", "Blocks", "KeyId", "key_id"]

KeyId = tuple[str, bytes] | tuple[str, None, int]
"""What waits together: a topic's key; a row without a key stands for itself."""


def key_id(row: OutboxRow) -> KeyId:
    """Which rows the row is in order with."""
    return (row.topic, None, row.row_id) if row.key is None else (row.topic, row.key)


class BlockState(Enum):
    """Where a block stands."""

    WAITING = "waiting"
    """Neither the row nor the later ones of its key are read until the next attempt is due."""
    DUE = "due"
    """The next look at the table brings the row again."""
    PROBING = "probing"
    """The row is on its way, alone; later rows of its key are still left in the table."""
    ENDING = "ending"
    """The row got through, or is gone. Rows behind it that could not be taken back are dropped one by one as they come
    in; the key is free when none is in hand: one of them must not overtake those that wait in the table."""


class Admission(Enum):
    """What becomes of a row that was read."""

    FREE = "free"
    PROBE = "probe"
    HELD = "held"


class Block:
    """One blocked key; the row itself stays in the table, so that a block costs a few hundred bytes."""

    __slots__ = ("attempts", "due_at", "error", "key", "row_id", "state")

    def __init__(self, key: KeyId, row_id: int) -> None:
        self.key = key
        self.row_id = row_id
        self.attempts = 0
        self.due_at = 0.0
        self.error = ""
        self.state = BlockState.WAITING


class Blocks:
    """The blocked keys. Falsy while there is none: the hot path asks only that.

    ``is_in_hand`` says whether a row of the key is on its way to its actions or their end.
    """

    def __init__(self, *, initial: float, maximum: float, is_in_hand: Callable[[KeyId], bool]) -> None:
        self._initial = initial
        self._maximum = maximum
        self._is_in_hand = is_in_hand
        self._blocks: dict[KeyId, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        """Those whose row has not got through."""
        return (block for block in self._blocks.values() if block.state is not BlockState.ENDING)

    def get(self, key: KeyId) -> Block | None:
        """The block of this key."""
        return self._blocks.get(key)

    def failed(self, row: OutboxRow, error: str, now: float) -> Block:
        """Block the row's key, or count one more failed attempt."""
        block = self.held_back(row, error, now)
        if row.row_id > block.row_id:
            return block
        block.attempts += 1
        block.due_at = now + growing_wait(block.attempts, initial=self._initial, maximum=self._maximum)
        return block

    def held_back(self, row: OutboxRow, error: str, now: float) -> Block:
        """Let the key wait for this row without counting an attempt: it is due at once."""
        key = key_id(row)
        block = self._blocks.get(key)
        if block is None or row.row_id < block.row_id:
            block = self._blocks[key] = Block(key, row.row_id)
        elif row.row_id > block.row_id:
            return block
        block.error, block.due_at, block.state = error, now, BlockState.WAITING
        return block

    def passed(self, row: OutboxRow) -> bool:
        """The row got through; whether that ends a block."""
        block = self._blocks.get(key_id(row))
        if block is None or not self._is_probe(block, row):
            return False
        self._end(block)
        return True

    def end_topic(self, topic: str) -> None:
        """Let all keys of a topic go, which waits as a whole from now on."""
        for block in [block for block in self._blocks.values() if block.key[0] == topic]:
            self._end(block)

    def left_hand(self, key: KeyId) -> None:
        """No row of the key is in hand any more."""
        block = self._blocks.get(key)
        if block is not None and block.state is BlockState.ENDING:
            del self._blocks[key]

    def _end(self, block: Block) -> bool:
        """Let the block go; whether its key is free at once."""
        if self._is_in_hand(block.key):
            block.state, block.attempts = BlockState.ENDING, 0
            return False
        del self._blocks[block.key]
        return True

    def count(self, topic: str) -> int:
        """How many keys of the topic had a failure."""
        return sum(block.key[0] == topic and block.attempts > 0 for block in self._blocks.values())

    def wake(self, now: float) -> None:
        """Let the blocks whose time has come be read again."""
        for block in self._blocks.values():
            if block.state is BlockState.WAITING and block.due_at <= now:
                block.state = BlockState.DUE

    def admit(self, row: OutboxRow) -> Admission:
        """What becomes of a row that was read.

        Rows before the blocked one are free: they were dropped from memory in a failure of something else. A later
        row in place of the blocked one means that the blocked one is gone (deleted or moved by hand).
        """
        key = key_id(row)
        block = self._blocks.get(key)
        if block is None:
            return Admission.FREE
        if block.state is not BlockState.DUE:
            return Admission.HELD
        if row.row_id < block.row_id:
            return Admission.FREE
        if row.row_id > block.row_id:
            return Admission.FREE if self._end(block) else Admission.HELD
        block.state = BlockState.PROBING
        return Admission.PROBE

    def may_pass(self, row: OutboxRow) -> bool:
        """Whether the row may go on: its key is free, or it is the one whose attempt this is, or stands before it."""
        block = self._blocks.get(key_id(row))
        if block is None or row.row_id < block.row_id or self._is_probe(block, row):
            return True
        return row.row_id == block.row_id and block.state is BlockState.ENDING

    def is_probe(self, row: OutboxRow) -> bool:
        """Whether this row is the attempt of a blocked key: it travels alone."""
        block = self._blocks.get(key_id(row))
        return block is not None and self._is_probe(block, row)

    @staticmethod
    def _is_probe(block: Block, row: OutboxRow) -> bool:
        return block.row_id == row.row_id and block.state is BlockState.PROBING

    def dropped(self, row: OutboxRow) -> None:
        """The row left memory without an outcome: if its key is blocked at it or behind it, look again at once."""
        block = self._blocks.get(key_id(row))
        if block is None or block.state is BlockState.ENDING:
            return
        if row.row_id < block.row_id or self._is_probe(block, row):
            block.state = BlockState.DUE

    def vanished(self, seen: Collection[KeyId]) -> None:
        """Nothing pending was left out of what was read: due blocks that were not seen have lost their row."""
        for key, block in list(self._blocks.items()):
            if block.state is BlockState.DUE and key not in seen:
                self._end(block)

    def skipped_keys(self) -> list[tuple[str, bytes]]:
        """Keys whose rows are left in the table."""
        return [
            (block.key[0], block.key[1])
            for block in self._blocks.values()
            if block.state is not BlockState.DUE and block.key[1] is not None
        ]

    def skipped_rows(self) -> list[int]:
        """Rows without a key that are left in the table."""
        return [
            block.row_id
            for block in self._blocks.values()
            if block.state is not BlockState.DUE and block.key[1] is None
        ]
