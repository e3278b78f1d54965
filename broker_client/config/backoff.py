"""Models of waits between attempts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from broker_client.config.values import (
    Duration,
    Settings,
)


class BackoffConfig(Settings):
    """Growing waits between attempts."""

    min: Duration = 1.0
    """The first wait."""
    max: Duration = 60.0
    """The longest wait."""
    factor: Annotated[float, Field(ge=1.0)] = 2.0
    """Factor between one wait and the next (`exponential`)."""
    strategy: Literal["exponential", "linear"] = "exponential"
    """`exponential` grows from min to max; `linear` waits between min and max each time."""

    @model_validator(mode="after")
    def _max_is_not_below_min(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max ({self.max:g}s) is below min ({self.min:g}s)")
        return self


class RetryConfig(BackoffConfig):
    """How to try again after a failure. `retry: false` turns it off; `retry: true` is the
    default."""

    enabled: bool = True
    """False makes no further attempts."""
    stable_after: Duration = 30.0
    """Waits start again at min once the link has stayed up this long."""

    @model_validator(mode="before")
    @classmethod
    def _from_bool(cls, value: object) -> object:
        return {"enabled": value} if isinstance(value, bool) else value
