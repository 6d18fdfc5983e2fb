"""The rules of an order, without any database: which status may follow which."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["InvalidTransition", "Status", "follow"]


class Status(StrEnum):
    """Where an order stands."""

    NEW = "new"
    ACCEPTED = "accepted"
    READY = "ready"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"


_NEXT = {
    Status.NEW: {Status.ACCEPTED, Status.CANCELLED},
    Status.ACCEPTED: {Status.READY, Status.CANCELLED},
    Status.READY: {Status.DELIVERED},
    Status.DELIVERED: set(),
    Status.CANCELLED: set(),
}


class InvalidTransition(Exception):
    """An order cannot go from its status to the wanted one. No retry will change that; a person has to look."""

    def __init__(self, order_id: int, before: Status, after: Status) -> None:
        super().__init__(f"order {order_id} is {before}: it cannot become {after}")


def follow(order_id: int, before: Status, after: Status) -> bool:
    """Whether there is something to do: False when the order has that status already (the message came again).

    Raises InvalidTransition.
    """
    if before is after:
        return False
    if after not in _NEXT[before]:
        raise InvalidTransition(order_id, before, after)
    return True
