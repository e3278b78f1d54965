"""Finds the program that a command was given as ``module:name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from broker_client.router import Router


class NoProgramError(Exception):
    """What was named cannot be run."""


def find_router(target: str) -> Router:
    """The router with a configuration that `target` names as ``module:name``.

    Raises:
        NoProgramError: there is none.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise NoProgramError(f"{target!r} names no program: write MODULE:NAME, such as app:router")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # an import of the program's own
        raise NoProgramError(f"there is no module {module_name!r} in {Path.cwd()}") from None
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not isinstance(found, Router) or found.config is None:
        raise NoProgramError(
            f"{target} is {type(found).__name__}; needed is a Router with a configuration: "
            "Router('app.yaml')"
        )
    return found
