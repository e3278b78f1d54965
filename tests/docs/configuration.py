"""The tables of docs/configuration.md and docs/configuration/, written from the models.

``python -m tests.docs.configuration`` updates them: the text under a heading ``### Model`` is
generated from the model's docstring, and of the type, default and description of each of its
fields.
The rest of the documents is written by hand, and kept.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

import broker_client.config as config_module
from broker_client.config.values import DURATION_PATTERN, SIZE_PATTERN
from tests.docs.documents import ROOT, read

DOCUMENTS = [
    "docs/configuration.md",
    *sorted(f"docs/configuration/{path.name}" for path in ROOT.glob("docs/configuration/*.md")),
]
MODELS: dict[str, type[BaseModel]] = {
    name: value
    for name in config_module.__all__
    if isinstance(value := getattr(config_module, name), type) and issubclass(value, BaseModel)
}

_LINK = re.compile(r"\]\(#(\w+)\)")
_HEADING = re.compile(r"^### (\w+)$", re.MULTILINE)
_SECTION = re.compile(r"^### (\w+)\n.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_TIMES = (("d", 86_400), ("h", 3_600))
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_KINDS = {"boolean": "`true`, `false`", "string": "text", "object": "mapping"}

Schema = dict[str, Any]


def text(document: str, name: str) -> str:
    """`document`, called `name`, with its generated parts updated."""
    places = _places()

    def section(found: re.Match[str]) -> str:
        return _LINK.sub(link, _section(found[1], found[0])) if found[1] in MODELS else found[0]

    def link(found: re.Match[str]) -> str:
        place = places.get(found[1], name)
        if place == name:
            return found[0]
        return f"]({posixpath.relpath(place, posixpath.dirname(name))}#{found[1]})"

    return _SECTION.sub(section, document)


def _places() -> dict[str, str]:
    """The document of each model, by the anchor of its heading."""
    return {model.lower(): name for name in DOCUMENTS for model in _HEADING.findall(read(name))}


def keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields that users may write; an entry's name is its key."""
    return {
        str(field.validation_alias or name): field
        for name, field in model.model_fields.items()
        if name != "name" or not field.is_required()
    }


def _section(name: str, present: str) -> str:
    model = MODELS.get(name)
    if model is None:
        return present
    schema = model.model_json_schema()
    lines = [f"### {name}", "", *_paragraphs(schema["description"]), ""]
    lines += ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    for key, field in keys(model).items():
        value = schema["properties"][key]
        meaning = " ".join(value.get("description", "").split())
        lines.append(f"| `{key}` | {_value(value)} | {_default(field, value)} | {meaning} |")
    return "\n".join(lines) + "\n\n"


def _paragraphs(description: str) -> Iterator[str]:
    """One line for each paragraph, and for each item of a list."""
    for number, paragraph in enumerate(description.replace("``", "`").split("\n\n")):
        if number:
            yield ""
        for item in re.split(r"\n(?=- )", paragraph):
            yield " ".join(item.split())


# --------------------------------------------------------------------------- values, defaults


def _value(schema: Schema) -> str:
    """The allowed values, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if _is_size(schema):
        return "size"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_value(each) for each in _written(schema[several])))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if schema.get("pattern") == DURATION_PATTERN:
        return "duration"
    if kind == "array":
        return f"list of {_value(schema['items'])}"
    if kind in ("integer", "number"):
        return _number(schema)
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{_value(schema['additionalProperties'])} by name"
    return _KINDS.get(str(kind), "any")


def _written(alternatives: list[Schema]) -> list[Schema]:
    """Without null, which means that a key is left out."""
    return [each for each in alternatives if each.get("type") != "null"]


def _number(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None:
        return f"{least:g} to {most:g}"
    return "number" if least is None else f"{least:g} or more"


def _is_size(schema: Schema) -> bool:
    patterns = [each.get("pattern") for each in _written(schema.get("anyOf", []))]
    return SIZE_PATTERN in patterns


def _default(field: FieldInfo, schema: Schema) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "see below"
    if value is None or value in ({}, ()):
        return "none"
    return f"`{_shown(value, _value(schema))}`"


def _shown(value: Any, kind: str) -> str:
    """As users write it."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value)).replace("'", '"')
    if kind == "duration":
        return f"{value * 1000:g}ms" if 0 < value < 1 else _in_units(value, _TIMES, "s")
    if kind == "size":
        return _in_units(value, _SIZES, "")
    return str(value) if value != "" else "''"


def _in_units(value: float, units: Iterable[tuple[str, int]], smallest: str) -> str:
    whole = (f"{value / size:g}{unit}" for unit, size in units if value and not value % size)
    return next(whole, f"{value:g}{smallest}")


if __name__ == "__main__":
    for each in DOCUMENTS:
        (ROOT / each).write_text(text(read(each), each), encoding="utf-8")
        sys.stdout.write(f"{each} written\n")
