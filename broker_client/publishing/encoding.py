"""How a publication makes bytes of a content, where its configuration asks for more than usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from broker_client.codec import content as contents
from broker_client.codec.models import adapter_of, complaints, find_model
from broker_client.config import BrokerConfig, PublicationConfig
from broker_client.errors import ConfigError, InvalidMessageError, Problem

Encode = Callable[[Any], tuple[bytes, str | None]]
"""Makes a body and its content type of a content; raises what a publish may raise."""


def encoders_of(config: BrokerConfig) -> dict[str, Encode]:
    """The encoders of those publications that need one of their own, by their names.

    Raises:
        ConfigError: a model is not there, or is none.
    """
    found: dict[str, Encode] = {}
    problems: list[Problem] = []
    for name, publication in config.publications.items():
        if publication.model is not None:
            try:
                found[name] = _checked(publication)
            except ValueError as error:
                problems.append(Problem(f"publications.{name}.model", str(error)))
    if problems:
        raise ConfigError(problems)
    return found


def _checked(publication: PublicationConfig) -> Encode:
    """JSON of contents that fit the publication's model; what is sent is what is checked."""
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
