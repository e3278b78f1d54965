"""One object of a file of definitions, whose values are checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from broker_client.runtime.slotted import slotted

T = TypeVar("T")

_REQUIRED: Any = object()


@slotted(frozen=False)
class Item:
    """One object of a section, and where it stands."""

    path: str
    values: Mapping[str, Any]
    problems: list[str]
    known: set[str] = field(default_factory=set)
    is_right: bool = True

    def problem(self, key: str, why: str) -> None:
        """Note what is wrong with the value of `key`, or with all of it where that is empty."""
        self.problems.append(f"{self.path}.{key}: {why}" if key else f"{self.path}: {why}")
        self.is_right = False

    def get(self, key: str, type: type[T], default: Any = _REQUIRED) -> T:
        """The value of `key`; noted as a problem where it is missing or of another type."""
        self.known.add(key)
        value = self.values.get(key, default)
        if value is _REQUIRED:
            self.problem(key, f"is missing; it is {_WORDS[type]}")
        elif not isinstance(value, type) or (isinstance(value, bool) and type is not bool):
            self.problem(key, f"{value!r:.60} is not {_WORDS[type]}")
        else:
            return value
        return type()

    def others(self) -> Iterator[tuple[str, Any]]:
        """What nobody has asked for."""
        return ((key, value) for key, value in self.values.items() if key not in self.known)


_WORDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
    list: "a list",
}
