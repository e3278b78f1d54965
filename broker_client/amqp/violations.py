"""Errors for violations of the protocol: reply codes and texts as RabbitMQ has them.

Where RabbitMQ ends the socket without a word, the specification's code is given. All of these cost
the connection, but a message that is too large.
"""

from __future__ import annotations

from broker_client.errors import ReplyError

_SNIPPET = 16  # bytes of a payload that are shown
_PRINTABLE = range(32, 127)


class FramingError(ReplyError):
    """Where the next frame starts is no longer known: nothing more can be read."""

    def __init__(self, text: str) -> None:
        super().__init__(501, f"FRAME_ERROR - {text}", "connection")


def _binary(data: bytes) -> str:
    """`data` as Erlang prints it."""
    if data and all(byte in _PRINTABLE for byte in data):
        return f'<<"{data.decode()}">>'
    return f"<<{','.join(map(str, data))}>>"


def _frame(kind: int, payload: bytes) -> str:
    which = "all" if len(payload) <= _SNIPPET else f"first {_SNIPPET}"
    return f"type {kind}, {which} octets = {_binary(payload[:_SNIPPET])}"


def frame_too_large(kind: int, size: int, allowed: int) -> FramingError:
    """501: a frame that claims a payload of `size` bytes."""
    return FramingError(f"{_frame(kind, b'')}: {{frame_too_large,{size},{allowed}}}")


def wrong_frame_end(kind: int, payload: bytes, end: int) -> FramingError:
    """501: the octet behind the payload is not 206 (AMQP 0-9-1 §4.2.3)."""
    return FramingError(f"{_frame(kind, payload)}: {{invalid_frame_end_marker,{end}}}")


def unknown_frame(kind: int, payload: bytes) -> ReplyError:
    """501: an unknown frame type, or a payload that does not fit it."""
    return frame_error(f"{_frame(kind, payload)}: unknown_frame")


def frame_error(text: str) -> ReplyError:
    """501: a frame cannot be decoded."""
    return ReplyError(501, f"FRAME_ERROR - {text}", "connection")


def undecodable(arguments: bytes) -> ReplyError:
    """501: the arguments of a method are shorter or longer than they should be."""
    return frame_error(f"cannot decode {_binary(arguments[:64])}")


def syntax_error(text: str) -> ReplyError:
    """502: a value is illegal (AMQP 0-9-1 §1.2, constants)."""
    return ReplyError(502, f"SYNTAX_ERROR - {text}", "connection")


def unimplemented_method() -> ReplyError:
    """503: a method that a client may not send."""
    return ReplyError(503, "COMMAND_INVALID - unimplemented method", "connection")


def unexpected_method(state: str) -> ReplyError:
    """504: not on channel 0, or not now."""
    text = f"CHANNEL_ERROR - unexpected method in connection state {state}"
    return ReplyError(504, text, "connection")


def channel_not_open() -> ReplyError:
    """504: a method for a channel that is not open."""
    return ReplyError(504, "CHANNEL_ERROR - expected 'channel.open'", "connection")


def channel_already_open() -> ReplyError:
    """504: channel.open for a channel that is open."""
    return ReplyError(504, "CHANNEL_ERROR - second 'channel.open' seen", "connection")


def unexpected_frame(kind: int, payload: bytes) -> ReplyError:
    """505: a frame that has no place on its channel."""
    return ReplyError(505, f"UNEXPECTED_FRAME - {_frame(kind, payload)}", "connection")


def expected(what: str, got: str) -> ReplyError:
    """505: the frames of a message are out of order."""
    return ReplyError(505, f"UNEXPECTED_FRAME - expected {what}, got {got} instead", "connection")


def expected_method() -> ReplyError:
    """505: a content header or body without a method."""
    return expected("method frame", "non method frame")


def expected_header() -> ReplyError:
    """505: no content header after a basic.publish."""
    return expected("content header for class 60", "non content header frame")


def expected_body() -> ReplyError:
    """505: no body, or more of it than its header said."""
    return expected("content body", "non content body frame")


def not_negotiated(name: str, wanted: int, allowed: int, *, is_minimum: bool) -> ReplyError:
    """530: tune-ok wants more, or less, than is allowed."""
    which, kind = ("lower", "minimum") if is_minimum else ("higher", "maximum")
    detail = "" if wanted else " (no limit)"
    return ReplyError(
        530,
        f"NOT_ALLOWED - negotiated {name} = {wanted}{detail} is {which} than the {kind} allowed "
        f"value ({allowed})",
        "connection",
    )


def too_many_channels(opened: int, allowed: int) -> ReplyError:
    """530: more channels than were agreed on."""
    return ReplyError(
        530,
        f"NOT_ALLOWED - number of channels opened ({opened}) has reached the negotiated "
        f"channel_max ({allowed})",
        "connection",
    )


def unknown_method(key: int) -> ReplyError:
    """540: no such method."""
    return ReplyError(
        540,
        f"NOT_IMPLEMENTED - unknown method {key & 0xFFFF} of class {key >> 16}",
        "connection",
    )


def immediate() -> ReplyError:
    """540: RabbitMQ has no `immediate`."""
    return ReplyError(540, "NOT_IMPLEMENTED - immediate=true", "connection")


def message_too_large(size: int, allowed: int) -> ReplyError:
    """406, for the channel: a body of more bytes than the server takes."""
    return ReplyError(
        406,
        f"PRECONDITION_FAILED - message size {size} is larger than configured max size {allowed}",
    )
