"""Handlers as plain functions: returning acks, raising recovers, annotations are checked.

``@broker.handle("orders")`` takes ``handler(content)`` or ``handler(content, message)``, async
or not; a plain function runs in a thread, so that it may block. When `content` is annotated with
anything pydantic can check (a model, a dataclass, ``dict[str, int]``), the body is validated, and
one that does not fit is invalid content: it is never handed over and goes the way of a body that
is not JSON. What the handler returns answers the message, if that asks for an answer
(`reply_to`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from broker_client.ackornack import AckOrNack
from broker_client.codec import content as contents
from broker_client.consuming.checks import Refusal, unreadable
from broker_client.errors import InvalidContentError, InvalidHandlerError
from broker_client.message import Message, Outgoing, Properties
from broker_client.publishing.publisher import Publisher

Handler = Callable[..., Any]


def listener_from(
    handler: Handler, publisher: Publisher
) -> Callable[[Message, Any, AckOrNack], Awaitable[Refusal | None]]:
    """A `message` listener that calls `handler`.

    It returns a `Refusal` for a body that does not fit the annotation, and calls nobody then.

    Args:
        handler: ``(content)`` or ``(content, message)``.
        publisher: sends what the handler returned, for messages with a `reply_to`.

    Raises:
        InvalidHandlerError: it takes another number of arguments.
    """
    wants_message = _wants_message(handler)
    check = _content_check(handler)
    is_async = inspect.iscoroutinefunction(handler)

    async def listen(message: Message, content: Any, ack_or_nack: AckOrNack) -> Refusal | None:
        if check is not None:
            try:
                content = check(content)
            except ValidationError as error:
                return unreadable(_invalid(message, error))
        arguments = (content, message) if wants_message else (content,)
        if is_async:
            result = await handler(*arguments)
        else:
            result = await asyncio.to_thread(_called, handler, *arguments)
        if result is not None and message.properties.reply_to:
            await publisher.republish(message.vhost, _answer(message, result))
        if not ack_or_nack.is_begun:
            await ack_or_nack()
        return None

    return listen


def _answer(message: Message, result: Any) -> Outgoing:
    """What tells the sender of `message` the result; dropped when its reply queue is gone."""
    body, content_type = contents.encode(result)
    asked = message.properties
    properties = Properties(
        content_type=content_type,
        correlation_id=asked.correlation_id or asked.message_id,
        message_id=uuid4().hex,
    )
    return Outgoing("", asked.reply_to or "", body, properties)


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


def _called(handler: Handler, *arguments: Any) -> Any:
    """In a thread. A future cannot hold a StopIteration, and would never be done."""
    try:
        return handler(*arguments)
    except StopIteration as error:  # as out of a coroutine (PEP 479)
        raise RuntimeError("handler raised StopIteration") from error


def _wants_message(handler: Handler) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidHandlerError(repr(handler), str(error)) from error
    positional = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    needed = [each for each in positional if each.default is each.empty]
    required_by_name = [
        each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    ]
    if not positional or len(needed) > 2 or required_by_name:
        raise InvalidHandlerError(
            _name(handler),
            "write it as handler(content) or handler(content, message)",
        )
    return len(needed) == 2


def _content_check(handler: Handler) -> Callable[[Any], Any] | None:
    """What validates the content, when the first parameter's annotation asks for it."""
    is_plain = inspect.isfunction(handler) or inspect.ismethod(handler)
    target: Any = handler if is_plain else type(handler).__call__
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError as error:
        raise InvalidHandlerError(_name(handler), str(error)) from error
    name = next(iter(inspect.signature(handler).parameters))
    annotation = hints.get(name, Any)
    if annotation in (Any, object):
        return None
    return TypeAdapter(annotation).validate_python


def _invalid(message: Message, error: ValidationError) -> InvalidContentError:
    """Where and why the content does not fit; never the content itself."""
    problems = "; ".join(
        f"{'.'.join(str(part) for part in each['loc']) or 'content'}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )
    return InvalidContentError(message.content_type or "content", problems)
