"""The writer's thread: commits grouped, answered in order, and all of them when one fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from broker_client.core.engine import Engine
from broker_client.core.records import (
    COPY_BITS,
    QueueAdded,
    Record,
    Settled,
    StoredEntry,
    TransactionBegun,
    TransactionEnded,
    VHostAdded,
)
from broker_client.errors import StoreError, StoreLockedError
from broker_client.store.batch import Batch
from broker_client.store.lock import FileLock
from broker_client.store.maintenance import check
from broker_client.store.sqlite import StoreFile
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.eventually import eventually
from tests.support.files import a_file, appended, rows


class Gate:
    """Holds the thread up in its transactions, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.transactions = 0
        self.error: Exception | None = None
        apply = StoreFile.apply

        def held_up(file: StoreFile, batch: Batch) -> None:
            self.open.wait(5)
            self.transactions += 1
            if self.error is not None:
                raise self.error
            apply(file, batch)

        monkeypatch.setattr(StoreFile, "apply", held_up)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path))
    await store.start(Engine().restoring)
    store.write([VHostAdded("/"), QueueAdded("/", "q", False, {})])
    yield store
    await store.close()


class Answers:
    def __init__(self) -> None:
        self.heard: list[tuple[str, StoreError | None]] = []

    def of(self, name: str) -> object:
        return lambda error: self.heard.append((name, error))


def ask(store: SqliteStore, answers: Answers, name: str) -> None:
    store.commit(answers.of(name))  # type: ignore[arg-type]


async def test_what_is_asked_while_a_commit_runs_is_one_commit_more(
    store: SqliteStore, gate: Gate, path: Path
) -> None:
    answers = Answers()
    gate.open.clear()
    ask(store, answers, "first")
    for number in range(1, 101):
        store.write([appended(number)])
        ask(store, answers, str(number))
    gate.open.set()
    await eventually(lambda: len(answers.heard) == 101)
    assert gate.transactions == 2
    assert answers.heard == [("first", None), *((str(n), None) for n in range(1, 101))]
    assert rows(path, "SELECT count(*) FROM entries") == [(100,)]


async def test_a_commit_of_nothing_is_answered_behind_those_before_it(
    store: SqliteStore,
    gate: Gate,
) -> None:
    answers = Answers()
    gate.open.clear()
    ask(store, answers, "something")
    ask(store, answers, "nothing")
    await asyncio.sleep(0)
    assert answers.heard == []
    gate.open.set()
    await eventually(lambda: len(answers.heard) == 2)
    assert [name for name, _ in answers.heard] == ["something", "nothing"]
    assert gate.transactions == 1


async def test_after_a_failure_every_commit_fails_and_nothing_more_is_written(
    store: SqliteStore, gate: Gate, path: Path
) -> None:
    answers = Answers()
    ask(store, answers, "good")
    await eventually(lambda: answers.heard)
    gate.error = error = StoreError(str(path), "out of luck")
    for name in ("bad", "later"):
        store.write([appended(len(answers.heard) + 1)])
        ask(store, answers, name)
    await eventually(lambda: len(answers.heard) == 3)
    gate.error = None
    store.write([appended(9)])
    ask(store, answers, "too late")
    await eventually(lambda: len(answers.heard) == 4)
    assert answers.heard == [("good", None), *((n, error) for n in ("bad", "later", "too late"))]
    assert rows(path, "SELECT count(*) FROM entries") == [(0,)]


async def test_any_exception_in_the_thread_is_a_failure_of_the_store(
    store: SqliteStore, gate: Gate
) -> None:
    answers = Answers()
    gate.error = ZeroDivisionError()
    ask(store, answers, "bad")
    await eventually(lambda: answers.heard)
    assert isinstance(answers.heard[0][1], StoreError)
    assert "ZeroDivisionError" in str(answers.heard[0][1])


async def test_a_message_that_cannot_be_kept_is_a_failure_and_no_silence(
    store: SqliteStore,
) -> None:
    answers = Answers()
    store.write([appended(1, a_message(headers={"x": {1}}, delivery_mode=2))])
    ask(store, answers, "bad")
    await eventually(lambda: answers.heard)
    assert "cannot be stored" in str(answers.heard[0][1])


async def test_close_keeps_what_was_written_and_not_committed(
    store: SqliteStore, path: Path
) -> None:
    store.write([appended(1), appended(2), Settled("/", "q", 1 << COPY_BITS)])
    await store.close()
    await store.close()
    assert rows(path, "SELECT record_id >> 16 FROM entries") == [(2,)]


async def test_release_lets_go_of_the_file_in_its_own_time(store: SqliteStore, path: Path) -> None:
    store.write([appended(1)])
    store.release()
    await store.close()
    lock = FileLock(str(path))
    lock.acquire()
    lock.release()
    assert rows(path, "SELECT count(*) FROM entries") == [(1,)]


async def test_a_start_that_fails_leaves_nothing_open(path: Path) -> None:
    a_file(path)
    lock = FileLock(str(path))
    lock.acquire()
    with pytest.raises(StoreLockedError, match="in use by"):
        await SqliteStore(str(path)).start(Engine().restoring)
    lock.release()
    store = SqliteStore(str(path))
    await store.start(Engine().restoring)
    await store.close()


async def test_messages_under_way_to_the_disk_can_be_read(store: SqliteStore, gate: Gate) -> None:
    answers = Answers()
    gate.open.clear()
    store.write([appended(1)])
    ask(store, answers, "first")
    store.write([appended(2)])
    wanted = [appended(number).message for number in (1, 2)]
    assert store.load([1 << COPY_BITS, 2 << COPY_BITS]) == wanted
    gate.open.set()
    await eventually(lambda: answers.heard)
    assert store.load([1 << COPY_BITS, 2 << COPY_BITS]) == wanted


