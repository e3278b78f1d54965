"""`Schedules`: all that a configuration declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from broker_client.config import BrokerConfig, VhostConfig
from broker_client.config.scheduling import ScheduleConfig
from broker_client.connection.vhost import Vhost
from broker_client.consuming.setup import ConsumingStores
from broker_client.errors import UnknownNameError
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.clock import Clock
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from broker_client.scheduling.schedule_runner import (
    ScheduleRunner,
    schedule_queue,
    schedule_subscription,
)
from broker_client.subscription import Subscription


def with_schedule_queues(vhost: VhostConfig, config: BrokerConfig) -> VhostConfig:
    """`vhost` with the queues of the schedules of `config` that publish in it."""
    queues = dict(vhost.queues)
    for schedule in config.schedules.values():
        if _vhost_of(schedule, config) == vhost.name:
            queue = schedule_queue(schedule).within(vhost.namespace)
            queues[queue.name] = queue
    return vhost.model_copy(update={"queues": queues})


def _vhost_of(schedule: ScheduleConfig, config: BrokerConfig) -> str:
    """That of its publication.

    Raises:
        UnknownNameError: there is no such publication.
    """
    publication = config.find_publication(schedule.publication)
    if publication is None:
        raise UnknownNameError("publication", schedule.publication, list(config.publications))
    return publication.vhost


class Schedules:
    """Takes part in every schedule of a configuration."""

    def __init__(
        self,
        config: BrokerConfig,
        vhosts: Mapping[str, Vhost],
        publisher: Publisher,
        stores: ConsumingStores,
        broker: Emitter,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        """
        Args:
            config: declares the schedules.
            vhosts: by name, with the queues of the schedules.
            publisher: publishes the messages, and what is kept.
            stores: sets up the consumers.
            broker: notified of failures (`error`).
            clock: tells the time.
            tasks: owner of the tasks that wait for the next times.
        """
        self._config, self._vhosts, self._publisher = config, vhosts, publisher
        self._stores, self._broker, self._clock, self._tasks = stores, broker, clock, tasks
        self._runners: list[ScheduleRunner] = []

    def __repr__(self) -> str:
        return f"<Schedules {self._runners!r}>"

    def start(self) -> None:
        """Take part from now on."""
        for schedule in self._config.schedules.values():
            config = schedule_subscription(schedule, _vhost_of(schedule, self._config))
            # Its message is held until the next time, which no broker's time-out is to end.
            setup = dataclasses.replace(self._stores.setup(config), settle_within=None)
            runner = ScheduleRunner(
                schedule, self._publisher, self._broker, self._clock, self._tasks
            )
            self._runners.append(runner)
            vhost = self._vhosts[config.vhost]
            runner.start(Subscription(config, vhost, self._publisher, self._tasks, setup=setup))

    async def stop(self) -> None:
        """Leave them to the other processes. May be called more than once."""
        for each in self._runners:
            await each.stop()
