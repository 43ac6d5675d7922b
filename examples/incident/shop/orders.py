"""The shop's order service, as far as the incident needs it."""

from typing import Any


def place_order(pool: Any, order: dict[str, Any]) -> Any:
    """Takes a connection from the pool for as long as the payment takes."""
    with pool.connection(timeout=pool.settings.pool_timeout_seconds) as connection:
        payment = connection.charge(order)  # up to 3 s since Monday's release
        return connection.insert(order, payment)
