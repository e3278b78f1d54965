"""A configuration as written: plain data that remembers where each value stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, SecretStr

from broker_client.config.problems import Key, dotted
from broker_client.errors import Problem

FREE_FORM = frozenset({"arguments", "headers"})
"""Keys whose content belongs to the broker or the user: it has no model that fixes its types."""


MAX_DEPTH = 64


class Spot(NamedTuple):
    """Where a value stands."""

    line: int | None = None
    path: str | None = None
    """The printed path, where it is not just the parent's path and the key."""


class Section(dict[str, Any]):
    """A mapping with the spots of its keys."""

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        super().__init__(content or {})
        self.spots: dict[Key, Spot] = dict(getattr(content, "spots", {}))

    def put(self, key: str, value: object, spot: Spot) -> None:
        self[key] = value
        self.spots[key] = spot

    def spot(self, key: str) -> Spot:
        return self.spots.get(key, Spot())


class Items(list[Any]):
    """A list with the spots of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.spots: dict[Key, Spot] = {}

    def add(self, value: object, spot: Spot) -> None:
        self.spots[len(self)] = spot
        self.append(value)


def locate(tree: object, path: Sequence[Key]) -> tuple[str, int | None]:
    """The printed path of a value of `tree`, and its line or the nearest one above it."""
    shown, line, here = "", None, tree
    for key in path:
        spot = here.spots.get(key, Spot()) if isinstance(here, Section | Items) else Spot()
        line = spot.line or line
        shown = spot.path if spot.path is not None else joined(shown, key)
        here = _step(here, key)
    return shown, line


def joined(path: str, key: Key) -> str:
    return dotted((path, key)) if path else dotted((key,))


def _step(here: object, key: Key) -> object:
    if isinstance(here, Section):
        return here.get(str(key))
    if isinstance(here, Items) and isinstance(key, int) and key < len(here):
        return here[key]
    return None


def merged(value: Section, defaults: Section, path: str) -> Section:
    """`value` filled up from `defaults`, section by section. Lists and values replace.

    Args:
        value: what the user wrote; null counts as not written.
        defaults: what fills the gaps.
        path: printed path of `defaults`, for complaints about what came from there.
    """
    result = Section()
    for key in [*value, *(key for key in defaults if key not in value)]:
        mine, theirs = value.get(key), defaults.get(key)
        if isinstance(mine, Section) and isinstance(theirs, Section):
            result.put(key, merged(mine, theirs, joined(path, key)), value.spot(key))
        elif mine is not None or (key in value and key not in defaults):
            result.put(key, mine, value.spot(key))
        else:
            spot = defaults.spot(key)
            result.put(key, theirs, spot._replace(path=spot.path or joined(path, key)))
    return result


def stated(section: Section) -> set[str]:
    """The keys of `section` that have a value; an empty one counts as not written."""
    return {key for key, value in section.items() if value is not None}


# --------------------------------------------------------------------------- environment

_START = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)?(\}|:-)?")
_NESTED = re.compile(r"\$\$|\$\{|\}")


def expanded(text: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """`text` with ``${NAME}`` and ``${NAME:-default}`` filled in, and what is wrong with it.

    A default may hold variables in its turn; it is looked at where it is needed only.
    """
    done, complaint = "", None
    while (match := _START.search(text)) is not None:
        done, text, begin = done + text[: match.start()], text[match.end() :], match[0]
        name = match[1]
        if begin == "$$":
            done += "$"
        elif name is not None and match[2] == "}":
            if name not in environ:
                complaint = complaint or (
                    f"environment variable {name} is not set; set it or write ${{{name}:-default}}"
                )
            done += environ.get(name, "")
        elif name is not None and match[2] == ":-" and (end := _end_of_default(text)) >= 0:
            default, text = text[:end], text[end + 1 :]
            value = environ.get(name)  # as in a shell, an empty variable counts as unset
            if not value:
                value, wrong = expanded(default, environ)
                complaint = complaint or wrong
            done += value
        else:
            complaint = complaint or (
                "'${' does not begin a variable; write ${NAME}, ${NAME:-default} or $${"
            )
            done += begin
    return done + text, complaint


def _end_of_default(text: str) -> int:
    """Where the ``}`` stands that ends a variable whose default `text` begins with, or -1."""
    depth = 0
    for match in _NESTED.finditer(text):
        if match[0] == "}":
            if not depth:
                return match.start()
            depth -= 1
        elif match[0] == "${":
            depth += 1
            if depth > MAX_DEPTH:
                break
    return -1


# --------------------------------------------------------------------------- reading


class Reader:
    """Builds the tree of one source and collects what is wrong with it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._environ = environ

    def from_mapping(self, value: Mapping[str, Any]) -> Section:
        """The tree of a mapping made in Python; it has no lines."""
        return cast(Section, self._plain(value, ()))

    def _plain(self, value: object, path: tuple[Key, ...]) -> object:
        if isinstance(value, BaseModel | SecretStr):
            return value
        if len(path) > MAX_DEPTH:
            message = f"is nested more than {MAX_DEPTH} levels deep"
            self.problems.append(Problem(dotted(path[:4]), message))
            return None
        if isinstance(value, Mapping):
            section = Section()
            for key, each in value.items():
                section.put(str(key), self._plain(each, (*path, str(key))), Spot())
            return section
        if isinstance(value, list | tuple):
            items = Items()
            for index, each in enumerate(value):
                items.add(self._plain(each, (*path, index)), Spot())
            return items
        if isinstance(value, str) and "$" in value:
            return self.expand(value, path, None)
        return value

    def expand(self, text: str, path: tuple[Key, ...], line: int | None) -> str:
        """`text`, which stands at `path`, with its variables filled in."""
        result, complaint = expanded(text, self._environ)
        if complaint is not None:
            self.problems.append(Problem(dotted(path), complaint, line=line))
        return result
