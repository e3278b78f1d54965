"""Results of an attempt to finish, requeue or touch one delivery, as nsq's FIN, REQ and
TOUCH do: a value to look at, never a broken connection."""

from __future__ import annotations

from broker_client.runtime.slotted import slotted


@slotted
class Done:
    """It was in flight on this channel, and the operation was carried out."""

    seconds_left: float | None = None
    """After a touch: how long it may still be in flight."""

    def __bool__(self) -> bool:
        return True


@slotted
class NotInFlight:
    """Nothing was done: it is settled, purged or given back already, or never was in flight."""

    delivery_tag: int

    def __bool__(self) -> bool:
        return False


@slotted
class NotOwner:
    """Nothing was done: it timed out here, and is in flight again under another delivery."""

    delivery_tag: int

    def __bool__(self) -> bool:
        return False


@slotted
class NodeClosed:
    """Nothing was done: the node is closing or closed; what was in flight is ready again."""

    delivery_tag: int

    def __bool__(self) -> bool:
        return False


SettleResult = Done | NotInFlight | NotOwner | NodeClosed
"""True if it was done; the class says why not."""
