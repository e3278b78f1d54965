"""The refusals of AMQP, with the reply texts of RabbitMQ."""

from __future__ import annotations

from broker_client.core.settings import RabbitMQVersion
from broker_client.errors import ReplyError


def not_found(kind: str, name: str, vhost: str) -> ReplyError:
    """404: no such exchange or queue."""
    return ReplyError(404, f"NOT_FOUND - no {kind} '{name}' in vhost '{vhost}'")


def vhost_not_found(vhost: str) -> ReplyError:
    """530: no such vhost; closes the connection."""
    return not_allowed(f"vhost {vhost} not found")


def connection_limit_reached(vhost: str, user: str, most: int) -> ReplyError:
    """530: the vhost has as many connections as it may; closes the connection."""
    return not_allowed(
        f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
    )


def access_refused(why: str) -> ReplyError:
    """403: not permitted to anyone."""
    return ReplyError(403, f"ACCESS_REFUSED - {why}")


def resource_locked(queue: str, vhost: str) -> ReplyError:
    """405: an exclusive queue of another connection."""
    return ReplyError(
        405,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost "
        f"'{vhost}'. It could be originally declared on another connection or the exclusive "
        "property value does not match that of the original declaration.",
    )


def precondition_failed(why: str) -> ReplyError:
    """406: the command does not fit the state of things."""
    return ReplyError(406, f"PRECONDITION_FAILED - {why}")


def unknown_delivery_tag(tag: int) -> ReplyError:
    """406: a tag that was never issued, or is settled already."""
    return precondition_failed(f"unknown delivery tag {tag}")


def unknown_exchange_type(type: str, version: RabbitMQVersion) -> ReplyError:
    """406, and before RabbitMQ 4 503, which closes the connection."""
    if version < (4, 0):
        return ReplyError(503, f"COMMAND_INVALID - unknown exchange type '{type}'", "connection")
    return precondition_failed(f"unknown exchange type '{type}'")


def not_allowed(why: str) -> ReplyError:
    """530: closes the connection."""
    return ReplyError(530, f"NOT_ALLOWED - {why}", "connection")


def not_implemented(why: str) -> ReplyError:
    """540: closes the connection."""
    return ReplyError(540, f"NOT_IMPLEMENTED - {why}", "connection")
