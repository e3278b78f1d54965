"""Batches: messages collected for one call of a handler.

Each message stays a delivery of its own, unacked until the handler has returned for the whole
batch. So what a crash or a lost channel interrupts is delivered again, a prefetch bounds what is
collected, and a failure goes to recovery message by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.config import BatchConfig
from broker_client.message import Message
from broker_client.runtime.tasks import TaskGroup

Run = Callable[[list[Message], list[Any]], Awaitable[Any]]
"""Calls the handler with the messages of a batch, and their contents."""


class _Batch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.items: list[tuple[Message, Any, AckOrNack]] = []
        self.done: asyncio.Future[None] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None


class Batches:
    """Collects the messages of one handler; called with each of them."""

    def __init__(self, config: BatchConfig, run: Run, tasks: TaskGroup, name: str) -> None:
        """
        Args:
            config: how many, and for how long to wait for them.
            run: calls the handler.
            tasks: owner of the tasks in which the handler runs.
            name: of the subscription.
        """
        self._config = config
        self._run = run
        self._tasks = tasks
        self._task_name = f"subscription {name}: batch"
        self._context = copy_context()
        self._open: _Batch | None = None
        self._flushes = False

    async def __call__(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        """Add a message to the batch; returns, or raises, with the handler of the whole batch."""
        loop = asyncio.get_running_loop()
        batch = self._open
        if batch is None:
            batch = self._open = _Batch(loop)
            batch.timer = loop.call_later(self._config.wait, self.flush)
        batch.items.append((message, content, ack_or_nack))
        if len(batch.items) >= self._config.size or self._flushes:
            self.flush()
        await asyncio.shield(batch.done)  # others wait for it, too

    def end(self) -> None:
        """Stop collecting: collected and later messages are handled at once."""
        self._flushes = True
        self.flush()

    def flush(self) -> None:
        """Handle the collected messages."""
        batch, self._open = self._open, None
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        context = self._context.copy()
        context.run(self._tasks.spawn, self._handle(batch), self._task_name)

    async def _handle(self, batch: _Batch) -> None:
        # What was lost meanwhile comes again, and would be handled twice.
        items = [each for each in batch.items if each[2].outcome is None]
        try:
            if items:
                await self._run([message for message, _, _ in items], [each[1] for each in items])
        except asyncio.CancelledError:
            batch.done.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - user code; each message gets it
            if not batch.done.done():
                batch.done.set_exception(error)
        else:
            if not batch.done.done():
                batch.done.set_result(None)
