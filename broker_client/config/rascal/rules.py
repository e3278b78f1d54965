"""How single values of a rascal configuration are written here, key by key.

A rule is a name (the value stays), a `Kept` (name and conversion) or a `Dropped` (the reason).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from broker_client.config.rascal.draft import Draft


class Kept(NamedTuple):
    """A key with another name, its value converted."""

    name: str
    convert: Callable[[Any], Any]


class Dropped(NamedTuple):
    """A key without a counterpart."""

    why: str


class Without(Exception):  # noqa: N818 - no error: the way out of a conversion
    """This value has no counterpart; the text says why."""


Rule = str | Kept | Dropped
Rules = Mapping[str, Rule]

NOTHING = Kept("", lambda _: None)
"""A key that says nothing: what it stands for is so, or follows from others."""
BY_HAND = Dropped("handlers are given to subscribe")


def applied(rules: Rules, value: object, target: Draft) -> Draft:
    """Put into `target` what `rules` make of the mapping `value`, and remarks on the rest."""
    if value is None:
        return target
    if not isinstance(value, Mapping):
        target.note(f"a mapping was expected here, not {_kind(value)}: left out")
        return target
    for key, each in value.items():
        if each is None:
            continue
        rule = rules.get(key, Dropped("no such key in rascal"))
        if isinstance(rule, str):
            rule = Kept(rule, _same)
        if isinstance(rule, Dropped):
            target.note(f"left out: {shown(key, each)}: {rule.why}")
            continue
        try:
            found = rule.convert(each)
        except Without as reason:
            target.note(f"left out: {shown(key, each)}: {reason}")
            continue
        if found is not None:
            target[rule.name] = found
    return target


def shown(key: str, value: object) -> str:
    """`key` and its value, where that is short and cannot be a secret."""
    if isinstance(value, bool | int | float):
        return f"{key} {str(value).lower() if isinstance(value, bool) else value}"
    return key


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "a single value"


def _same(value: Any) -> Any:
    return value


# --------------------------------------------------------------------------- values


def number(value: object) -> int | float:
    """A number, also one written as text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if float(value).is_integer() else value
    try:
        found = float(str(value))
    except ValueError:
        raise Without("no number") from None
    return int(found) if found.is_integer() else found


def whole(value: object) -> int:
    found = number(value)
    if not isinstance(found, int):
        raise Without("no whole number")
    return found


def milliseconds(value: object) -> str:
    """A duration that rascal counts in milliseconds."""
    found = number(value)
    if found < 0:
        raise Without("negative")
    return f"{found // 1000}s" if found % 1000 == 0 else f"{found}ms"


def seconds(value: object) -> str:
    found = number(value)
    if found < 0 or not isinstance(found, int):
        raise Without("no whole number of seconds")
    return f"{found}s"


def attempts(value: object) -> int | None:
    """Rascal: 0 attempts are as many as it takes."""
    return whole(value) or None


def text(value: object) -> str:
    return value if isinstance(value, str) else str(number(value))


def section(rules: Rules) -> Callable[[Any], Draft | None]:
    """A conversion of a mapping by `rules`; None when nothing is left of it."""

    def convert(value: object) -> Draft | None:
        found = applied(rules, value, Draft())
        return found if found or found.notes else None

    return convert


def retry(value: object) -> object:
    """Settings of retries, of rascal's two kinds, or a boolean."""
    if isinstance(value, bool):
        return value
    found = applied(_RETRY, value, Draft())
    if isinstance(value, Mapping) and value.get("delay") is not None:
        delay = milliseconds(value["delay"])
        return Draft({"min": delay, "max": delay, "strategy": "linear"})
    linear = found.get("strategy") == "linear"
    if "min" in found and "max" not in found and (linear or number(value["min"]) > 60_000):  # type: ignore[index] # a mapping, for it had a min
        found["max"] = found["min"]
    return found or None


_RETRY: Rules = {
    "min": Kept("min", milliseconds),
    "max": Kept("max", milliseconds),
    "factor": Kept("factor", number),
    "strategy": "strategy",
    "delay": Kept("min", milliseconds),
    "randomise": Dropped("waits are always random, so that clients do not come back all at once"),
}


def publish_timeout(value: object) -> str:
    if not value:
        raise Without("every publish ends here, after 10s unless you write another timeout")
    return milliseconds(value)


def copies(value: object) -> list[str]:
    return [text(each) for each in (value if isinstance(value, list) else [value])]


# --------------------------------------------------------------------------- tables

EXCHANGE: Rules = {
    "type": "type",
    "assert": "assert",
    "check": "check",
    "fullyQualifiedName": NOTHING,
    "options": Kept(
        "options",
        section(
            {
                "durable": "durable",
                "internal": "internal",
                "autoDelete": "auto_delete",
                "alternateExchange": "alternate_exchange",
                "arguments": "arguments",
                "expires": Dropped("exchanges do not expire"),
            }
        ),
    ),
}

QUEUE: Rules = {
    "assert": "assert",
    "check": "check",
    "purge": "purge",
    "replyTo": "reply_to",
    "type": Dropped("rascal makes no use of it; the kind of a queue is x-queue-type"),
    "fullyQualifiedName": NOTHING,
    "options": Kept(
        "options",
        section(
            {
                "durable": "durable",
                "exclusive": "exclusive",
                "autoDelete": "auto_delete",
                "messageTtl": Kept("message_ttl", milliseconds),
                "expires": Kept("expires", milliseconds),
                "deadLetterExchange": "dead_letter_exchange",
                "deadLetterRoutingKey": "dead_letter_routing_key",
                "maxLength": Kept("max_length", whole),
                "maxPriority": Kept("max_priority", whole),
                "arguments": "arguments",
            }
        ),
    ),
}

