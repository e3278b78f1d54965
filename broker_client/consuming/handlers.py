"""Handlers as plain functions: ack on return, recovery on error, validated annotations.

``@broker.handle("orders")`` takes a function of the content, of the `Message`, or of both: the
message goes to the parameter that is annotated as `Message` or called ``message``, the content to
the other. Without either, the content comes first. When the content's parameter is annotated with
anything pydantic can check (a model, a dataclass, ``dict[str, int]``), the body is validated, and a
body that does not match is invalid content: it never reaches the handler and is treated like a body
that is not JSON.

Coroutine functions run in the event loop. Other functions run in a thread of the subscription,
so they may block; an awaitable result is awaited. If the message asks for an answer
(`reply_to`), the result is the answer; None is an answer without content, and a message that
recovery gives up is answered with the class of its error (`replies` of the subscription).
"""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from broker_client.ackornack import AckOrNack
from broker_client.codec.models import adapter_of, complaints
from broker_client.config import Replies
from broker_client.consuming import replies
from broker_client.consuming.batches import Batches, Run
from broker_client.consuming.checks import Refusal, unreadable
from broker_client.consuming.dependencies import dependencies_of, with_dependencies
from broker_client.consuming.handle_call import HandlerChain, Invoke
from broker_client.consuming.threads import HandlerThreads
from broker_client.errors import InvalidContentError, InvalidHandlerError
from broker_client.message import Message
from broker_client.publishing.publisher import Publisher
from broker_client.publishing.template import PublishOverrides

Handler = Callable[..., Any]

_ANY = (Any, object)
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY

_ALLOWED = (
    "write it as handler(content), handler(content, message) or handler(message: Message, content)"
)


def listener_from(
    handler: Handler,
    publisher: Publisher,
    threads: HandlerThreads,
    answers: Replies = "all",
    chain: HandlerChain | None = None,
    batches: Callable[[Run], Batches] | None = None,
    onward: Onward | None = None,
) -> Callable[[Message, Any, AckOrNack], Awaitable[Refusal | None]]:
    """A `message` listener that calls `handler`.

    For a body that does not match the annotation, it returns a `Refusal` without calling the
    handler.

    Args:
        handler: a function of the content, the message, or both.
        publisher: sends what the handler returned, for messages with a `reply_to`.
        answers: which of those get an answer.
        threads: run handlers that are not coroutine functions.
        chain: middleware around the handler, inside the check of its content and before the ack.
        batches: makes what collects messages, for a handler of lists.
        onward: publishes what the handler returned.

    Raises:
        InvalidHandlerError: its parameters are ambiguous or unsupported.
    """
    call = _call_of(handler, of_lists=batches is not None)
    invoke = _invoker(handler, call, threads)
    if batches is not None:
        if onward is not None:
            text = "its subscription has a batch, so there is no result of one message to publish"
            raise InvalidHandlerError(_name(handler), text)
        invoke = batches(_of_lists(invoke))
    if chain is not None:
        invoke = chain.around(invoke)
    if onward is not None:
        invoke = onward.around(invoke)

    async def listen(message: Message, content: Any, ack_or_nack: AckOrNack) -> Refusal | None:
        if call.check is not None:
            try:
                content = call.check(content)
            except ValidationError as error:
                return unreadable(_invalid(message, error))
        result = await invoke(message, content, ack_or_nack)
        answers_it = answers == "all" or (answers == "results" and result is not None)
        if answers_it and message.properties.reply_to:
            await publisher.republish(message.vhost, replies.answer(message, result))
        if not ack_or_nack.is_begun:
            await ack_or_nack()
        return None

    return listen


class Onward:
    """Publishes results of handlers, each confirmed before its message is acked."""

    def __init__(self, publisher: Publisher, publication: str, subscription: str) -> None:
        """
        Args:
            publisher: that publishes.
            publication: name of the publication.
            subscription: name of the subscription of the handler.

        Raises:
            UnknownNameError: no such publication.
        """
        publisher.check_publication(publication)
        self._publisher = publisher
        self._publication = publication
        self._subscription = subscription

    def around(self, invoke: Invoke) -> Invoke:
        """A function that calls a handler by `invoke`, and publishes its result."""

        async def call(message: Message, content: Any, ack_or_nack: AckOrNack) -> Any:
            result = await invoke(message, content, ack_or_nack)
            if result is not None:
                await self._publish(message, result)
            return result

        return call

    async def _publish(self, message: Message, result: Any) -> None:
        """Returns once it is confirmed.

        A message that is handled again gives its result the same message id.
        """
        properties = message.properties
        overrides: PublishOverrides = {}
        if properties.message_id:
            origin = f"{self._subscription}/{self._publication}/{properties.message_id}"
            overrides["message_id"] = sha256(origin.encode()).hexdigest()[:32]
        if correlation_id := properties.correlation_id or properties.message_id:
            overrides["correlation_id"] = correlation_id
        await (await self._publisher.publish(self._publication, result, None, overrides))


