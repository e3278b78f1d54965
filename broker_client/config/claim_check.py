"""Model of claim checks: large bodies that are kept in a store outside the broker."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from broker_client.config.values import ByteSize, Duration, Settings


class ClaimCheckConfig(Settings):
    """A store for large bodies, of which messages carry a reference only. Takes the extra `fsspec`,
    and the package for the store, such as s3fs."""

    url: str = Field(repr=False)
    """Folder of the bodies as a URL of fsspec, such as `s3://bucket/bodies` or
    `file:///var/lib/app/bodies`."""
    above: Annotated[ByteSize, Field(ge=1)] = 128 * 1024
    """Bodies larger than this go to the store. Used by publications only; subscriptions fetch
    every body that has a reference."""
    timeout: Duration = 30.0
    """Longest time to write or to read a body."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Arguments of the store's file system, such as `endpoint_url` of S3."""

    @field_validator("url")
    @classmethod
    def _url_has_a_scheme(cls, value: str) -> str:
        scheme, found, _ = value.partition("://")
        if not found or not scheme:
            raise ValueError("write a URL with its scheme, such as s3://bucket/bodies")
        return value.rstrip("/") if value.rstrip("/") != f"{scheme}:" else value
