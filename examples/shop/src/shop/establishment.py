"""The service `establishment`: cooks what was ordered and says how far it is."""

from __future__ import annotations

from outboxd.api import Record
from outboxd.enqueue import enqueue
from shop.database import ESTABLISHMENT
from shop.domain import Status

__all__ = ["accept_order", "make_trouble", "set_status"]


async def accept_order(record: Record) -> None:
    """Handler of topic `orders.new`: write the ticket and enqueue its status, in one transaction.

    Called again for the same order (delivery is at least once) it finds the ticket and does nothing.
    """
    message = record.value
    if not isinstance(message, dict):
        raise TypeError("an order is a JSON object with order_id and item")
    order_id, item = int(message["order_id"]), str(message["item"])
    await _meet_trouble(order_id)
    async with ESTABLISHMENT.transaction() as connection:
        is_new = await connection.fetchval(
            "insert into ticket values ($1, $2, $3) on conflict do nothing returning true",
            order_id,
            item,
            Status.ACCEPTED,
        )
        if is_new:
            await enqueue(
                connection, "orders.status_updated", str(order_id), {"order_id": order_id, "status": Status.ACCEPTED}
            )


async def set_status(order_id: int, status: Status) -> None:
    """Say that the order has this status. Checks nothing: what may follow what is for `orders` to judge."""
    async with ESTABLISHMENT.transaction() as connection:
        await connection.execute("update ticket set status = $2 where order_id = $1", order_id, status)
        await enqueue(connection, "orders.status_updated", str(order_id), {"order_id": order_id, "status": status})


async def make_trouble(order_id: int, failures: int) -> None:
    """Let the next so many calls of `accept_order` for this order fail with SQLSTATE 40001."""
    async with ESTABLISHMENT.transaction() as connection:
        await connection.execute(
            "insert into trouble values ($1, $2) on conflict (order_id) do update set failures_left = $2",
            order_id,
            failures,
        )


async def _meet_trouble(order_id: int) -> None:
    async with ESTABLISHMENT.transaction() as connection:
        await connection.execute("insert into handler_call (order_id) values ($1)", order_id)
        fails = await connection.fetchval(
            "update trouble set failures_left = failures_left - 1 where order_id = $1 and failures_left > 0 returning true",
            order_id,
        )
    if fails:
        async with ESTABLISHMENT.transaction() as connection:
            await connection.execute("select fail_to_serialise()")
