"""Events of one subscription, logged where they have no listener."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker_client.runtime.emitter import Emitter, Listener

log: logging.Logger = logging.getLogger("broker_client.subscription")


class Reports:
    """Through this, the parts of a subscription emit events.

    Args:
        name: of the subscription.
        emitter: the subscription, whose listeners are called.
    """

    def __init__(self, name: str, emitter: Emitter) -> None:
        self.name = name
        self._emitter = emitter
        self.listeners: Callable[[str], Sequence[Listener]] = emitter.listeners
        """Returns the listeners of an event."""

    def emit(self, event: str, *args: object) -> bool:
        """Call the listeners of `event`; False without a listener."""
        return self._emitter.emit(event, *args)

    def error(self, error: BaseException) -> None:
        """Call the listeners of `error`; without one, log it with its cause."""
        if self._emitter.has_listener("error"):
            self._emitter.emit("error", error)
        else:
            log.error("%s", error, exc_info=error.__cause__)

    def warn(self, event: str, *args: object, text: str, values: tuple[object, ...] = ()) -> None:
        """Call the listeners of `event`; without one, log `text` with `values`."""
        if not self._emitter.emit(event, *args):
            log.warning("subscription %s: %s", self.name, text % values)
