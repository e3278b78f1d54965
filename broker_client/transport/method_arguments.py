"""Names and tables that a method may carry: checked before it is sent, alike on every broker."""

from __future__ import annotations

from broker_client.amqp.tables import encode_arguments
from broker_client.errors import InvalidMessageError, InvalidNameError, UnsupportedError
from broker_client.transport.base import Arguments

_MOST_PREFETCH = 65_535  # AMQP 0-9-1 §1.8.3.1: a short integer
_BESIDE_ARGUMENTS = 1_024  # bytes, for the frame, three names and the flags


def check_names(**names: str) -> None:
    """Check that an AMQP short string can hold each of `names`.

    Raises:
        InvalidNameError: one is too long, or no text.
    """
    for argument, name in names.items():
        kind = argument.replace("_", " ")
        if not isinstance(name, str):
            reason = f"is of type {type(name).__name__}; text is needed"
            raise InvalidNameError(kind, str(name), reason)
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            reason = "holds half of a surrogate pair, which is not text"
            raise InvalidNameError(kind, name, reason) from None
        if size > 255:
            reason = "is longer than the 255 bytes AMQP allows"
            raise InvalidNameError(kind, name, reason)


def check_prefetch(prefetch: int) -> None:
    """Check that basic.qos can carry `prefetch`.

    Raises:
        UnsupportedError: it cannot.
    """
    if not 0 <= prefetch <= _MOST_PREFETCH:
        raise UnsupportedError(f"a prefetch of {prefetch}", f"AMQP carries 0 to {_MOST_PREFETCH}")


def encoded_arguments(arguments: Arguments, frame_max: int) -> bytes:
    """`arguments` as a field table.

    Args:
        arguments: of a declaration, a binding or a consumer.
        frame_max: largest frame in bytes, 0 for no limit: a method has to fit into one.

    Raises:
        UnsupportedError: they hold what AMQP cannot carry.
    """
    try:
        data = encode_arguments(arguments)
    except InvalidMessageError as error:
        reason = f"{error.what} {error.reason}"
        raise UnsupportedError("a value among the arguments", reason) from None
    if frame_max and len(data) > frame_max - _BESIDE_ARGUMENTS:
        reason = f"a method has to fit into one frame, of {frame_max} bytes here (frame_max)"
        raise UnsupportedError(f"a table of {len(data)} bytes", reason)
    return data
