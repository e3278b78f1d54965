"""The report of `DriverPublisher` on a DataFrame."""

from __future__ import annotations

from broker_client.runtime.slotted import slotted


@slotted
class FrameReport:
    """The outcome of the rows of a DataFrame."""

    published: int = 0
    """Rows handed to the Broker."""
    confirmed: int = 0
    returned: int = 0
    """Returned: no queue took them."""
    nacked: int = 0
    """The broker refused them."""
    failed: int = 0
    """Timed out, or ended otherwise without a confirm."""
    retried: int = 0
    """Confirmed after being sent more than once."""
    seconds: float = 0.0
    max_in_flight: int = 0
    """Most publishes unconfirmed at a time."""
    first_error: str | None = None
