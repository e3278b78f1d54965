"""How a handler is called, and the types of its content and result, as its signature says."""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from broker_client.codec.models import adapter_of
from broker_client.consuming.dependencies import dependencies_of
from broker_client.errors import InvalidHandlerError
from broker_client.message import Message

Handler = Callable[..., Any]

_ANY = (Any, object)
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY

_ALLOWED = (
    "write it as handler(content), handler(content, message) or handler(message: Message, content)"
)


def name_of(handler: Handler) -> str:
    return str(getattr(handler, "__qualname__", repr(handler)))


class HandlerCall(NamedTuple):
    """How a handler is called."""

    content: str | None
    """Parameter that takes the content."""
    message: str | None
    """Parameter that takes the message."""
    by_position: list[str]
    by_name: list[str]
    check: Callable[[Any], Any] | None
    """Validates the content, when its parameter's annotation asks for it."""
    has_dependencies: bool = False
    """True where fast-depends gives it further arguments."""


def call_of(handler: Handler, *, of_lists: bool = False) -> HandlerCall:
    try:
        parameters = dict(inspect.signature(handler).parameters)
    except (TypeError, ValueError) as error:
        raise InvalidHandlerError(repr(handler), str(error)) from error
    hints = hints_of(handler)
    message_name = "message"
    if of_lists:
        message_name = "messages"
    dependencies = dependencies_of(parameters, hints)
    named = {
        name: each
        for name, each in parameters.items()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and name not in dependencies
    }
    if of_lists:
        hints = {
            name: _item_of(handler, name, hint) for name, hint in hints.items() if name in named
        }
    if not named and any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):
        return HandlerCall("content", None, ["content"], [], None)  # a decorator's, most likely
    messages = [name for name in named if _is_message(hints.get(name))]
    if not messages and message_name in named and hints.get(message_name, Any) in _ANY:
        messages = [message_name]
    if len(messages) > 1:
        raise InvalidHandlerError(name_of(handler), f"two arguments take the message; {_ALLOWED}")
    others = [name for name in named if name not in messages]
    needed = [name for name in others if named[name].default is inspect.Parameter.empty]
    content = next(iter(needed or others), None)
    rest = [name for name in needed if name != content]
    in_order = [name for name in rest if named[name].kind is not inspect.Parameter.KEYWORD_ONLY]
    if not messages and len(rest) == len(in_order) == 1 and hints.get(rest[0], Any) in _ANY:
        messages, rest = rest, []  # the documented order: handler(content, message)
    if rest or not (content or messages):
        raise InvalidHandlerError(name_of(handler), _ALLOWED)
    if not needed and messages:
        content = None  # others have defaults of their own
    taken = [name for name in named if name in (content, *messages)]
    by_name = [name for name in taken if named[name].kind is inspect.Parameter.KEYWORD_ONLY]
    by_position = [name for name in taken if name not in by_name]
    in_front = [name for name in named if name not in by_name][: len(by_position)]
    if by_position != in_front:  # one with a default stands between them
        by_name += [n for n in by_position if named[n].kind is not _POSITIONAL_ONLY]
        by_position = [n for n in by_position if named[n].kind is _POSITIONAL_ONLY]
    check = None if content is None else content_check(handler, hints.get(content, Any))
    message = next(iter(messages), None)
    return HandlerCall(content, message, by_position, by_name, check, bool(dependencies))


def _item_of(handler: Handler, name: str, annotation: Any) -> Any:
    """The type of the list's items, for a handler of a subscription with `batch`."""
    if name == "return" or annotation in _ANY:
        return Any
    if annotation is list:
        return Any
    if get_origin(annotation) not in (list, Sequence):
        raise InvalidHandlerError(
            name_of(handler),
            f"its subscription has a batch: annotate {name!r} as a list, such as list[dict]",
        )
    return get_args(annotation)[0]


def hints_of(handler: Handler) -> dict[str, Any]:
    target: Any = inspect.unwrap(handler)
    while isinstance(target, functools.partial):
        target = target.func
    if not (inspect.isroutine(target)):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidHandlerError(name_of(handler), str(error)) from error


def _is_message(annotation: Any) -> bool:
    """True for `Message`, a subclass of it, and either of them or None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is_message(each) for each in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Message)


def content_check(handler: Handler, annotation: Any) -> Callable[[Any], Any] | None:
    """A function that converts a content to the type `annotation`; None if the annotation accepts
    anything.

    Contents other than bytes were decoded from JSON and are validated as JSON: a strict model
    accepts the UUIDs, times, tuples and enumerations that the same model has written.

    Raises:
        InvalidHandlerError: pydantic cannot check a content against it.
    """
    if annotation in _ANY:
        return None
    try:
        adapter = adapter_of(annotation)
    except ValueError as error:
        raise InvalidHandlerError(
            name_of(handler),
            f"{error}; annotate it as Any, or with a model, a dataclass or a built-in type",
        ) from error

    def check(content: Any) -> Any:
        if isinstance(content, bytes):
            return adapter.validate_python(content)
        return adapter.validate_json(json.dumps(content))

    return check


class HandlerTypes(NamedTuple):
    """The annotated types of a handler; None for missing annotations."""

    content: Any
    result: Any


def types_of(handler: Handler, *, of_lists: bool = False) -> HandlerTypes:
    """The types of a handler's content and result, as it is annotated.

    Args:
        handler: a function of the content, the message, or both.
        of_lists: its subscription has a `batch`, so the handler takes lists.

    Raises:
        InvalidHandlerError: its parameters are ambiguous or unsupported.
    """
    call = call_of(handler, of_lists=of_lists)
    hints = hints_of(handler)
    content = hints.get(call.content) if call.content is not None else None
    if of_lists and content is not None and call.content is not None:
        content = _item_of(handler, call.content, content)
    result = hints.get("return")
    return HandlerTypes(
        *(None if each in (*_ANY, type(None)) else each for each in (content, result))
    )
