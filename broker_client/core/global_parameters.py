"""Global parameters: named values of users, for the whole broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from broker_client.core.names import name_problem
from broker_client.core.records import GlobalParameterRemoved, GlobalParameterSet
from broker_client.errors import InvalidParameterError

CLUSTER_NAME = "cluster_name"
INTERNAL_CLUSTER_ID = "internal_cluster_id"
"""RabbitMQ: identifies a cluster. Definitions carry it, and an import leaves it out."""

Note = Callable[[GlobalParameterSet | GlobalParameterRemoved], None]


class GlobalParameters:
    """RabbitMQ's global parameters. Values are those that JSON can have, None among them."""

    def __init__(self, note: Note) -> None:
        """
        Args:
            note: takes records of what must be kept.
        """
        self._note = note
        self._values: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(sorted(self._values.items()))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, `default` where there is none."""
        return self._values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Add a parameter, or replace its value.

        Raises:
            InvalidParameterError: no file could keep the name, or JSON has no such value.
        """
        if problem := parameter_problem(name, value):
            raise InvalidParameterError(name, [problem])
        self._values[name] = copied = json.loads(json.dumps(value))
        self._note(GlobalParameterSet(name, copied))

    def delete(self, name: str) -> bool:
        """Delete a parameter; returns False where there is none of that name."""
        if name not in self._values:
            return False
        del self._values[name]
        self._note(GlobalParameterRemoved(name))
        return True

    def restore(self, name: str, value: Any) -> None:
        """Restore parameters from a store."""
        self._values[name] = value


def parameter_problem(name: str, value: Any) -> str | None:
    """What is wrong with the parameter, or None."""
    if not name:
        return "its name is empty"
    if problem := name_problem(name):
        return f"its name {problem}"
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return f"{value!r:.60} is not a JSON value"
    return None
