"""Encoders for publications whose configuration asks for more than the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from broker_client.codec import content as contents
from broker_client.codec.compression import Compression, check_available, compress
from broker_client.codec.models import adapter_of, complaints, find_model
from broker_client.codec.registry import Codec, codec_of
from broker_client.config import BrokerConfig, PublicationConfig
from broker_client.errors import (
    ConfigError,
    InvalidContentError,
    InvalidMessageError,
    Problem,
    described,
)

Encode = Callable[[Any], tuple[bytes, str | None]]
"""Makes a body and its content type from a content; may raise what a publish raises."""


def encoders_of(config: BrokerConfig, *, compressing: bool = True) -> dict[str, Encode]:
    """The encoders of those publications that need one of their own, by their names.

    Args:
        config: of the publications.
        compressing: False leaves the compression to a later publish.

    Raises:
        ConfigError: a model cannot be imported, or is not a model.
        UnsupportedError: the package for a compression is not installed.
    """
    found: dict[str, Encode] = {}
    problems: list[Problem] = []
    for name, publication in config.publications.items():
        try:
            encode = _encoder(publication)
        except ValueError as error:
            problems.append(Problem(f"publications.{name}.model", str(error)))
            continue
        if publication.compress is not None and compressing:
            check_available(publication.compress)
            encode = _compressed(encode, publication.compress)
        if encode is not contents.encode:
            found[name] = encode
    if problems:
        raise ConfigError(problems)
    return found


def _encoder(publication: PublicationConfig) -> Encode:
    codec = codec_of(publication.options.content_type)
    if codec is not None:
        return _coded(codec, str(publication.options.content_type))
    return contents.encode if publication.model is None else _checked(publication)


def _coded(codec: Codec, content_type: str) -> Encode:
    """Encode with a codec that the application registered; bytes are unchanged."""

    def encode(content: Any) -> tuple[bytes, str | None]:
        if isinstance(content, bytes | bytearray | memoryview):
            return bytes(content), content_type
        try:
            return codec.encode(content), content_type
        except Exception as error:
            raise InvalidContentError(content_type, described(error)) from error

    return encode


def _compressed(encode: Encode, compression: Compression) -> Encode:
    def compressed(content: Any) -> tuple[bytes, str | None]:
        body, content_type = encode(content)
        return compress(body, compression), content_type

    return compressed


def _checked(publication: PublicationConfig) -> Encode:
    """Encode as JSON, and check the JSON against the publication's model."""
    adapter = adapter_of(find_model(publication.model))
    what = f"the content of publication {publication.name!r}"

    def encode(content: Any) -> tuple[bytes, str | None]:
        body, content_type = contents.encode(content)
        if content_type == contents.TEXT:  # a text is a value of JSON, too
            body = contents.encode_json(content)
        try:
            adapter.validate_json(body)
        except ValidationError as error:
            why = f"does not fit its model: {complaints(error)}"
            raise InvalidMessageError(what, why) from None
        return body, contents.JSON

    return encode
