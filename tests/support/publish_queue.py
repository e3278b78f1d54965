"""A publish queue on a fake link, for its tests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.config import PoolConfig, PublishQueueConfig
from broker_client.errors import (
    PublishError,
)
from broker_client.message import Outgoing, Properties
from broker_client.pool import ChannelPool
from broker_client.publication import Origin, Publication
from broker_client.publishing.queue import PublishQueue
from broker_client.runtime.tasks import TaskGroup
from tests.support.links import FakeChannel, FakeLink
from tests.support.warp import settle


class PublishQueueHarness:
    """A publish queue with its pools on a fake link; also acts as the vhost."""

    def __init__(self, *, max_channels: int = 1, **settings: Any) -> None:
        self.link = FakeLink()
        self.tasks = TaskGroup("test")
        pool = PoolConfig(max=max_channels)
        self.confirm = ChannelPool("confirm", lambda: self.link.open_channel(confirm=True), pool)
        self.regular = ChannelPool("regular", lambda: self.link.open_channel(), pool)
        self.queue = PublishQueue(
            "/",
            PublishQueueConfig(**settings),
            self,
            regular=self.regular,
            confirm=self.confirm,
            tasks=self.tasks,
        )
        self.queue.resume()
        self.restored = 0
        self.events: list[tuple[str, str]] = []
        self.made = 0

    @property
    def link_state(self) -> str:
        return "paused" if self.queue.is_paused else "up"

    async def restore_topology(self) -> None:
        self.restored += 1

    def make(self, name: str = "orders", max_nacks: float = 0, **more: Any) -> Publication:
        self.made += 1
        message_id = more.pop("message_id", f"m{self.made}")
        body = more.pop("body", b"x")
        key = more.pop("routing_key", "placed")
        publication = Publication(
            Origin(name, self.queue.withdraw, self.tasks, max_nacks),
            Outgoing("orders", key, body, Properties(message_id=message_id), mandatory=True),
            asyncio.get_running_loop().time(),
            **{"timeout": 10.0, **more},
        )
        for event in ("success", "return", "error", "paused"):
            publication.on(
                event, lambda *args, event=event: self.events.append((event, message_id))
            )
        return publication

    async def publish(
        self, count: int = 1, *, confirm: bool = True, name: str = "orders", **more: Any
    ) -> list[Publication]:
        made = [self.make(name, **more) for _ in range(count)]
        for publication in made:
            await self.queue.put(publication, confirm=confirm)
        await settle()
        return made

    @property
    def channels(self) -> list[FakeChannel]:
        return self.link.channels

    @property
    def channel(self) -> FakeChannel:
        """The newest."""
        return self.link.channels[-1]

    def ends(self) -> list[tuple[str, str]]:
        return [event for event in self.events if event[0] != "paused"]

    def lose_link(self) -> None:
        """Lose the link as a vhost sees it: channels die, queue and pools pause."""
        self.link.lose()
        self.queue.pause()
        self.confirm.pause()
        self.regular.pause()

    def restore_link(self, **options: Any) -> None:
        self.link = FakeLink(**options)
        self.confirm.resume()
        self.regular.resume()
        self.queue.resume()

    async def close(self) -> None:
        await self.queue.close()
        self.confirm.close()
        self.regular.close()
        await self.tasks.cancel()


async def failure_of(publication: Publication) -> PublishError:
    with pytest.raises(PublishError) as caught:
        await publication
    return caught.value
