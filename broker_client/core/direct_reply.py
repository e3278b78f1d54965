"""Direct reply-to: replies go to the requester's channel, without a queue.

A consumer of `amq.rabbitmq.reply-to` gets an address of its own; a publish whose `reply_to`
names the pseudo-queue carries that address, and a publish to the address is a delivery
(https://www.rabbitmq.com/docs/direct-reply-to).
"""

from __future__ import annotations

from collections import deque

from broker_client.core.effects import Deliver
from broker_client.core.queue import ChannelState
from broker_client.core.replies import precondition_failed
from broker_client.core.state import State
from broker_client.message import Delivery, Outgoing

REPLY_TO = "amq.rabbitmq.reply-to"
"""Name of the pseudo-queue."""
_ADDRESS = f"{REPLY_TO}."
_REMEMBERED = 1_000  # addresses that are out of use, for answers that come late


class DirectReplies:
    """The channels that consume replies, by the secret part of their address."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._channels: dict[str, ChannelState] = {}
        self._gone: deque[str] = deque(maxlen=_REMEMBERED)

    def consume(self, channel: ChannelState, consumer_tag: str, no_ack: bool) -> str:
        """Let `channel` consume replies; returns the consumer tag.

        Raises:
            ReplyError: 406 without `no_ack`, or when it does so already.
        """
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        if channel.reply_token is not None:
            raise precondition_failed("reply consumer already set")
        channel.reply_token = token = self._state.new_token()
        channel.reply_tag = consumer_tag or f"amq.ctag-{self._state.next_id()}"
        self._channels[token] = channel
        return channel.reply_tag

    def stop(self, channel: ChannelState) -> None:
        """Stop replies to `channel`; no effect if it consumes none."""
        if channel.reply_token is not None:
            del self._channels[channel.reply_token]
            self._gone.append(channel.reply_token)
            channel.reply_token, channel.reply_tag = None, ""

    def exists(self, queue: str) -> bool:
        """True for the name of the pseudo-queue, and for an address in use."""
        return queue == REPLY_TO or queue.removeprefix(_ADDRESS) in self._channels

    def gave_out(self, message: Outgoing) -> bool:
        """True where `message` answers to an address that was in use not long ago."""
        return not message.exchange and message.routing_key.removeprefix(_ADDRESS) in self._gone

    def with_address(self, channel: ChannelState, message: Outgoing) -> Outgoing:
        """A request whose `reply_to` is the address of `channel`.

        Raises:
            ReplyError: 406 when the channel consumes no replies.
        """
        if channel.reply_token is None:
            raise precondition_failed("fast reply consumer does not exist")
        address = f"{_ADDRESS}{channel.reply_token}"
        return message._replace(properties=message.properties._replace(reply_to=address))

    def deliver(self, message: Outgoing) -> bool:
        """Deliver a reply to its requester; False if it is none, or the requester is gone."""
        if message.exchange or not message.routing_key.startswith(_ADDRESS):
            return False
        channel = self._channels.get(message.routing_key[len(_ADDRESS) :])
        if channel is None:
            return False
        delivery = Delivery(
            channel.reply_tag,
            channel.ledger.issue(),
            False,
            "",
            message.routing_key,
            message.body,
            message.properties,
            1,
        )
        self._state.effects.append(Deliver(channel.id, delivery))
        return True
