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

import inspect
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from broker_client.ackornack import AckOrNack
from broker_client.codec.models import complaints
from broker_client.config import Replies
from broker_client.consuming import replies
from broker_client.consuming.batches import Batches, Run
from broker_client.consuming.checks import DeliveryRefusal, unreadable
from broker_client.consuming.dependencies import with_dependencies
from broker_client.consuming.handle_call import HandlerChain, Invoke
from broker_client.consuming.handler_signature import (
    Handler,
    HandlerCall,
    call_of,
    hints_of,
    name_of,
)
from broker_client.consuming.threads import HandlerThreads
from broker_client.errors import InvalidContentError, InvalidHandlerError
from broker_client.message import Message
from broker_client.publishing.publisher import Publisher
from broker_client.publishing.template import PublishOverrides


def listener_from(
    handler: Handler,
    publisher: Publisher,
    threads: HandlerThreads,
    answers: Replies = "all",
    chain: HandlerChain | None = None,
    batches: Callable[[Run], Batches] | None = None,
    onward: Onward | None = None,
) -> Callable[[Message, Any, AckOrNack], Awaitable[DeliveryRefusal | None]]:
    """A `message` listener that calls `handler`.

    For a body that does not match the annotation, it returns a `DeliveryRefusal`, and does not
    call the handler.

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
    call = call_of(handler, of_lists=batches is not None)
    invoke = _invoker(handler, call, threads)
    if batches is not None:
        if onward is not None:
            text = "its subscription has a batch, so there is no result of one message to publish"
            raise InvalidHandlerError(name_of(handler), text)
        invoke = batches(_of_lists(invoke))
    if chain is not None:
        invoke = chain.around(invoke)
    if onward is not None:
        invoke = onward.around(invoke)

    async def listen(
        message: Message, content: Any, ack_or_nack: AckOrNack
    ) -> DeliveryRefusal | None:
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


def _invoker(handler: Handler, call: HandlerCall, threads: HandlerThreads) -> Invoke:
    """A function that calls `handler` with its arguments; chosen once, not for each message."""
    if call.has_dependencies:
        handler = with_dependencies(handler, hints_of(handler))

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
            name_of(listener),
            "it is called as handler(message, content, ack_or_nack); for handler(content) there "
            f"is the decorator broker.handle ({error})",
        ) from None


def _invalid(message: Message, error: ValidationError) -> InvalidContentError:
    """Where and why the content is invalid, without the content itself."""
    return InvalidContentError(message.content_type or "content", complaints(error))
