"""Recovery strategies: what is done with a message whose handler failed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from broker_client.config.problems import problems_of
from broker_client.config.values import YAML_CONTEXT, Duration, Settings
from broker_client.errors import ConfigError


class Ack(Settings):
    """Settle the message as done."""

    is_built_apart = False
    strategy: Literal["ack"] = "ack"
    """Name of the strategy."""
    defer: Duration | None = None
    """Seconds to wait before settling."""


class Nack(Settings):
    """Refuse the message: to the dead-letter exchange, or back to its queue."""

    is_built_apart = False
    strategy: Literal["nack"] = "nack"
    """Name of the strategy."""
    requeue: bool = False
    """True requeues the message; False dead-letters or drops it."""
    defer: Duration | None = None
    """Seconds to wait before settling."""


class Republish(Settings):
    """Publish a copy to the end of the message's own queue, then ack the original."""

    is_built_apart = False
    strategy: Literal["republish"] = "republish"
    """Name of the strategy."""
    defer: Duration | None = None
    """Seconds to wait before the copy is sent."""
    attempts: Annotated[int, Field(ge=1)] | None = None
    """How often a message is republished before the next strategy is used; None means no limit."""
    restore_routing_headers: bool = True
    """True shows handlers the original exchange and routing key instead of the copy's."""
    immediate_nack: bool = False
    """Refuse the copy as soon as it arrives: the message reaches the dead-letter exchange with
    the error in its headers. A message that comes back from there is handled again."""


class ForwardOptions(Settings):
    """What a forwarded copy has otherwise than its message; headers are merged."""

    persistent: bool | None = None
    """A durable queue keeps the copy over a restart of the broker."""
    content_type: str | None = None
    """Content type."""
    content_encoding: str | None = None
    """Content encoding."""
    headers: dict[str, Any] = Field(default_factory=dict)
    """Further headers."""
    priority: Annotated[int, Field(ge=0, le=255)] | None = None
    """Priority, 0 to 255."""
    expiration: Duration | None = None
    """Time the copy may wait in a queue."""
    correlation_id: str | None = None
    """Correlation id."""
    reply_to: str | None = None
    """Queue for answers."""
    type: str | None = None
    """Type of the message."""
    app_id: str | None = None
    """Name of the application."""


class Forward(Settings):
    """Publish a copy through a publication, then ack the original."""

    is_built_apart = False
    strategy: Literal["forward"] = "forward"
    """Name of the strategy."""
    publication: str
    """Name of the publication."""
    attempts: Annotated[int, Field(ge=1)] | None = None
    """How often a message is forwarded before the next strategy is used; None means no limit."""
    defer: Duration | None = None
    """Seconds to wait before the copy is sent."""
    routing_key: str | None = None
    """Routing key of the copy; None uses the publication's, or else the message's own."""
    restore_routing_headers: bool = True
    """True shows handlers the original exchange and routing key instead of the copy's."""
    x_death_fix: bool = False
    """Leave out the `x-death` header, by which RabbitMQ drops messages that cycle."""
    options: ForwardOptions = Field(default_factory=ForwardOptions.model_construct)
    """Properties of the copy."""


Strategy = Annotated[Ack | Nack | Republish | Forward, Field(discriminator="strategy")]

STRATEGIES = ("ack", "nack", "republish", "forward")
"""The names of the strategies."""

_STRATEGIES: TypeAdapter[tuple[Strategy, ...]] = TypeAdapter(
    tuple[Strategy, ...], config=ConfigDict(defer_build=True)
)


def strategies_from(value: object) -> tuple[Strategy, ...]:
    """The recovery chain that `value` describes.

    Args:
        value: one strategy or a list of them, each an object (``Republish(defer=1.0)``) or the
            mapping of the YAML (``{"strategy": "republish", "defer": "1s"}``).

    Raises:
        ConfigError: a strategy that does not exist, or one with wrong settings.
    """
    chain = list(value) if isinstance(value, list | tuple) else [value]
    try:
        return _STRATEGIES.validate_python(chain, context=YAML_CONTEXT)
    except ValidationError as error:
        problems = problems_of(error, tuple[Strategy, ...], root="recovery")
        raise ConfigError(problems) from None
