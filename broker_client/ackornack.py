"""Settling a delivery, once: ack it, or run a chain of recovery strategies."""

from __future__ import annotations

import asyncio

from broker_client.config import Strategy, strategies_from
from broker_client.consuming.delivery import UnackedDelivery
from broker_client.consuming.recovery import Recovery
from broker_client.errors import WrongLoopError


class AckOrNack(UnackedDelivery):
    """Settles a message. Called once by its handler."""

    __slots__ = ()

    _recovery: Recovery

    async def __call__(
        self,
        error: BaseException | str | None = None,
        recovery: object = None,
        *,
        all: bool = False,
    ) -> None:
        """Settle the message.

        Args:
            error: None acks. Anything else starts recovery, and is added to the headers of copies.
            recovery: a strategy or a list of them, as objects or as the mappings of the YAML;
                None uses the subscription's own.
            all: settle every unsettled delivery of this channel up to this one.

        Raises:
            ConfigError: `recovery` names no strategy; nothing is settled then.
            WrongLoopError: called in another event loop, or in a thread; nothing is settled then.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # stepped by hand in a thread
            running = None
        if running is not self._recovery.loop:
            raise WrongLoopError("a message can only be settled in its Broker's event loop")
        chain: tuple[Strategy, ...] = ()
        if error is not None:
            chain = (
                self._recovery.default_chain(self.message)
                if recovery is None
                else strategies_from(recovery)
            )
        if self.is_begun:
            self._recovery.unacked.report_second_settle(self)
            return
        self.is_begun = True
        self.error = error
        if error is None:
            self._recovery.ack(self, all=all)
        else:
            await self._recovery.run(self, chain, error, all=all, is_own=recovery is None)
