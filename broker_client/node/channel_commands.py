"""The commands of a channel, named as in AMQP, for transports and servers.

Each is carried out at once, at the node's time. Where one raises ReplyError, the node has closed
the channel or the connection, as the error's scope says, and its receiver is notified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from broker_client.core.arguments import Arguments
from broker_client.core.commands.consume import BasicConsumeArguments
from broker_client.core.commands.topology import (
    Declared,
    ExchangeDeclareArguments,
    QueueDeclareArguments,
)
from broker_client.core.engine import Engine
from broker_client.core.exchange import Destination
from broker_client.errors import ReplyError
from broker_client.message import Delivery, Outgoing
from broker_client.node.effect_runner import EffectRunner
from broker_client.runtime.clock import Clock


class Command:
    """While a command of `channel` is given: its effects follow soon, and a refusal closes."""

    __slots__ = ("_channel", "_runner")

    def __init__(self, runner: EffectRunner, channel: int) -> None:
        self._runner, self._channel = runner, channel

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ReplyError):
            self._runner.refuse(self._channel, error)
        self._runner.wake()


class ChannelCommands:
    """Gives a node's engine the commands of its channels. See the engine for what each does."""

    def __init__(self, engine: Engine, runner: EffectRunner, clock: Clock) -> None:
        """
        Args:
            engine: of the node.
            runner: carries out the effects, and refusals.
            clock: the time of the node.
        """
        self._engine, self._runner, self._clock = engine, runner, clock

    def __repr__(self) -> str:
        return f"<ChannelCommands channels={self._engine.channel_count}>"

    def publish(self, channel: int, messages: Sequence[Outgoing]) -> None:
        """Publish `messages` in order, up to the first that is refused."""
        state = self._engine.state.channels[channel]
        try:
            self._engine.publishing.publish_each(channel, messages, self._clock.now())
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            self._runner.wake()
            if self._runner.is_short:
                self._runner.block_publisher(state.connection)

    def ack(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it."""
        try:
            self._engine.consuming.ack(channel, delivery_tag, self._clock.now(), multiple=multiple)
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            if not self._runner.is_scheduled:
                self._runner.wake()

    def ack_each(self, channel: int, delivery_tags: Sequence[int]) -> None:
        """Settle each of these deliveries, up to the first that is refused."""
        try:
            self._engine.consuming.ack_each(channel, delivery_tags, self._clock.now())
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            self._runner.wake()

    def nack(
        self,
        channel: int,
        delivery_tag: int,
        *,
        requeue: bool,
        multiple: bool = False,
        delay: float | None = None,
    ) -> None:
        """Reject deliveries, or give them back, after `delay` seconds if that is set."""
        with Command(self._runner, channel):
            self._engine.consuming.nack(
                channel,
                delivery_tag,
                self._clock.now(),
                requeue=requeue,
                multiple=multiple,
                delay=delay,
            )

    def release(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        """Give a delivery, or all up to it, back unhandled: it does not count as an attempt."""
        with Command(self._runner, channel):
            self._engine.consuming.release(
                channel, delivery_tag, self._clock.now(), multiple=multiple
            )

    def qos(self, channel: int, prefetch: int, *, shared: bool) -> None:
        """Limit the unsettled deliveries of consumers started from now on, or of all together."""
        with Command(self._runner, channel):
            self._engine.consuming.qos(channel, prefetch, self._clock.now(), shared=shared)

    def flow(self, channel: int, *, active: bool) -> None:
        """Stop deliveries to a channel, or go on with them.

        A few that are under way may still come after a stop.
        """
        with Command(self._runner, channel):
            self._engine.consuming.flow(channel, active, self._clock.now())

    def consume(self, channel: int, queue: str, **options: Unpack[BasicConsumeArguments]) -> str:
        """Start a consumer; returns its tag."""
        with Command(self._runner, channel):
            return self._engine.consuming.consume(channel, queue, self._clock.now(), **options)

    def cancel(self, channel: int, consumer_tag: str) -> None:
        """Stop a consumer, its deliveries staying in flight."""
        with Command(self._runner, channel):
            self._engine.consuming.cancel(channel, consumer_tag, self._clock.now())

    def get(self, channel: int, queue: str, *, no_ack: bool) -> tuple[Delivery, int] | None:
        """Take the head of a queue; returns it and the number still ready, or None."""
        with Command(self._runner, channel):
            return self._engine.consuming.get(channel, queue, self._clock.now(), no_ack=no_ack)

    def basic_recover(self, channel: int, *, requeue: bool) -> None:
        """Requeue everything that the channel has in flight."""
        with Command(self._runner, channel):
            self._engine.consuming.recover(channel, self._clock.now(), requeue=requeue)

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on."""
        with Command(self._runner, channel):
            self._engine.publishing.confirm_select(channel)

    def tx_select(self, channel: int) -> None:
        """Hold publishes and settlements back until `tx_commit`."""
        with Command(self._runner, channel):
            self._engine.publishing.tx_select(channel)

    def tx_commit(self, channel: int) -> None:
        """Commit the transaction."""
        with Command(self._runner, channel):
            self._engine.publishing.tx_commit(channel, self._clock.now())

    def tx_rollback(self, channel: int) -> None:
        """Discard the transaction."""
        with Command(self._runner, channel):
            self._engine.publishing.tx_rollback(channel)

    def refuse(self, channel: int, refusal: ReplyError) -> None:
        """Close the channel, or its connection, as for a command that was refused.

        For what a server refuses by itself: its receiver is notified in the same order.
        """
        self._runner.refuse(channel, refusal)

    def declare_exchange(
        self, channel: int, name: str, type: str, **options: Unpack[ExchangeDeclareArguments]
    ) -> None:
        """Add an exchange, or check that it is the same."""
        with Command(self._runner, channel):
            self._engine.topology.declare_exchange(channel, name, type, **options)

    def check_exchange(self, channel: int, name: str) -> None:
        """Check that an exchange exists."""
        with Command(self._runner, channel):
            self._engine.topology.check_exchange(channel, name)

    def delete_exchange(self, channel: int, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings."""
        with Command(self._runner, channel):
            self._engine.topology.delete_exchange(channel, name, if_unused=if_unused)

    def declare_queue(
        self, channel: int, name: str, **options: Unpack[QueueDeclareArguments]
    ) -> Declared:
        """Add a queue, or check that it is the same."""
        with Command(self._runner, channel):
            return self._engine.topology.declare_queue(channel, name, self._clock.now(), **options)

    def check_queue(self, channel: int, name: str) -> Declared:
        """Check that a queue exists."""
        with Command(self._runner, channel):
            return self._engine.topology.check_queue(channel, name, self._clock.now())

    def delete_queue(self, channel: int, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue; returns the ready messages that went with it."""
        with Command(self._runner, channel):
            return self._engine.topology.delete_queue(
                channel, name, if_unused=if_unused, if_empty=if_empty
            )

    def purge_queue(self, channel: int, name: str) -> int:
        """Drop the ready messages; returns their number."""
        with Command(self._runner, channel):
            return self._engine.topology.purge_queue(channel, name)

    def bind(
        self,
        channel: int,
        destination: Destination,
        source: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Bind a queue or an exchange to the exchange `source`."""
        with Command(self._runner, channel):
            self._engine.topology.bind(channel, destination, source, binding_key, arguments)

    def unbind(
        self,
        channel: int,
        destination: Destination,
        source: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Remove a binding."""
        with Command(self._runner, channel):
            self._engine.topology.unbind(channel, destination, source, binding_key, arguments)