async def test_no_more_is_read_at_a_time_than_memory_should_hold(store: SqliteStore) -> None:
    big = a_message(body=b"x" * (3 << 20), delivery_mode=2)
    store.write([appended(number, big) for number in range(1, 6)])
    assert len(store.load([number << COPY_BITS for number in range(1, 6)])) == 2


async def test_a_missing_message_is_damage(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="message 7 is missing"):
        store.load([7 << COPY_BITS])


async def test_it_is_behind_while_much_waits_for_the_commit_before(
    store: SqliteStore, gate: Gate
) -> None:
    answers = Answers()
    gate.open.clear()
    ask(store, answers, "first")
    big = a_message(body=b"x" * (5 << 20), delivery_mode=2)
    store.write([appended(1, big)])
    assert not store.is_behind
    store.write([appended(2, a_message(body=b"y" * (5 << 20), delivery_mode=2))])
    assert store.is_behind
    ask(store, answers, "second")
    gate.open.set()
    await eventually(lambda: len(answers.heard) == 2)
    assert not store.is_behind


async def test_a_large_batch_is_begun_before_the_event_loop_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_client.store.writer._START", 5.0)
    answers = Answers()
    ask(store, answers, "topology")
    await eventually(lambda: answers.heard)
    store.write([appended(number) for number in range(1, 101)])
    ask(store, answers, "messages")
    assert store._work.empty()
    await eventually(lambda: len(answers.heard) == 2)


# --------------------------------------------------------------------- a clock that is set

DAY = 86_400.0


class Clocks:
    """The system's clock, and the node's that goes on from it."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.clock = ManualClock(wall)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.clock.advance(seconds)


class Restored:
    def __init__(self) -> None:
        self.times: list[tuple[float | None, float | None]] = []

    def restore_topology(self, records: Iterable[object]) -> None:
        list(records)

    def restore_access(self, records: Iterable[object]) -> None:
        list(records)

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[StoredEntry]) -> None:
        self.times = [(entry[5], entry[6]) for entry in entries]


async def run(path: Path, clocks: Clocks, *records: Record) -> Restored:
    restored, answers = Restored(), Answers()
    store = SqliteStore(str(path), clocks.clock, wall=lambda: clocks.wall)
    await store.start(restored)
    store.write(records)
    ask(store, answers, "all")
    await eventually(lambda: answers.heard)
    await store.close()
    return restored


@pytest.mark.parametrize(
    ("set_while_running", "set_while_stopped", "away", "left"),
    [
        (0.0, 0.0, 5.0, 15.0),  # nothing is set: time goes on
        (0.0, -DAY, 5.0, 20.0),  # it was a day ahead: what has passed cannot be told, but
        (-DAY, 0.0, 5.0, 15.0),  # set right while the broker ran
        (+DAY, 0.0, 5.0, 15.0),
        (0.0, 0.0, 60.0, -40.0),  # due while nobody had the file
    ],
)
async def test_a_delay_is_no_longer_than_itself_after_a_restart_with_another_clock(
    path: Path, set_while_running: float, set_while_stopped: float, away: float, left: float
) -> None:
    first = Clocks(1_000_000.0)
    due = first.wall + 20.0
    first.wall += set_while_running
    topology = VHostAdded("/"), QueueAdded("/", "q", False, {})
    await run(path, first, *topology, appended(1, due_at=due, expires_at=due + 7.0))
    second = Clocks(first.wall + set_while_stopped + away)
    for _ in range(2):  # what was moved once is not moved again
        ((expires_at, due_at),) = (await run(path, second)).times
        assert (due_at, expires_at) == (second.wall + left, second.wall + left + 7.0)
    assert check(str(path)).problems == ()


async def test_a_system_that_slept_goes_on_with_what_was_left_of_a_delay(path: Path) -> None:
    clocks = Clocks(1_000_000.0)
    due = clocks.wall + 20.0
    clocks.pass_by(5.0)
    clocks.wall += 3_600.0  # as on a system whose steady clock stands still meanwhile
    topology = VHostAdded("/"), QueueAdded("/", "q", False, {})
    await run(path, clocks, *topology, appended(1, due_at=due))
    after = Clocks(clocks.wall)
    ((_, due_at),) = (await run(path, after)).times
    assert due_at == after.wall + 15.0


@pytest.mark.parametrize("is_writing", [False, True], ids=["at rest", "while a commit runs"])
async def test_nothing_is_committed_in_the_midst_of_a_transaction(
    store: SqliteStore, gate: Gate, path: Path, is_writing: bool
) -> None:
    answers = Answers()
    gate.open.clear()
    ask(store, answers, "first")
    if not is_writing:
        gate.open.set()
        await eventually(lambda: answers.heard)
    store.write([TransactionBegun(), appended(1)])
    ask(store, answers, "another's")
    gate.open.set()
    await eventually(lambda: answers.heard)
    store.write([appended(2)])
    ask(store, answers, "another's, later")
    await asyncio.sleep(0.05)  # nothing is to be seen: a commit would have ended by now
    assert answers.heard == [("first", None)]
    assert rows(path, "SELECT count(*) FROM entries") == [(0,)]
    store.write([appended(3), TransactionEnded()])
    ask(store, answers, "of the transaction")
    await eventually(lambda: len(answers.heard) == 4)
    assert rows(path, "SELECT count(*) FROM entries") == [(3,)]
    assert gate.transactions == 2
