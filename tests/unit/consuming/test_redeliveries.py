"""Redelivery counters."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_client.config import CounterConfig
from broker_client.consuming.deduplication import SqliteHandledIds
from broker_client.consuming.redeliveries import (
    MemoryCounter,
    RedeliveryCounter,
    SqliteCounter,
    StubCounter,
    counter_from,
)
from broker_client.errors import StoreError, UnsupportedError
from broker_client.runtime.clock import WallClock
from tests.support.files import a_file


@pytest.fixture(params=["memory", "sqlite"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> RedeliveryCounter:
    if request.param == "memory":
        return MemoryCounter(size=2)
    return SqliteCounter(str(tmp_path / "counts.db"), size=2)


async def test_counts_each_key_for_itself(counter: RedeliveryCounter) -> None:
    assert [await counter.increment(key) for key in ("a", "b", "a", "a", "b")] == [1, 1, 2, 3, 2]
    await counter.close()


async def test_key_used_longest_ago_is_forgotten_beyond_the_size(
    counter: RedeliveryCounter,
) -> None:
    for key in ("a", "b", "a", "c"):  # c pushes b out, which was used before a
        await counter.increment(key)
    assert await counter.increment("a") == 3
    assert await counter.increment("b") == 1
    await counter.close()


async def test_sqlite_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "counts.db")
    for expected in (1, 2):
        counter = SqliteCounter(path, size=10)
        assert await counter.increment("a") == expected
        await counter.close()


async def test_stub_always_says_none() -> None:
    counter = StubCounter()
    assert [await counter.increment("a") for _ in range(3)] == [0, 0, 0]


def test_custom_counter_without_a_factory_says_where_it_goes() -> None:
    config = CounterConfig(name="mine", type="custom")
    with pytest.raises(UnsupportedError, match=r"counter 'mine' .*Broker.create"):
        counter_from(config)


def test_custom_counter_is_made_from_its_settings() -> None:
    seen: list[CounterConfig] = []

    def factory(config: CounterConfig) -> RedeliveryCounter:
        seen.append(config)
        return StubCounter()

    config = CounterConfig(name="mine", type="custom", options={"ttl": 3})
    assert isinstance(counter_from(config, factory), StubCounter)
    assert seen == [config]


# --------------------------------------------------------------------------- files of others


def of_another_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE redeliveries(key TEXT)")


def of_a_broker(path: Path) -> None:
    a_file(path, [1])


def no_database(path: Path) -> None:
    path.write_bytes(b"a file of text, long enough to have a header of a hundred bytes" * 3)


def of_a_later_version(path: Path) -> None:
    asyncio.run(SqliteCounter(str(path), size=1).close())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=2")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (of_another_program, "is an SQLite database, but not one of counts or ids"),
        (of_a_broker, "is an SQLite database, but not one of counts or ids"),
        (no_database, "cannot keep counts or ids: file is not a database"),
        (of_a_later_version, "has format 2, and this version of broker-client reads 1 only"),
    ],
)
@pytest.mark.parametrize(
    "open_file",
    [
        lambda path: SqliteCounter(path, size=1),
        lambda path: SqliteHandledIds(path, 60.0, 10, WallClock()),
    ],
    ids=["counts", "ids"],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(
    make: Callable[[Path], None], reason: str, open_file: Callable[[str], object], tmp_path: Path
) -> None:
    make(path := tmp_path / "file.db")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=reason) as caught:
        open_file(str(path))
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "counts.db"
    with pytest.raises(StoreError, match="unable to open database file") as caught:
        SqliteCounter(str(path), size=1)
    assert str(path) in str(caught.value)


async def test_counts_and_ids_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "both.db")
    counter, ids = SqliteCounter(path, size=9), SqliteHandledIds(path, 60.0, 9, WallClock())
    await ids.add("a")
    assert await counter.increment("a") == 1
    assert await ids.contains("a")
    await counter.close()
    await ids.close()
