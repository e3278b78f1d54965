"""What a close of a channel, or of its connection, means for the publishes on it.

The codes are those of AMQP 0-9-1 §1.2 as RabbitMQ uses them; `tests/unit/transport/test_closes.py`
has a line for each.
"""

from __future__ import annotations

import re
from enum import Enum

from broker_client.errors import BrokerClientError, ChannelClosedError


class Meaning(Enum):
    """What a close means for the unconfirmed publishes."""

    LOST = "nothing: they are sent again"
    BUSY = "the broker cannot take them now: they are sent again after a pause"
    MISSING = "something they need is missing: the topology is declared again first"
    REFUSED = "the broker does not take one of them, and does not say which"


_CHANNEL = {
    404: Meaning.MISSING,  # NOT_FOUND: the exchange
    405: Meaning.BUSY,  # RESOURCE_LOCKED: an exclusive queue of another connection
}
"""Reply code of channel.close; every other one is a refusal."""

_CONNECTION = {
    501: Meaning.REFUSED,  # FRAME_ERROR
    502: Meaning.REFUSED,  # SYNTAX_ERROR
    503: Meaning.REFUSED,  # COMMAND_INVALID
    505: Meaning.REFUSED,  # UNEXPECTED_FRAME
    540: Meaning.REFUSED,  # NOT_IMPLEMENTED
    541: Meaning.REFUSED,  # INTERNAL_ERROR: RabbitMQ over properties that it cannot parse
}
"""Reply code of connection.close. 320 CONNECTION_FORCED, 504 CHANNEL_ERROR, 506 RESOURCE_ERROR,
530 NOT_ALLOWED and a connection that breaks say nothing of the publishes on it."""

_ALARM = re.compile(r"low on (disk|memory)|(disk|memory)( space)? alarm|resource alarm", re.I)
"""LavinMQ: 406 "low on disk space" for each publish, where RabbitMQ blocks the connection."""


def meaning_of(error: BrokerClientError) -> Meaning:
    """What the end of a channel by `error` means for the publishes on it."""
    if not isinstance(error, ChannelClosedError):
        return Meaning.LOST
    if error.reply_code:
        if _ALARM.search(error.reply_text):
            return Meaning.BUSY
        return _CHANNEL.get(error.reply_code, Meaning.REFUSED)
    return _CONNECTION.get(error.connection_code, Meaning.LOST)