BINDING: Rules = {
    "source": "source",
    "destination": "destination",
    "destinationType": "destination_type",
    "bindingKey": "binding_key",
    "bindingKeys": "binding_keys",
    "qualifyBindingKeys": "qualify_binding_keys",
    "fullyQualifiedName": NOTHING,
    "options": Kept("options", lambda value: Draft({"arguments": value}) if value else None),
}

_PROPERTIES: Rules = {
    "persistent": "persistent",
    "deliveryMode": Kept("persistent", lambda value: value in (2, True)),
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "headers": "headers",
    "priority": Kept("priority", whole),
    "expiration": Kept("expiration", milliseconds),
    "correlationId": Kept("correlation_id", text),
    "replyTo": "reply_to",
    "type": "type",
    "appId": "app_id",
    "messageId": Dropped("each message has an id of its own"),
    "timestamp": Dropped("give it when you publish"),
    "immediate": Dropped("RabbitMQ refuses it"),
}
_COPIES = ("CC", "BCC")


def _properties(more: Rules) -> Callable[[Any], Draft | None]:
    rules = {**_PROPERTIES, **more}

    def convert(value: object) -> Draft | None:
        given = dict(value) if isinstance(value, Mapping) else value
        headers: dict[str, Any] = {}
        if isinstance(given, dict):
            headers = {key: copies(given.pop(key)) for key in _COPIES if given.get(key)}
        found = applied(rules, given, Draft())
        if headers:
            # RabbitMQ: CC and BCC are headers of the message.
            found["headers"] = {**found.get("headers", {}), **headers}
        return found if found or found.notes else None

    return convert


PUBLICATION: Rules = {
    "vhost": "vhost",
    "exchange": "exchange",
    "queue": "queue",
    "routingKey": "routing_key",
    "confirm": "confirm",
    "timeout": Kept("timeout", publish_timeout),
    "replyTo": "reply_to",
    "options": Kept("options", _properties({"mandatory": "mandatory", "userId": "user_id"})),
    "destination": NOTHING,
    "autoCreated": NOTHING,
    "deprecated": NOTHING,
}

SUBSCRIPTION: Rules = {
    "vhost": "vhost",
    "queue": "queue",
    "contentType": "content_type",
    "prefetch": Kept("prefetch", lambda value: whole(value or 0)),
    "channelPrefetch": Kept("channel_prefetch", whole),
    "retry": Kept("retry", retry),
    "closeTimeout": Kept("close_timeout", milliseconds),
    "redeliveries": Kept(
        "redeliveries",
        section(
            {
                "limit": Kept("limit", whole),
                "timeout": Kept("timeout", milliseconds),
                "counter": "counter",
            }
        ),
    ),
    "options": Kept(
        "options",
        section(
            {
                "noAck": "no_ack",
                "exclusive": "exclusive",
                "priority": Kept("priority", whole),
                "consumerTag": "consumer_tag",
                "arguments": "arguments",
            }
        ),
    ),
    "workflow": BY_HAND,
    "workflows": BY_HAND,
    "handler": BY_HAND,
    "handlers": BY_HAND,
    "promisifyAckOrNack": Dropped("ack_or_nack is always awaited"),
    "deferCloseChannel": Dropped(
        "a subscription that ends waits for what is unsettled, up to close_timeout"
    ),
    "source": NOTHING,
    "autoCreated": NOTHING,
    "deprecated": NOTHING,
}

POOL: Rules = {
    "autostart": "autostart",
    "max": Kept("max", whole),
    "min": Kept("min", whole),
    "idleTimeoutMillis": Kept("idle_timeout", milliseconds),
    "acquireTimeoutMillis": Kept("acquire_timeout", milliseconds),
    "destroyTimeoutMillis": Kept("close_timeout", milliseconds),
    "evictionRunIntervalMillis": Dropped("a channel is closed when its idle_timeout is over"),
    "rejectionDelayMillis": Dropped("channels are opened again when the link is up"),
    "testOnBorrow": Dropped("a channel is always checked before it is used"),
}

ENCRYPTION: Rules = {
    "name": "name",
    "key": "key",
    "algorithm": Kept("algorithm", lambda value: str(value).lower()),
    "ivLength": Kept("iv_length", whole),
}

_STRATEGY: Rules = {
    "strategy": "strategy",
    "defer": Kept("defer", milliseconds),
    "all": Dropped("give it to ack_or_nack in the call"),
}
_COPY: Rules = {
    **_STRATEGY,
    "attempts": Kept("attempts", attempts),
    "restoreRoutingHeaders": "restore_routing_headers",
}
STRATEGIES: Mapping[str, Rules] = {
    "ack": _STRATEGY,
    "nack": {**_STRATEGY, "requeue": "requeue"},
    "republish": {**_COPY, "immediateNack": "immediate_nack"},
    "forward": {
        **_COPY,
        "publication": "publication",
        "xDeathFix": "x_death_fix",
        "options": Kept(
            "options",
            _properties(
                {
                    "routingKey": "routing_key",
                    "restoreRoutingHeaders": "restore_routing_headers",
                    "mandatory": Dropped("copies are always mandatory"),
                    "userId": Dropped("the broker sets it"),
                }
            ),
        ),
    },
}
