"""The SQLite file: rows as records mean them, versions, and errors that say what and where."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_client.core.records import (
    COPY_BITS,
    BindingAdded,
    BindingRemoved,
    Delivered,
    ExchangeAdded,
    ExchangeRemoved,
    Moved,
    QueueAdded,
    QueueRemoved,
    Record,
    Settled,
    Spilled,
    VHostAdded,
)
from broker_client.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from broker_client.message import PERSISTENT
from broker_client.store import tables
from broker_client.store.backup import backup
from broker_client.store.maintenance import check, compact
from broker_client.store.sqlite import StoreFile, store_error
from broker_client.store.statistics import read_stats
from tests.support.builders import a_message
from tests.support.faulty_store import DiskState
from tests.support.files import a_file, appended, opened, rows, written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


class Read:
    """Takes what a file gives back."""

    def __init__(self) -> None:
        self.topology: list[object] = []
        self.access: list[object] = []
        self.entries: dict[str, list[tuple[object, ...]]] = {}

    def restore_topology(self, records: object) -> None:
        self.topology = list(records)  # type: ignore[call-overload]

    def restore_access(self, records: object) -> None:
        self.access = list(records)  # type: ignore[call-overload]

    def restore_entries(self, vhost: str, queue: str, entries: object) -> None:
        self.entries[queue] = list(entries)  # type: ignore[call-overload]


def read(path: Path) -> Read:
    found = Read()
    with opened(path) as file:
        file.recover(found)
    return found


def test_a_copy_keeps_the_message_when_the_first_is_settled_in_the_same_batch(path: Path) -> None:
    a_file(path)
    message = a_message(body=b"x" * 100, delivery_mode=PERSISTENT)
    first = 7 << COPY_BITS
    with opened(path) as file:
        written(file, QueueAdded("/", "r", False, {}))
        written(
            file,
            appended(7, message, record_id=first),
            appended(7, message, record_id=first + 1, queue="r"),
            Settled("/", "q", first),
        )
        assert file.load(7) == message
    assert [queue for queue, held in read(path).entries.items() if held] == ["r"]


def test_a_message_is_stored_once_however_many_queues_hold_it(path: Path) -> None:
    a_file(path)
    message = a_message(body=b"x" * 100, delivery_mode=PERSISTENT)
    first = 7 << COPY_BITS
    with opened(path) as file:
        written(file, QueueAdded("/", "r", False, {}))
        written(
            file,
            appended(7, message, record_id=first),
            appended(7, message, record_id=first + 1, queue="r"),
        )
        assert rows(path, "SELECT count(*) FROM messages") == [(1,)]
        written(file, Settled("/", "q", first))
        assert file.load(7) == message
        written(file, Settled("/", "r", first + 1))
        assert file.load(7) is None


def test_what_comes_and_goes_within_a_commit_is_not_written(path: Path) -> None:
    a_file(path)
    with opened(path) as file:
        one = appended(1)
        written(file, one, Delivered(one.record_id, 1), Settled("/", "q", one.record_id))
    assert rows(path, "SELECT count(*) FROM messages") == [(0,)]
    assert read(path).entries == {}


def test_attempts_places_and_due_times_are_kept(path: Path) -> None:
    a_file(path, range(1, 5))
    ids = {number: number << COPY_BITS for number in range(1, 5)}
    with opened(path) as file:
        written(
            file,
            Delivered(ids[1], 1),
            Moved(ids[1], 9, None),
            Delivered(ids[2], 3),
            Moved(ids[3], 3, 1234.0625),
        )
    assert read(path).entries["q"] == [
        (ids[2], 2, 3, 0, 6, None, None),
        (ids[3], 3, 0, 0, 6, None, 1234.0625),
        (ids[4], 4, 0, 0, 6, None, None),
        (ids[1], 9, 1, 0, 6, None, None),
    ]


def test_topology_comes_back_without_what_was_removed(path: Path) -> None:
    arguments = {"x-max-length": 3, "nested": {"b": [1, None], "a": 1.5}}
    kept: list[Record] = [
        VHostAdded("/"),
        ExchangeAdded("/", "e", "topic", False, True, {}),
        QueueAdded("/", "q", True, arguments),
        BindingAdded("/", "e", "queue", "q", "a.#", arguments),
    ]
    with opened(path) as file:
        written(
            file,
            *kept,
            ExchangeAdded("/", "gone", "fanout", False, False, {}),
            BindingAdded("/", "gone", "queue", "q", "", {}),
            BindingAdded("/", "e", "exchange", "gone", "", {}),
            BindingAdded("/", "e", "queue", "q", "b", arguments),
        )
        written(
            file,
            BindingRemoved("/", "e", "queue", "q", "b", dict(reversed(list(arguments.items())))),
            ExchangeRemoved("/", "gone"),
        )
    assert read(path).topology == kept


def test_a_queue_that_is_made_again_does_not_get_the_messages_of_the_one_before(
    path: Path,
) -> None:
    a_file(path, [1, 2])
    with opened(path) as file:
        written(
            file,
            appended(3),
            QueueRemoved("/", "q"),
            QueueAdded("/", "q", False, {}),
            appended(4),
        )
    assert [entry[0] for entry in read(path).entries["q"]] == [4 << COPY_BITS]
    assert rows(path, "SELECT id FROM messages") == [(4,)]


@pytest.mark.parametrize("count", [1, 3, 255, 256, 257, 1000])
def test_any_number_of_rows_is_written_whole(path: Path, count: int) -> None:
    a_file(path, range(1, count + 1))
    assert [entry[1] for entry in read(path).entries["q"]] == list(range(1, count + 1))


def test_it_reads_as_the_plain_meaning_of_the_same_records(path: Path) -> None:
    one, two = appended(1), appended(2)
    batches: list[list[Record]] = [
        [VHostAdded("/"), QueueAdded("/", "q", False, {}), one, two],
        [Delivered(one.record_id, 1), Moved(one.record_id, 3, 5.5)],
        [Settled("/", "q", two.record_id), appended(3, position=4)],
    ]
    disk = DiskState()
    with opened(path) as file:
        for records in batches:
            written(file, *records)
            disk.apply(records)
    plain = Read()
    disk.recover(plain)
    assert read(path).entries == plain.entries


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_of_one_statement_does_what_a_larger_one_does(path: Path, large: bool) -> None:
    also = [VHostAdded("another")] if large else []  # what no row can say
    one, two, three = appended(1), appended(2), appended(3)
    copy = appended(2, record_id=two.record_id + 1, position=7)
    spilled = Spilled(-1 << COPY_BITS, three.message)
    batches: list[list[Record]] = [
        [one, two, copy, three, spilled],
        [Delivered(one.record_id, 2), Moved(copy.record_id, 8, 5.5)],
        [Delivered(copy.record_id, 1), Settled("/", "q", two.record_id)],
        [Settled("/", "q", three.record_id), appended(4), appended(5, priority=3)],
        [Settled("/", "q", spilled.record_id), Settled("/", "q", 99 << COPY_BITS)],
    ]
    a_file(path)
    with opened(path) as file:
        for records in batches:
            written(file, *records, *also)
    assert read(path).entries["q"] == [
        (one.record_id, 1, 2, 0, 6, None, None),
        (4 << COPY_BITS, 4, 0, 0, 6, None, None),
        (5 << COPY_BITS, 5, 0, 3, 6, None, None),
        (copy.record_id, 8, 1, 0, 6, None, 5.5),
    ]
    assert rows(path, "SELECT id FROM messages ORDER BY id") == [(1,), (2,), (4,), (5,)]
    assert rows(path, tables.DAMAGED_ENTRIES) == []


def test_a_commit_that_settles_is_one_statement_while_it_is_small(path: Path) -> None:
    a_file(path, range(1, 101))
    statements: list[str] = []
    with opened(path) as file:
        file.connection.set_trace_callback(statements.append)
        settled = [Settled("/", "q", number << COPY_BITS) for number in range(1, 101)]
        written(file, appended(101), *settled[:20])
        assert not [each for each in statements if each.startswith(("BEGIN", "DELETE", "COMMIT"))]
        written(file, *settled[20:])
        assert "COMMIT" in statements
    assert rows(path, "SELECT id FROM messages") == [(101,)]


# --------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "way_out"),
    [(tables.VERSION - 1, "let the version that wrote it"), (99, "upgrade broker-client")],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda path: StoreFile(path).open(),
        check,
        compact,
        lambda path: compact(path, drop_damaged=True),
        read_stats,
        lambda path: backup(path, f"{path}.copy"),
    ],
    ids=["open", "check", "compact", "salvage", "stats", "backup"],
)
def test_a_file_of_another_schema_is_refused_and_left_as_it_is(
    path: Path, use: Callable[[str], object], version: int, way_out: str
) -> None:
    a_file(path, [1])
    rows(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    reads = f"reads schema {tables.VERSION} only"
    with pytest.raises(StoreError, match=rf"has schema {version}, .* {reads}: {way_out}"):
        use(str(path))
    assert path.read_bytes() == before
    beside = {f"{path.name}{suffix}" for suffix in ("", ".lock", "-shm", "-wal")}
    assert {each.name for each in path.parent.iterdir()} <= beside  # no copy


def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    rows(path, "CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(StoreCorruptError, match="not one of a broker"), opened(path):
        pass
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


# --------------------------------------------------------------------- faults


def test_a_full_file_writes_nothing_of_the_batch_and_goes_on_when_there_is_room(
    path: Path,
) -> None:
    a_file(path, [1])
    with opened(path) as file:
        pages = file.connection.execute("PRAGMA page_count").fetchone()[0]
        file.connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        many = [appended(n, a_message(body=b"x" * 5000, delivery_mode=2)) for n in range(2, 30)]
        with pytest.raises(StoreFullError, match="full"):
            written(file, *many)
        file.connection.execute("PRAGMA max_page_count = 1000000")
        written(file, appended(2))
    assert [entry[1] for entry in read(path).entries["q"]] == [1, 2]


def test_a_damaged_message_is_reported_by_its_number(path: Path) -> None:
    a_file(path, [1, 2])
    rows(path, "UPDATE messages SET body = x'00' WHERE id = 2")
    with opened(path) as file:
        assert file.load(1) is not None
        with pytest.raises(StoreCorruptError, match=r"message 2 is damaged.*store check"):
            file.load(2)


def swapped_names(page: bytes) -> bytes:
    return page.replace(b"-a", b"-_").replace(b"-b", b"-a").replace(b"-_", b"-b")


def lost_row(page: bytes) -> bytes:
    cells = int.from_bytes(page[3:5])  # SQLite's file format §1.6: the header of a page
    return page[:3] + (cells - 1).to_bytes(2) + page[5:]


@pytest.mark.parametrize("rot", [swapped_names, lost_row])
def test_rows_of_an_index_that_do_not_agree_with_their_table_move_no_message(
    path: Path, rot: Callable[[bytes], bytes]
) -> None:
    with opened(path) as file:
        queues = [QueueAdded("/", f"queue-{each}", False, {}) for each in "ab"]
        messages = [appended(number, queue=f"queue-{'-ab'[number]}") for number in (1, 2)]
        written(file, VHostAdded("/"), *queues, *messages)
    [(root, size)] = rows(
        path,
        "SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE tbl_name = "
        "'queues' AND type = 'index'",
    )
    data, start = path.read_bytes(), (root - 1) * size
    page = data[start : start + size]
    assert rot(page) != page
    path.write_bytes(data[:start] + rot(page) + data[start + size :])

    entries = read(path).entries
    assert {name: [entry[1] for entry in held] for name, held in entries.items()} == {
        "queue-a": [1],
        "queue-b": [2],
    }
    found = check(str(path))
    assert [(queue.name, queue.waiting) for queue in found.queues] == [
        ("queue-a", 1),
        ("queue-b", 1),
    ]
    assert any("index" in problem for problem in found.problems), found.problems
    compact(str(path), drop_damaged=True)
    assert check(str(path)).problems == ()
    assert read(path).entries == entries


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SQLITE_FULL", StoreFullError),
        ("SQLITE_CORRUPT_INDEX", StoreCorruptError),
        ("SQLITE_NOTADB", StoreCorruptError),
        ("SQLITE_READONLY_DBMOVED", StoreReadOnlyError),
        ("SQLITE_CANTOPEN", StoreReadOnlyError),
        ("SQLITE_IOERR_WRITE", StoreError),
    ],
)
def test_each_failure_of_sqlite_has_its_error(name: str, expected: type[StoreError]) -> None:
    error = sqlite3.OperationalError("what it says")
    error.sqlite_errorname = name
    told = store_error("x.db", error)
    assert type(told) is expected
    assert "x.db" in str(told)
    assert "what it says" in str(told)
