"""The service `orders`: takes orders and follows what the establishment says of them."""

from __future__ import annotations

from outboxd.api import Record
from outboxd.enqueue import enqueue
from shop.database import ORDERS
from shop.domain import Status, follow

__all__ = ["apply_status", "create_order", "order_status"]


async def create_order(item: str) -> int:
    """Insert the order and tell the establishment, in one transaction; the order's id."""
    async with ORDERS.transaction() as connection:
        order_id: int = await connection.fetchval("insert into orders (item) values ($1) returning id", item)
        await enqueue(connection, "orders.new", str(order_id), {"order_id": order_id, "item": item})
    return order_id


async def order_status(order_id: int) -> Status:
    """What the service believes of the order."""
    async with ORDERS.transaction() as connection:
        return Status(await connection.fetchval("select status from orders where id = $1", order_id))


async def apply_status(record: Record) -> None:
    """Handler of topic `orders.status_updated`. Raises InvalidTransition for a status that may not follow."""
    message = record.value
    if not isinstance(message, dict):
        raise TypeError("a status update is a JSON object with order_id and status")
    order_id, wanted = int(message["order_id"]), Status(message["status"])
    async with ORDERS.transaction() as connection:
        # The row lock makes writers of one order wait for each other, so that its messages keep their order too.
        before = await connection.fetchval("select status from orders where id = $1 for update", order_id)
        if before is None:
            raise LookupError(f"there is no order {order_id}")
        if follow(order_id, Status(before), wanted):
            await connection.execute("update orders set status = $2 where id = $1", order_id, wanted)
