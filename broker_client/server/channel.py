"""One channel of a client: turns its methods into commands of the node, and what the node answers
and delivers into methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

from pamqp import commands
from pamqp.base import Frame

from broker_client.amqp.events import SettlementReceived
from broker_client.config.server import ServerConfig
from broker_client.core.exchange import Destination
from broker_client.core.replies import not_allowed, not_implemented, precondition_failed
from broker_client.errors import ReplyError
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.node import Node
from broker_client.server.permissions import SessionPermissions, routing_keys
from broker_client.server.writer import Writer

Ids = tuple[int, int]
"""Class and method id of a method."""
NO_METHOD: Ids = (0, 0)
BASIC_PUBLISH: Ids = (60, 40)
SETTLE_IDS: dict[str, Ids] = {"ack": (60, 80), "reject": (60, 90), "nack": (60, 120)}


class SessionChannel:
    """A channel of a session; also the node's receiver for it.

    Replies keep the order of their methods. Some have to wait: for the disk, or until what the
    node had to send before is sent. Then those that follow wait behind them.
    """

    def __init__(
        self,
        node: Node,
        config: ServerConfig,
        writer: Writer,
        permissions: SessionPermissions,
        connection: int,
        number: int,
    ) -> None:
        """
        Args:
            node: carries out the commands.
            config: the limits.
            writer: takes what is for the client.
            permissions: of its user in its vhost.
            connection: how the node calls the connection.
            number: of the channel on that connection.
        """
        self.number = number
        self._node, self._commands = node, node.commands
        self._config, self._writer = config, writer
        self._permissions = permissions
        self._id = node.open_channel(
            connection,
            self,
            confirm=False,
            number=number,
            consumer_timeout=config.consumer_timeout,
        )
        self._consumers: set[str] = set()
        self._last_queue = ""
        """Of the last declaration: what an empty name means."""
        self._offender = NO_METHOD
        self._is_over = False
        """Refused or closing: whatever the client still sends on it is ignored."""
        self.is_gone: bool = False
        """Closed: nothing more is sent on it."""
        self._waiting_replies = 0

    def __repr__(self) -> str:
        state = "closed" if self.is_gone else "closing" if self._is_over else "open"
        return f"<SessionChannel {self.number} {state}>"

    # ---------------------------------------------------------------- from the client

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish `messages` in order, up to the first that is refused."""
        if self._is_over:
            return
        permitted, refusal = self._permitted(messages)
        try:
            self._commands.publish(self._id, messages if refusal is None else messages[:permitted])
            if refusal is not None:
                self._refuse(refusal)
        except ReplyError:
            self._refused(BASIC_PUBLISH)

    def _permitted(self, messages: Sequence[Outgoing]) -> tuple[int, ReplyError | None]:
        """How many of `messages` the user may publish, and why not the next."""
        permissions = self._permissions
        checked = None
        for index, message in enumerate(messages):
            if message.exchange != checked:
                checked = None
                if refusal := permissions.check_publish(message.exchange, routing_keys(message)):
                    return index, refusal
                if not permissions.limits_topics(message.exchange):
                    checked = message.exchange  # that the next go there too is no news
            user_id = message.properties.user_id
            if user_id is not None and (refusal := permissions.check_user_id(user_id)):
                return index, refusal
        return len(messages), None

    def ack_each(self, delivery_tags: Sequence[int]) -> None:
        """Ack single deliveries."""
        if not self._is_over:
            try:
                self._commands.ack_each(self._id, delivery_tags)
            except ReplyError:
                self._refused(SETTLE_IDS["ack"])

    def settle(self, settled: SettlementReceived) -> None:
        """Ack, nack or reject."""
        if self._is_over:
            return
        _, kind, tag, multiple, requeue = settled
        try:
            if kind == "ack":
                self._commands.ack(self._id, tag, multiple=multiple)
            else:
                self._commands.nack(self._id, tag, requeue=requeue, multiple=multiple)
        except ReplyError:
            self._refused(SETTLE_IDS[kind])

    def handle(self, method: Frame) -> None:
        """Carry out any other method."""
        self._carry_out(self._HANDLERS[type(method)], method)

    def _carry_out(self, handler: Callable[[SessionChannel, Any], None], method: Frame) -> None:
        if self._is_over:
            return
        try:
            if refusal := self._permissions.check(method, self._last_queue):
                self._refuse(refusal)
            handler(self, method)
        except ReplyError:
            self._refused(ids_of(method))

    def close(self) -> None:
        """The client closes the channel: reply once what came before has been sent."""
        self._is_over = True
        self._node.call_after_effects(self._close)

    def drop(self) -> None:
        """Send nothing more: the connection is gone."""
        self._is_over = self.is_gone = True

    def fail(self) -> None:
        """The client broke a rule that closes the channel, and got channel.close."""
        self.drop()
        self._node.close_channel(self._id)

    def set_flow(self, *, active: bool) -> None:
        """Deliver, or stop."""
        if not self.is_gone and not self._is_over:
            with suppress(ReplyError):  # the node has closed it, and is about to tell why
                self._commands.flow(self._id, active=active)

    def cancel_consumers(self) -> None:
        """Stop the consumers, and notify the client."""
        if not self._is_over:
            with suppress(ReplyError):  # as above
                for tag in tuple(self._consumers):
                    self._commands.cancel(self._id, tag)
                    self.cancelled(tag)

    def _close(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._node.close_channel(self._id)
            self._writer.send(self.number, commands.Channel.CloseOk())

    def _refused(self, ids: Ids) -> None:
        """The node will tell `closed`, in its time; until then, the client is not listened to."""
        self._offender, self._is_over = ids, True

    def _refuse(self, refusal: ReplyError) -> NoReturn:
        self._commands.refuse(self._id, refusal)
        raise refusal

    # ---------------------------------------------------------------- replies

    def _reply(self, method: Frame) -> None:
        self._answer(lambda: self._writer.send(self.number, method))

    def _reply_after_effects(self, method: Frame) -> None:
        """Reply once everything so far is sent, and on the disk where there is one."""
        self._answer(lambda: self._writer.send(self.number, method), wait=True)

    def _answer(self, send: Callable[[], None], *, wait: bool = False) -> None:
        if not wait and not self._must_wait:
            send()
            return
        self._waiting_replies += 1

        def send_in_turn() -> None:
            self._waiting_replies -= 1
            if not self.is_gone:
                send()

        self._node.call_after_effects(send_in_turn)

    @property
    def _must_wait(self) -> bool:
        """Replies wait: for those before them, and for messages that come back (RabbitMQ: a
        basic.return is sent before the channel reads on)."""
        return self._waiting_replies > 0 or self._node.has_return_for(self._id)

    def _changed(self, method: Frame, nowait: bool = False) -> None:
        """Reply to a change of the topology."""
        if nowait:
            return
        if self._node.keeps:
            self._reply_after_effects(method)
        else:
            self._reply(method)

    # ---------------------------------------------------------------- exchanges and queues

    def _exchange_declare(self, method: commands.Exchange.Declare) -> None:
        if method.passive:
            self._commands.check_exchange(self._id, method.exchange)
        else:
            self._commands.declare_exchange(
                self._id,
                method.exchange,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=method.arguments,
            )
        self._changed(commands.Exchange.DeclareOk(), method.nowait)

    def _exchange_delete(self, method: commands.Exchange.Delete) -> None:
        self._commands.delete_exchange(self._id, method.exchange, if_unused=method.if_unused)
        self._changed(commands.Exchange.DeleteOk(), method.nowait)

    def _exchange_bind(self, method: commands.Exchange.Bind) -> None:
        destination = Destination("exchange", method.destination)
        arguments = method.arguments or {}
        self._commands.bind(self._id, destination, method.source, method.routing_key, arguments)
        self._changed(commands.Exchange.BindOk(), method.nowait)

    def _exchange_unbind(self, method: commands.Exchange.Unbind) -> None:
        destination = Destination("exchange", method.destination)
        arguments = method.arguments or {}
        self._commands.unbind(self._id, destination, method.source, method.routing_key, arguments)
        self._changed(commands.Exchange.UnbindOk(), method.nowait)

    def _queue_declare(self, method: commands.Queue.Declare) -> None:
        if method.passive:
            declared = self._commands.check_queue(self._id, method.queue)
        else:
            self._check_queue_limit(method.queue)
            declared = self._commands.declare_queue(
                self._id,
                method.queue,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
            )
        self._last_queue = declared.name
        answer = commands.Queue.DeclareOk()
        # Set, and not given to the constructor, which has rules for names that brokers do not have.
        answer.queue, answer.message_count, answer.consumer_count = declared
        self._changed(answer, method.nowait)

    def _check_queue_limit(self, name: str) -> None:
        most = self._config.max_queues_per_vhost
        vhost = self._node.view.vhost(self._permissions.vhost)
        assert vhost is not None, "a deleted vhost has no connections"
        if most and len(vhost.queues) >= most and name not in vhost.queues:
            self._refuse(
                precondition_failed(
                    f"cannot declare queue '{name}': queue limit in vhost '{vhost.name}' "
                    f"({most}) is reached"
                )
            )

    def _queue_delete(self, method: commands.Queue.Delete) -> None:
        count = self._commands.delete_queue(
            self._id,
            self._named(method.queue),
            if_unused=method.if_unused,
            if_empty=method.if_empty,
        )
        self._changed(commands.Queue.DeleteOk(count), method.nowait)

    def _queue_purge(self, method: commands.Queue.Purge) -> None:
        count = self._commands.purge_queue(self._id, self._named(method.queue))
        self._changed(commands.Queue.PurgeOk(count), method.nowait)

    def _queue_bind(self, method: commands.Queue.Bind) -> None:
        queue, key = self._named(method.queue), self._binding_key(method)
        destination, arguments = Destination("queue", queue), method.arguments or {}
        self._commands.bind(self._id, destination, method.exchange, key, arguments)
        self._changed(commands.Queue.BindOk(), method.nowait)

    def _queue_unbind(self, method: commands.Queue.Unbind) -> None:
        queue, key = self._named(method.queue), self._binding_key(method)
        destination, arguments = Destination("queue", queue), method.arguments or {}
        self._commands.unbind(self._id, destination, method.exchange, key, arguments)
        self._changed(commands.Queue.UnbindOk())

    def _named(self, queue: str) -> str:
        """AMQP 0-9-1 §1.7.2: an empty name means the queue declared last on the channel."""
        if not queue and not self._last_queue:
            self._refuse(ReplyError(404, "NOT_FOUND - no previously declared queue"))
        return queue or self._last_queue

    def _binding_key(self, method: commands.Queue.Bind | commands.Queue.Unbind) -> str:
        """AMQP 0-9-1 §1.7.2.3: with neither queue nor key, the key is the queue's name."""
        return method.routing_key or ("" if method.queue else self._last_queue)

    # ---------------------------------------------------------------- consuming

    def _basic_qos(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            self._refuse(not_implemented(f"prefetch_size!=0 ({method.prefetch_size})"))
        self._commands.qos(self._id, method.prefetch_count, shared=method.global_)
        self._reply(commands.Basic.QosOk())

    def _basic_consume(self, method: commands.Basic.Consume) -> None:
        if self._must_wait:  # else its deliveries would come before consume-ok
            self._answer(lambda: self._carry_out(SessionChannel._consume, method))
        else:
            self._consume(method)

    def _consume(self, method: commands.Basic.Consume) -> None:
        most = self._config.max_consumers_per_channel
        if most and len(self._consumers) >= most:
            self._refuse(not_allowed(f"reached maximum ({most}) of consumers per channel"))
        tag = self._commands.consume(
            self._id,
            self._named(method.queue),
            consumer_tag=method.consumer_tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=method.arguments,
        )
        self._consumers.add(tag)
        if not method.nowait:
            self._writer.send(self.number, commands.Basic.ConsumeOk(tag))

    def _basic_cancel(self, method: commands.Basic.Cancel) -> None:
        tag = method.consumer_tag or ""
        self._commands.cancel(self._id, tag)
        self._consumers.discard(tag)
        # Behind the deliveries made before, and so is what is answered later.
        if method.nowait:
            self._answer(_nothing, wait=True)
        else:
            self._reply_after_effects(commands.Basic.CancelOk(tag))

    def _basic_get(self, method: commands.Basic.Get) -> None:
        got = self._commands.get(self._id, self._named(method.queue), no_ack=method.no_ack)
        if got is None:
            self._reply(commands.Basic.GetEmpty())
            return
        delivery, count = got
        # Behind the deliveries with lower tags, if there may be some.
        self._answer(
            lambda: self._writer.get_ok(self.number, delivery, count), wait=bool(self._consumers)
        )

    def _basic_recover(self, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
        self._commands.basic_recover(self._id, requeue=method.requeue)
        if isinstance(method, commands.Basic.Recover):
            self._reply(commands.Basic.RecoverOk())

    def _channel_flow(self, method: commands.Channel.Flow) -> None:
        if not method.active:  # RabbitMQ: basic.qos is there for that
            self._refuse(not_implemented("active=false"))
        self._reply(commands.Channel.FlowOk(active=True))

    # ---------------------------------------------------------------- confirms, transactions

    def _confirm_select(self, method: commands.Confirm.Select) -> None:
        self._commands.confirm_select(self._id)
        if not method.nowait:
            self._reply(commands.Confirm.SelectOk())

    def _tx_select(self, _method: commands.Tx.Select) -> None:
        self._commands.tx_select(self._id)
        self._reply(commands.Tx.SelectOk())

    def _tx_commit(self, _method: commands.Tx.Commit) -> None:
        self._commands.tx_commit(self._id)
        self._reply_after_effects(commands.Tx.CommitOk())

    def _tx_rollback(self, _method: commands.Tx.Rollback) -> None:
        self._commands.tx_rollback(self._id)
        self._reply(commands.Tx.RollbackOk())

    # ---------------------------------------------------------------- from the node

    def deliver(self, delivery: Delivery) -> None:
        """A delivery for one of the channel's consumers."""
        self._writer.deliver(self.number, delivery)

    def confirm(self, first: int, last: int, acked: bool) -> None:
        """Publishes `first`..`last` are confirmed, or refused; those before have been."""
        self._writer.confirm(self.number, last, multiple=first < last, acked=acked)

    def returned(self, returned: Returned) -> None:
        """An unroutable mandatory message."""
        self._writer.returned(self.number, returned)

    def cancelled(self, consumer_tag: str) -> None:
        """A consumer's queue is gone."""
        self._consumers.discard(consumer_tag)
        self._writer.cancelled(self.number, consumer_tag)

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        """A delivery was too long in flight, and AMQP has no word for it."""

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel."""
        if not self.is_gone:
            self.drop()
            self._writer.close_channel(self.number, reply_code, reply_text, self._offender)

    _HANDLERS: ClassVar[dict[type[Frame], Callable[[SessionChannel, Any], None]]] = {
        commands.Exchange.Declare: _exchange_declare,
        commands.Exchange.Delete: _exchange_delete,
        commands.Exchange.Bind: _exchange_bind,
        commands.Exchange.Unbind: _exchange_unbind,
        commands.Queue.Declare: _queue_declare,
        commands.Queue.Delete: _queue_delete,
        commands.Queue.Purge: _queue_purge,
        commands.Queue.Bind: _queue_bind,
        commands.Queue.Unbind: _queue_unbind,
        commands.Basic.Qos: _basic_qos,
        commands.Basic.Consume: _basic_consume,
        commands.Basic.Cancel: _basic_cancel,
        commands.Basic.Get: _basic_get,
        commands.Basic.Recover: _basic_recover,
        commands.Basic.RecoverAsync: _basic_recover,
        commands.Channel.Flow: _channel_flow,
        commands.Confirm.Select: _confirm_select,
        commands.Tx.Select: _tx_select,
        commands.Tx.Commit: _tx_commit,
        commands.Tx.Rollback: _tx_rollback,
    }


def _nothing() -> None:
    """The reply to a method without one."""


def ids_of(method: Frame) -> Ids:
    """Class and method id of `method`."""
    return method.index >> 16, method.index & 0xFFFF