def _invoker(handler: Handler, call: _Call, threads: HandlerThreads) -> Invoke:
    """A function that calls `handler` with its arguments; chosen once, not for each message."""
    if call.has_dependencies:
        handler = with_dependencies(handler, _hints(handler))

    def arguments(message: Message, content: Any) -> tuple[list[Any], dict[Any, Any]]:
        given: dict[Any, Any] = {call.content: content, call.message: message}
        if call.has_dependencies:  # which may take what the handler itself does not
            given = {call.content or "content": content, call.message or "message": message}
            return [], given
        return [given[name] for name in call.by_position], {n: given[n] for n in call.by_name}

    async def in_thread(message: Message, content: Any, ack_or_nack: AckOrNack) -> Any:
        in_order, by_name = arguments(message, content)
        result = await threads.run(handler, *in_order, **by_name)
        return await result if inspect.isawaitable(result) else result

    def in_loop(message: Message, content: Any, ack_or_nack: AckOrNack) -> Awaitable[Any]:
        in_order, by_name = arguments(message, content)
        return handler(*in_order, **by_name)  # type: ignore[no-any-return] # a coroutine

    def with_content(message: Message, content: Any, ack_or_nack: AckOrNack) -> Awaitable[Any]:
        return handler(content)  # type: ignore[no-any-return] # a coroutine

    if not is_coroutine_function(handler):
        return in_thread
    is_plain = call.by_position == [call.content] and not call.by_name
    return with_content if is_plain and not call.has_dependencies else in_loop


def _of_lists(invoke: Callable[..., Awaitable[Any]]) -> Run:
    """The same for a batch: its handler settles nothing."""

    def run(messages: list[Message], contents: list[Any]) -> Awaitable[Any]:
        return invoke(messages, contents, None)

    return run


def is_coroutine_function(handler: Handler) -> bool:
    """True if calling `handler` only creates a coroutine, and so does not block."""
    if inspect.iscoroutinefunction(handler):
        return True
    return not inspect.isroutine(handler) and inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - what a call runs
    )


def check_listener(listener: Callable[..., Any]) -> None:
    """Refuse a `message` listener that cannot be called with a message.

    Raises:
        InvalidHandlerError: it takes other arguments than (message, content, ack_or_nack).
    """
    try:
        inspect.signature(listener).bind(None, None, None)
    except ValueError:
        pass  # something built in that does not tell
    except TypeError as error:
        raise InvalidHandlerError(
            _name(listener),
            "it is called as handler(message, content, ack_or_nack); for handler(content) there "
            f"is the decorator broker.handle ({error})",
        ) from None


def _name(handler: Handler) -> str:
    return str(getattr(handler, "__qualname__", repr(handler)))


class _Call(NamedTuple):
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


def _call_of(handler: Handler, *, of_lists: bool = False) -> _Call:
    try:
        parameters = dict(inspect.signature(handler).parameters)
    except (TypeError, ValueError) as error:
        raise InvalidHandlerError(repr(handler), str(error)) from error
    hints = _hints(handler)
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
        return _Call("content", None, ["content"], [], None)  # a decorator's, most likely
    messages = [name for name in named if _is_message(hints.get(name))]
    if not messages and message_name in named and hints.get(message_name, Any) in _ANY:
        messages = [message_name]
    if len(messages) > 1:
        raise InvalidHandlerError(_name(handler), f"two arguments take the message; {_ALLOWED}")
    others = [name for name in named if name not in messages]
    needed = [name for name in others if named[name].default is inspect.Parameter.empty]
    content = next(iter(needed or others), None)
    rest = [name for name in needed if name != content]
    in_order = [name for name in rest if named[name].kind is not inspect.Parameter.KEYWORD_ONLY]
    if not messages and len(rest) == len(in_order) == 1 and hints.get(rest[0], Any) in _ANY:
        messages, rest = rest, []  # the documented order: handler(content, message)
    if rest or not (content or messages):
        raise InvalidHandlerError(_name(handler), _ALLOWED)
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
    return _Call(content, message, by_position, by_name, check, bool(dependencies))


def _item_of(handler: Handler, name: str, annotation: Any) -> Any:
    """The type of the list's items, for a handler of a subscription with `batch`."""
    if name == "return" or annotation in _ANY:
        return Any
    if annotation is list:
        return Any
    if get_origin(annotation) not in (list, Sequence):
        raise InvalidHandlerError(
            _name(handler),
            f"its subscription has a batch: annotate {name!r} as a list, such as list[dict]",
        )
    return get_args(annotation)[0]


def _hints(handler: Handler) -> dict[str, Any]:
    target: Any = inspect.unwrap(handler)
    while isinstance(target, functools.partial):
        target = target.func
    if not (inspect.isroutine(target)):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidHandlerError(_name(handler), str(error)) from error


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
            _name(handler),
            f"{error}; annotate it as Any, or with a model, a dataclass or a built-in type",
        ) from error

    def check(content: Any) -> Any:
        if isinstance(content, bytes):
            return adapter.validate_python(content)
        return adapter.validate_json(json.dumps(content))

    return check


def _invalid(message: Message, error: ValidationError) -> InvalidContentError:
    """Where and why the content is invalid, without the content itself."""
    return InvalidContentError(message.content_type or "content", complaints(error))


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
    call = _call_of(handler, of_lists=of_lists)
    hints = _hints(handler)
    content = hints.get(call.content) if call.content is not None else None
    if of_lists and content is not None and call.content is not None:
        content = _item_of(handler, call.content, content)
    result = hints.get("return")
    return HandlerTypes(
        *(None if each in (*_ANY, type(None)) else each for each in (content, result))
    )
