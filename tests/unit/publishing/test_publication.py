import asyncio
import gc
import logging
from typing import Any

import pytest

from broker_client.errors import PublishAbortedError, PublishError, PublishNackedError
from broker_client.message import Outgoing, Properties, Returned
from broker_client.publication import Origin, Outcome, Publication
from broker_client.runtime.tasks import TaskGroup
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class Withdrawals(list[PublishError]):
    """The errors with which a publication asked to be withdrawn; each is granted."""

    def __call__(self, publication: Publication, error: PublishError) -> bool:
        self.append(error)
        return True


@pytest.fixture
def withdrawals() -> Withdrawals:
    return Withdrawals()


@pytest.fixture
def publication(withdrawals: Withdrawals) -> Publication:
    return a_publication(withdrawals)


def a_publication(withdrawals: Withdrawals, *, timeout: float = 10.0) -> Publication:
    outgoing = Outgoing("orders", "placed", b"x", Properties(message_id="m1"))
    origin = Origin("orders", withdrawals, TaskGroup("test"))
    return Publication(origin, outgoing, 1_000.0, timeout)


NACKED = PublishNackedError("orders", "m1", "orders", "placed")
RETURNED = Returned(312, "NO_ROUTE", "orders", "placed", b"x", Properties(message_id="m1"))


def listen(publication: Publication) -> list[tuple[Any, ...]]:
    heard: list[tuple[Any, ...]] = []
    publication.on("success", lambda *args: heard.append(("success", *args)))
    publication.on("return", lambda *args: heard.append(("return", *args)))
    publication.on("error", lambda *args: heard.append(("error", *args)))
    publication.on("paused", lambda *args: heard.append(("paused", *args)))
    return heard


async def test_success_tells_the_message_id(publication: Publication) -> None:
    heard = listen(publication)
    publication.succeed(1_002.5)
    assert heard == [("success", "m1")]
    assert await publication == Outcome("m1", 2.5, False)


async def test_error_tells_the_error_and_the_message_id(publication: Publication) -> None:
    heard = listen(publication)
    publication.fail(NACKED)
    assert heard == [("error", NACKED, "m1")]


async def test_return_tells_the_returned_message(publication: Publication) -> None:
    heard = listen(publication)
    publication.give_back(NACKED, RETURNED)
    assert heard == [("return", RETURNED)]


async def test_listener_that_comes_late_is_told_the_end_it_missed_once(
    publication: Publication,
) -> None:
    early, late = listen(publication), list[str]()
    publication.succeed(1_001.0)
    publication.on("success", late.append)
    assert late == []
    await settle()
    assert (early, late) == ([("success", "m1")], ["m1"])


async def test_listener_that_comes_late_for_another_end_hears_nothing(
    publication: Publication,
) -> None:
    publication.succeed(1_001.0)
    heard: list[Any] = []
    publication.on("error", lambda *args: heard.append(args))
    publication.on("return", heard.append)
    await settle()
    assert heard == []


async def test_late_listener_taken_off_before_it_was_told_hears_nothing(
    publication: Publication,
) -> None:
    publication.succeed(1_001.0)
    heard: list[str] = []
    publication.on("success", heard.append).off("success", heard.append)
    await settle()
    assert heard == []


async def test_listener_that_comes_while_it_is_paused_is_told_so(
    publication: Publication, withdrawals: Withdrawals
) -> None:
    publication.pause()
    heard: list[str] = []
    publication.on("paused", heard.append)
    await settle()
    assert heard == ["m1"]


async def test_once_for_paused_that_comes_late_is_reported_once(
    publication: Publication, withdrawals: Withdrawals
) -> None:
    publication.pause()
    heard: list[str] = []
    publication.once("paused", heard.append)
    await settle()
    publication.pause()
    assert heard == ["m1"]


async def test_listener_that_raises_does_not_make_a_second_end(
    publication: Publication, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message_id: str) -> None:
        raise LookupError("mine")

    errors: list[Any] = []
    publication.on("success", fail).on("error", lambda *args: errors.append(args))
    with caplog.at_level(logging.ERROR):
        publication.succeed(1_001.0)
    assert errors == []
    assert "a listener of 'success' raised" in caplog.text


