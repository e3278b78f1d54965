"""Checking and compacting a file that no node has open."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.core.engine import Engine
from broker_client.core.records import (
    COPY_BITS,
    Delivered,
    Moved,
    QueuePaused,
    QueueRemoved,
    Settled,
)
from broker_client.errors import StoreCorruptError, StoreError, StoreLockedError
from broker_client.store import tables
from broker_client.store.lock import FileLock
from broker_client.store.maintenance import check, compact
from broker_client.store.statistics import KeptQueue
from tests.support.files import a_file, appended, opened, rows, written


class Nobody:
    """Takes what a file gives back, and keeps nothing of it."""

    def restore_topology(self, records: Iterable[object]) -> None:
        list(records)

    def restore_access(self, records: Iterable[object]) -> None:
        list(records)

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[object]) -> None:
        list(entries)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


def damage(path: Path, text: bytes, bits: int = 1) -> None:
    """Flip `bits` where `text` stands in the file."""
    data = bytearray(path.read_bytes())
    at = data.index(text)
    data[at] ^= bits
    path.write_bytes(data)


def test_a_sound_file_is_reported_with_what_its_queues_hold(path: Path) -> None:
    a_file(path, range(1, 4))
    report = check(str(path))
    assert report.problems == ()
    assert report.messages == 3
    assert report.queues == (KeptQueue("/", "q", 3, 0, 0, 0, 18),)


def test_a_flipped_bit_in_a_body_is_found(path: Path) -> None:
    a_file(path, range(1, 4))
    damage(path, b"body 2")
    assert check(str(path)).problems == ("message 2 is damaged",)


def test_an_entry_without_message_or_queue_is_found(path: Path) -> None:
    a_file(path, range(1, 4))
    rows(path, "DELETE FROM messages WHERE id = 2")
    rows(path, "UPDATE entries SET queue_id = 9 WHERE record_id >> 16 = 3")
    assert set(check(str(path)).problems) == {
        "entry 131072: its message 2 is missing",
        "entry 196608 is damaged",
        "entry 196608 is of an unknown queue 9",
    }


def test_a_torn_page_is_a_problem_and_no_exception(path: Path) -> None:
    a_file(path, range(1, 2000))
    data = bytearray(path.read_bytes())
    data[4096 * 20 : 4096 * 22] = b"\xff" * 8192
    path.write_bytes(data)
    assert check(str(path)).problems


def test_a_page_that_was_not_written_is_found_by_check(path: Path) -> None:
    """A disk that loses a write gives the page as it was before."""
    before = a_file(path, range(1, 2_001)).read_bytes()
    with opened(path) as file:
        written(file, *(appended(number) for number in range(2_001, 2_101)))
        written(file, *(Settled("/", "q", number << COPY_BITS) for number in range(500, 560)))
    after, size = path.read_bytes(), rows(path, "PRAGMA page_size")[0][0]
    places = [slice(at, at + size) for at in range(0, len(before), size)]
    changed = [place for place in places if before[place] != after[place]]
    assert len(changed) > 5
    for place in changed:
        path.write_bytes(after[: place.start] + before[place] + after[place.stop :])
        assert check(str(path)).problems
    path.write_bytes(after)
    assert check(str(path)).problems == ()


@pytest.mark.parametrize("where", [b"CREATE TABLE queues", b"vhost TEXT", b"user TEXT", b"queues"])
def test_a_schema_that_is_not_utf_8_is_damage_to_whoever_reads_the_file(
    path: Path, where: bytes
) -> None:
    a_file(path, range(1, 4))
    damage(path, where, 0x80)

    def recovered() -> None:
        with opened(path) as file:
            file.recover(Nobody())

    with pytest.raises(StoreCorruptError, match=re.escape(str(path))) as raised:
        recovered()
    told = str(raised.value)
    try:
        told += " ".join(found := check(str(path)).problems)
        assert found
    except StoreCorruptError as error:
        told += str(error)
    with contextlib.suppress(StoreError):
        compact(str(path), drop_damaged=True)
    assert "codec" not in told


def test_checking_changes_nothing(path: Path) -> None:
    a_file(path, range(1, 4))
    before = path.read_bytes()
    check(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("look", [check, compact])
def test_a_file_in_use_is_left_alone(path: Path, look: object) -> None:
    a_file(path)
    lock = FileLock(str(path))
    lock.acquire()
    with pytest.raises(StoreLockedError):
        look(str(path))  # type: ignore[operator]
    lock.release()


@pytest.mark.parametrize("look", [check, compact])
def test_a_file_that_is_not_there_is_not_made(path: Path, look: object) -> None:
    with pytest.raises(StoreError, match="no such file"):
        look(str(path))  # type: ignore[operator]
    assert list(path.parent.iterdir()) == []


def test_compacting_gives_room_back_and_keeps_what_is_there(path: Path) -> None:
    a_file(path, range(1, 5000))
    with opened(path) as file:
        written(file, QueueRemoved("/", "q"))
    a_file_again = path.stat().st_size
    report = compact(str(path))
    assert report.before_bytes >= a_file_again
    assert report.after_bytes < report.before_bytes / 5
    assert check(str(path)).problems == ()


def test_what_can_be_read_of_a_damaged_file_is_saved(path: Path) -> None:
    a_file(path, range(1, 101))
    damage(path, b"body 50")
    before = path.read_bytes()
    report = compact(str(path), drop_damaged=True)
    assert (report.messages, report.lost) == (99, 1)
    assert report.kept_as == f"{path}.damaged"
    assert Path(report.kept_as).read_bytes() == before
    assert check(str(path)).problems == ()
    left = [body for (body,) in rows(path, "SELECT body FROM messages ORDER BY id")]
    assert left == [b"body %d" % number for number in range(1, 101) if number != 50]


def test_a_torn_page_costs_no_more_than_what_stood_there(path: Path) -> None:
    a_file(path, range(1, 3001))
    data = bytearray(path.read_bytes())
    data[4096 * 40 : 4096 * 41] = b"\xff" * 4096
    path.write_bytes(data)
    report = compact(str(path), drop_damaged=True)
    assert report.messages > 2700
    assert report.lost == 3000 - report.messages
    assert check(str(path)).problems == ()


def test_salvage_keeps_which_queues_are_paused(path: Path) -> None:
    a_file(path, range(1, 4))
    with opened(path) as file:
        written(file, QueuePaused("/", "q", True))
    damage(path, b"body 2")
    compact(str(path), drop_damaged=True)
    assert rows(path, "SELECT queue_id FROM paused") == [(1,)]


CHANGES = {
    "entries": [
        "queue_id = queue_id + 1",
        "position = position + 1024",
        "attempts = attempts + 1",
        "priority = 4",
        "size = 0",
        "expires_at = 1.0",
        "due_at = 1e12",
        "sum = sum + 1",
    ],
    "messages": [
        "exchange = 'x'",
        "exchange = CAST(x'ff' AS TEXT)",
        "routing_key = routing_key || 'a'",
        "properties = x'0000'",
        "body = body || x'00'",
        "sum = sum + 1",
    ],
    "queues": ["name = 'p'", "auto_delete = 1", "sum = 0"],
    "vhosts": ["name = 'v'"],
    "paused": ["queue_id = 2"],
}


@pytest.mark.parametrize(
    ("table", "change"), [(table, each) for table, found in CHANGES.items() for each in found]
)
def test_a_changed_value_is_found_by_check_and_at_the_start_and_left_out_by_salvage(
    path: Path, table: str, change: str
) -> None:
    a_file(path, [7])
    with opened(path) as file:
        written(file, QueuePaused("/", "q", True))
    rows(path, f"UPDATE {table} SET {change}")
    assert "damaged" in " ".join(check(str(path)).problems)
    with opened(path) as file, pytest.raises(StoreCorruptError, match="damaged"):
        file.load(7) if table == "messages" else file.recover(Engine().restoring)
    compact(str(path), drop_damaged=True)
    assert check(str(path)).problems == ()


@pytest.mark.parametrize(("table", "key"), [("messages", "id"), ("entries", "record_id")])
def test_a_sound_row_that_stands_in_anothers_place_is_found(
    path: Path, table: str, key: str
) -> None:
    """As after a write that went to the wrong place: its checksum is right, but for another."""
    a_file(path, [1, 2])
    rows(path, f"DELETE FROM {table} WHERE {key} = (SELECT max({key}) FROM {table})")
    rows(path, f"UPDATE {table} SET {key} = {key} * 2")
    assert "damaged" in " ".join(check(str(path)).problems)
    with opened(path) as file, pytest.raises(StoreCorruptError, match="damaged"):
        file.load(2) if table == "messages" else file.recover(Engine().restoring)


def test_an_entry_that_was_moved_and_delivered_is_sound(path: Path) -> None:
    a_file(path, [1, 2])
    one, two = 1 << COPY_BITS, 2 << COPY_BITS
    with opened(path) as file:
        written(file, Delivered(one, 3), Moved(one, 9, 5.25), Moved(two, 4, 7.5))
        written(file, Moved(two, 5, None), Moved(one, 10, 1234567890.123456), Delivered(one, 4))
    assert check(str(path)).problems == ()


def test_a_damaged_entry_stays_damaged_when_it_is_changed(path: Path) -> None:
    a_file(path, [1])
    rows(path, "UPDATE entries SET priority = 3")
    with opened(path) as file:
        written(file, Delivered(1 << COPY_BITS, 1), Moved(1 << COPY_BITS, 2, 3.0))
    assert check(str(path)).problems == ("entry 65536 is damaged",)


def test_a_lost_entry_is_found_by_check(path: Path) -> None:
    a_file(path, [1, 2])
    rows(path, "DELETE FROM entries WHERE record_id >> 16 = 2")
    assert check(str(path)).problems == ("message 2 has lost its entry: no queue holds it",)


# --------------------------------------------------------------------- the command


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", *arguments])
    return result.exit_code, result.output


def test_the_command_prints_what_is_there(path: Path) -> None:
    a_file(path, range(1, 4))
    status, output = run("check", str(path))
    assert status == 0
    assert f"{path}: ok" in output.replace("\n", "") or "ok" in output
    assert f"schema {tables.VERSION}, 3 messages" in output


def test_the_command_ends_with_status_1_and_says_what_to_do_about_damage(path: Path) -> None:
    a_file(path, range(1, 4))
    damage(path, b"body 2")
    status, output = run("check", str(path))
    assert status == 1
    assert "message 2 is damaged" in output
    assert "store compact --drop-damaged" in output
    status, output = run("compact", "--drop-damaged", str(path))
    assert status == 0
    assert "1 entries lost" in output


def test_the_command_refuses_what_is_no_store(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    rows(other, "CREATE TABLE t (x)")
    status, output = run("check", str(other))
    assert status == 1
    assert "not one of a broker" in output
