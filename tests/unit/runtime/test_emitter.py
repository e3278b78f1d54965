import asyncio
import logging
from typing import Any, ClassVar

import pytest

from broker_client.errors import UnknownNameError
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup


class Bell(Emitter):
    EVENTS: ClassVar[frozenset[str]] = frozenset({"ring", "error"})

    def __init__(self) -> None:
        self.tasks = TaskGroup("bell")
        super().__init__(self.tasks)

    def __repr__(self) -> str:
        return "<Bell>"


@pytest.fixture
def bell() -> Bell:
    return Bell()


def test_listeners_are_called_with_the_arguments_in_the_order_they_came(bell: Bell) -> None:
    heard: list[Any] = []
    bell.on("ring", lambda *args: heard.append((1, args)))
    bell.on("ring", lambda *args: heard.append((2, args)))
    assert bell.emit("ring", "a", 7)
    assert heard == [(1, ("a", 7)), (2, ("a", 7))]


def test_emit_says_whether_anybody_listens(bell: Bell) -> None:
    assert not bell.emit("ring")
    bell.on("ring", lambda: None)
    assert bell.emit("ring")


def test_on_returns_the_emitter_so_that_calls_chain(bell: Bell) -> None:
    heard: list[str] = []
    chained = bell.on("ring", lambda: heard.append("ring")).on("error", heard.append)
    assert chained is bell
    bell.emit("ring")
    bell.emit("error", "bad")
    assert heard == ["ring", "bad"]


def test_on_without_a_listener_is_a_decorator_that_leaves_the_function_as_it_is(
    bell: Bell,
) -> None:
    heard: list[int] = []

    @bell.on("ring")
    def listen(number: int) -> None:
        heard.append(number)

    listen(1)
    bell.emit("ring", 2)
    assert heard == [1, 2]


@pytest.mark.parametrize("method", ["on", "once"])
def test_unknown_event_is_refused_with_the_nearest_name(bell: Bell, method: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown event 'rin'; did you mean 'ring'\?"):
        getattr(bell, method)("rin", lambda: None)


def test_unknown_event_is_refused_as_the_decorator_is_applied(bell: Bell) -> None:
    with pytest.raises(UnknownNameError):

        @bell.on("rung")
        def listen() -> None: ...


def test_once_is_called_once(bell: Bell) -> None:
    heard: list[int] = []
    bell.once("ring", heard.append)
    bell.emit("ring", 1)
    bell.emit("ring", 2)
    assert heard == [1]
    assert not bell.has_listener("ring")


def test_once_that_emits_the_same_event_is_not_called_again(bell: Bell) -> None:
    heard: list[int] = []

    def again(number: int) -> None:
        heard.append(number)
        bell.emit("ring", number + 1)

    bell.once("ring", again)
    bell.emit("ring", 1)
    assert heard == [1]


def test_off_stops_a_listener_and_no_other(bell: Bell) -> None:
    heard: list[str] = []

    def first() -> None:
        heard.append("first")

    bell.on("ring", first).on("ring", lambda: heard.append("second"))
    assert bell.off("ring", first) is bell
    bell.emit("ring")
    assert heard == ["second"]


def test_off_for_a_function_that_never_listened_has_no_effect(bell: Bell) -> None:
    bell.off("ring", print)
    bell.on("ring", lambda: None).off("ring", print)
    assert bell.has_listener("ring")


def test_listener_that_leaves_while_the_event_goes_round_does_not_disturb_the_others(
    bell: Bell,
) -> None:
    heard: list[str] = []

    def leaves() -> None:
        heard.append("leaves")
        bell.off("ring", leaves)

    bell.on("ring", leaves).on("ring", lambda: heard.append("stays"))
    bell.emit("ring")
    bell.emit("ring")
    assert heard == ["leaves", "stays", "stays"]


def test_listener_that_raises_is_reported_and_the_next_is_called(
    bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    def broken() -> None:
        raise LookupError("lost")

    bell.on("ring", broken).on("ring", lambda: heard.append("next")).on("error", heard.append)
    assert bell.emit("ring")
    assert [str(item) for item in heard] == ["lost", "next"]
    assert "a listener of 'ring' raised" in caplog.text


def test_error_listener_that_raises_is_logged_and_not_called_again(
    bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Any] = []

    def broken(error: Exception) -> None:
        calls.append(error)
        raise LookupError("lost")

    bell.on("error", broken)
    assert bell.emit("error", ValueError("first"))
    assert len(calls) == 1
    assert "a listener of 'error' raised" in caplog.text


def test_error_without_a_listener_is_logged_and_not_raised(
    bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert not bell.emit("error", ValueError("bad"))
    assert "<Bell>: bad" in caplog.text


async def test_async_listener_runs_as_a_task_of_the_owner(bell: Bell) -> None:
    heard, go = list[int](), asyncio.Event()

    @bell.on("ring")
    async def listen(number: int) -> None:
        await go.wait()
        heard.append(number)

    bell.emit("ring", 1)
    assert len(bell.tasks) == 1
    assert heard == []
    go.set()
    assert await bell.tasks.wait(timeout=30)
    assert heard == [1]


async def test_async_listener_that_raises_is_reported(
    bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []

    @bell.on("ring")
    async def broken() -> None:
        raise LookupError("lost")

    bell.on("error", errors.append)
    bell.emit("ring")
    assert await bell.tasks.wait(timeout=30)
    assert [str(error) for error in errors] == ["lost"]
    assert "a listener of 'ring' raised" in caplog.text


async def test_async_listener_ends_with_its_owner(bell: Bell) -> None:
    bell.on("ring", asyncio.Event().wait)
    bell.emit("ring")
    await asyncio.sleep(0)
    await bell.tasks.cancel()
    assert len(bell.tasks) == 0