async def test_several_may_await_it_before_and_after_its_end(publication: Publication) -> None:
    async def wait() -> Outcome:
        return await publication

    early = [asyncio.create_task(wait()) for _ in range(3)]
    await settle()
    publication.succeed(1_001.0)
    outcomes = [*await asyncio.gather(*early), await publication, await publication]
    assert outcomes == [Outcome("m1", 1.0, False)] * 5


async def test_each_who_awaits_a_failure_gets_it(publication: Publication) -> None:
    async def wait() -> Outcome:
        return await publication

    tasks = [asyncio.create_task(wait()) for _ in range(2)]
    await settle()
    publication.fail(NACKED)
    for task in tasks:
        with pytest.raises(PublishNackedError):
            await task
    with pytest.raises(PublishNackedError):
        await publication


async def test_await_that_is_cancelled_changes_nothing_for_the_others(
    publication: Publication,
) -> None:
    async def wait() -> Outcome:
        return await publication

    leaving, staying = asyncio.create_task(wait()), asyncio.create_task(wait())
    await settle()
    leaving.cancel()
    await settle()
    assert not publication.is_ended
    publication.succeed(1_001.0)
    assert (await staying).message_id == "m1"
    assert leaving.cancelled()


async def test_unobserved_failure_is_logged_once_it_cannot_be_observed(
    withdrawals: Withdrawals, caplog: pytest.LogCaptureFixture
) -> None:
    publication = a_publication(withdrawals)
    publication.fail(NACKED)
    assert caplog.text == ""
    del publication
    gc.collect()
    assert caplog.text.count("nothing awaited it or listened") == 1


@pytest.mark.parametrize("how", ["listens", "awaits", "awaits later", "listens later"])
async def test_observed_failure_is_not_logged(
    withdrawals: Withdrawals, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    publication = a_publication(withdrawals)

    async def wait(publication: Publication) -> None:
        with pytest.raises(PublishNackedError):
            await publication

    if how == "listens":
        publication.on("error", lambda *args: None)
    waiting = asyncio.create_task(wait(publication)) if how == "awaits" else None
    await settle()
    publication.fail(NACKED)
    if how == "awaits later":
        await wait(publication)
    if how == "listens later":
        publication.on("error", lambda *args: None)
    if waiting is not None:
        await waiting
    await settle()
    del publication, waiting
    gc.collect()
    assert caplog.text == ""


async def test_abort_withdraws_it(publication: Publication, withdrawals: Withdrawals) -> None:
    assert publication.abort()
    [error] = withdrawals
    assert isinstance(error, PublishAbortedError)
    assert error.message_id == "m1"


async def test_no_timeout_means_no_deadline(withdrawals: Withdrawals) -> None:
    publication = a_publication(withdrawals, timeout=0.0)
    assert publication.deadline == float("inf")


async def test_repr_tells_the_state(publication: Publication) -> None:
    assert repr(publication) == "<Publication orders m1: waiting>"
    publication.give_back(NACKED, RETURNED)
    assert repr(publication) == "<Publication orders m1: ended return>"
    with pytest.raises(PublishNackedError):
        await publication


async def test_await_that_gave_up_leaves_nothing_behind(publication: Publication) -> None:
    wait = asyncio.ensure_future(publication)
    await settle()
    assert len(publication._waiters or ()) == 1
    wait.cancel()
    await settle()
    assert not publication._waiters
    publication.succeed(1.0)
    assert (await publication).message_id == "m1"


async def test_success_says_how_long_it_took_however_late_one_asks(
    publication: Publication,
) -> None:
    publication.succeed(publication.started + 2.5)
    assert [(await publication).seconds, (await publication).seconds] == [2.5, 2.5]


async def test_abort_that_succeeded_is_not_logged_as_an_unobserved_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def withdraw(publication: Publication, error: PublishError) -> bool:
        publication.fail(error)
        return True

    outgoing = Outgoing("", "q", b"", Properties(message_id="m1"))
    publication = Publication(Origin("p", withdraw, TaskGroup("test")), outgoing, 0.0, 1.0)
    assert publication.abort()
    del publication
    gc.collect()
    assert caplog.text == ""
