"""Finds the program that a command was given as ``module:name``."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from broker_client.broker import Broker
from broker_client.router import Router

_NEEDED = (
    "needed is a Router with a configuration, Router('app.yaml'); Broker.create('app.yaml'); "
    "or a function without arguments that returns one of them"
)


class NoProgramError(Exception):
    """The named object cannot be run."""


def find_program(target: str) -> object:
    """What `target` names as ``module:name``.

    Raises:
        NoProgramError: there is no such module or name.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise NoProgramError(f"{target!r} names no program: write MODULE:NAME, such as app:router")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # an import of the program's own
        raise NoProgramError(f"there is no module {module_name!r} in {Path.cwd()}") from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NoProgramError(f"module {module_name!r} has no {name!r}; {_NEEDED}") from None
    return found


def find_router(target: str) -> Router:
    """The router with a configuration that `target` names, or that the function it names returns.

    Raises:
        NoProgramError: there is none.
    """
    made = _made(target, find_program(target))
    if inspect.iscoroutine(made):
        made.close()
        raise NoProgramError(
            f"{target} is async and may connect to a broker; needed is a Router with a "
            "configuration, or a plain function that returns one"
        )
    if not isinstance(made, Router):
        raise NoProgramError(f"{target}: {_kind(made)} has no handlers to describe; name a Router")
    return _with_configuration(target, made)


async def make_program(target: str, found: object) -> Router | Broker:
    """The router with a configuration, or the open Broker, that `found` is or makes.

    Args:
        target: what named it, for errors.
        found: a Router, what `Broker.create` returns, or a function that returns one of them or
            an open Broker, possibly async.

    Raises:
        NoProgramError: it is something else.
        WrongLoopError: it makes a Broker that is not open, or belongs to another event loop.
    """
    if isinstance(found, Broker):
        raise NoProgramError(
            f"{target} is a Broker that exists already, but a Broker works only in the event loop "
            f"in which it was created; {_NEEDED}"
        )
    made = _made(target, found)
    while inspect.isawaitable(made):
        made = await made
    if isinstance(made, Broker):
        made.middleware("publish")  # adds none; raises unless it is open here
        return made
    return _with_configuration(target, made)


def _made(target: str, found: object) -> object:
    """`found`, or what it returns if it is a function."""
    if not callable(found) or isinstance(found, Router):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        text = f"{target} is called without arguments, but takes some ({error})"
        raise NoProgramError(text) from None
    return found()


def _with_configuration(target: str, made: object) -> Router:
    if not isinstance(made, Router):
        raise NoProgramError(f"{target} is or returns {_kind(made)}; {_NEEDED}")
    if made.config is None:
        raise NoProgramError(f"{target} is or returns a Router without a configuration; {_NEEDED}")
    return made


def _kind(made: object) -> str:
    return f"an object of the type {type(made).__name__}"
