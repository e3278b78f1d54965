"""What answers at an address where no AMQP 0-9-1 is spoken, told by its first bytes."""

from __future__ import annotations

from broker_client.amqp import decode

_PREFIX, _WHOLE = b"AMQP", 8  # AMQP 0-9-1 §4.2.2: the protocol header, and its bytes
_TLS_ALERT = b"\x15\x03"  # RFC 8446 §5.1: content type and the first byte of the version
_SHOWN = 60  # characters of a greeting


def other_protocol(first: bytes) -> str | None:
    """Why a server whose first bytes are `first` is of no use; None as long as it may be.

    AMQP 0-9-1 §2.2.4: a server answers with a method, or with the protocol header of the version
    that it speaks.
    """
    if first.startswith(_PREFIX):
        return _version(first) if len(first) >= _WHOLE else None
    if first.startswith(b"HTTP/"):
        return (
            f"a web server answers there ({_shown(first)}); the usual port of AMQP is 5672, or "
            "5671 with TLS"
        )
    if first.startswith(_TLS_ALERT):
        return "the server there uses TLS: write amqps://"
    if first[:1] == bytes((decode.METHOD,)) or _PREFIX.startswith(first):
        return None
    return f"what answers there does not speak AMQP: {_shown(first)}"


def _version(header: bytes) -> str:
    protocol, major, minor, revision = header[4:8]
    if (major, minor, revision) == (0, 9, 1):
        return "the server there did not take the protocol header of AMQP 0-9-1"
    version = f"{major}-{minor}-{revision}"
    if protocol == 1:  # before 0-9-1: class, instance, and two numbers of the version
        version = f"{minor}-{revision}"
    elif major == 1:  # AMQP 1.0 §2.2; the protocol is AMQP, TLS or SASL
        version = f"{major}.{minor}"
    return f"the server there speaks AMQP {version}, and not 0-9-1 as RabbitMQ does"


def _shown(greeting: bytes) -> str:
    line = greeting.splitlines()[0]
    if line and line.isascii() and line.decode("ascii").isprintable():
        return line[:_SHOWN].decode("ascii")
    return repr(greeting[:_SHOWN])
