"""JSON schemas of models, as AsyncAPI takes them: JSON schema draft 07, with references of its own.

AsyncAPI 3.1 §Schema Object: a superset of draft 07, in which `discriminator` is a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter

Mode = Literal["validation", "serialization"]
Schema = dict[str, Any]

_TEMPLATE = "#/components/schemas/{model}"


class Schemas:
    """The schemas of a document; one for each model, however often it is used."""

    def __init__(self) -> None:
        self._wanted: list[tuple[str, Mode, TypeAdapter[Any]]] = []

    def add(self, name: str, model: Any, mode: Mode) -> None:
        """Have a schema of `model` under `name`, for `built`."""
        self._wanted.append((name, mode, TypeAdapter(model)))

    def built(self) -> tuple[dict[str, Schema], dict[str, Schema]]:
        """Schemas by the names they were added under, and those they refer to."""
        found, rest = TypeAdapter.json_schemas(self._wanted, ref_template=_TEMPLATE)
        roots = {name: _draft_07(schema) for (name, _), schema in found.items()}
        shared = {name: _draft_07(schema) for name, schema in rest.get("$defs", {}).items()}
        return roots, dict(sorted(shared.items()))


def _draft_07(schema: Any) -> Any:
    match schema:
        case list():
            return [_draft_07(each) for each in schema]
        case Mapping():
            written = {key: _draft_07(each) for key, each in schema.items()}
            if isinstance(written.get("prefixItems"), list):
                written["items"] = written.pop("prefixItems")
            discriminator = written.get("discriminator")
            if isinstance(discriminator, dict) and "propertyName" in discriminator:
                written["discriminator"] = discriminator["propertyName"]
            return written
    return schema
