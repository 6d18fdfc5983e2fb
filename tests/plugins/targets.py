"""Functions that tests name as targets."""

from __future__ import annotations

seen: list[object] = []


async def note_async(value: object, context: object) -> None:
    seen.append((value, context))


async def note_alone_async(value: object) -> None:
    seen.append(value)


def note_alone(value: object) -> None:
    seen.append(value)


def note_any(*values: object) -> None:
    seen.append(values)


def too_many(one: object, two: object, three: object) -> None:
    seen.append((one, two, three))


def none_at_all() -> None:
    seen.append(None)


not_a_function = 1
