"""A configuration being written: plain data with remarks, and its YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.-]*|\d+(\.\d+)?(ms|s)")
_NOT_TEXT = re.compile(r"(?i)null|true|false|yes|no|on|off|y|n|\.nan|[-+]?\.inf|[.\d_]+|~")
_WIDTH = 100


class Draft(dict[str, Any]):
    """A mapping with remarks, which are written as comments above its keys."""

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        super().__init__(content or {})
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(" ".join(text.split()))


def written(draft: Draft) -> str:
    """The YAML of `draft`, which `load_config` reads back as it is."""
    return "\n".join(_mapping(draft, 0)) + "\n"


def _mapping(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for note in getattr(value, "notes", ()):
        yield f"{pad}# {note}"
    for key, each in value.items():
        yield from _entry(f"{pad}{_text(key)}:", each, depth)


def _entry(head: str, value: object, depth: int) -> Iterator[str]:
    if value is None:
        yield head
        return
    line = f"{head} {_flow(value)}"
    if isinstance(value, Mapping | list) and value and (_has_notes(value) or len(line) > _WIDTH):
        yield head
        if isinstance(value, Mapping):
            yield from _mapping(value, depth + 1)
        else:
            yield from _items(value, depth + 1)
        return
    if _has_notes(value):  # remarks about nothing else
        yield from (f"{'  ' * depth}# {note}" for note in getattr(value, "notes", ()))
    yield line


def _items(value: list[Any], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for each in value:
        if not isinstance(each, Mapping) or not each:
            yield f"{pad}- {_flow(each)}"
            continue
        yield from (f"{pad}# {note}" for note in getattr(each, "notes", ()))
        first, *rest = _mapping(dict(each), depth + 1)
        yield f"{pad}- {first.lstrip()}"
        yield from rest


def _has_notes(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(getattr(value, "notes", ())) or any(map(_has_notes, value.values()))
    return isinstance(value, list) and any(map(_has_notes, value))


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{_text(key)}:" if each is None else f"{_text(key)}: {_flow(each)}"
            for key, each in value.items()
        )
        # A colon next to a brace would be part of a plain key.
        return f"{{{inner}{' ' if inner.endswith(':') else ''}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        # `load_config` fills in variables; two dollars are one.
        return _text(value.replace("$", "$$"))
    # Numbers, booleans and null look alike in JSON and YAML.
    return _number(value) if isinstance(value, float) else json.dumps(value)


def _number(value: float) -> str:
    text = repr(value)
    # YAML 1.1: an exponent needs a dot in front of it.
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def _text(text: str) -> str:
    """`text` as it is where YAML cannot take it for something else, or in quotes."""
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    # A string of JSON is one of YAML, but YAML folds or refuses some characters raw.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
