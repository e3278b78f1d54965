"""Checking and compacting a file that no node has open."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.core.records import QueueRemoved
from broker_client.errors import StoreError, StoreLockedError
from broker_client.store.lock import FileLock
from broker_client.store.maintenance import QueueContents, check, compact
from tests.support.files import a_file, opened, rows, written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


def damage(path: Path, text: bytes) -> None:
    """Flip a bit where `text` stands in the file."""
    data = bytearray(path.read_bytes())
    at = data.index(text)
    data[at] ^= 1
    path.write_bytes(data)


def test_a_sound_file_is_reported_with_what_its_queues_hold(path: Path) -> None:
    a_file(path, range(1, 4))
    report = check(str(path))
    assert report.problems == ()
    assert report.messages == 3
    assert report.queues == (QueueContents("/", "q", 3, 0, 18),)


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
        "entry 196608 is of an unknown queue 9",
    }


def test_a_torn_page_is_a_problem_and_no_exception(path: Path) -> None:
    a_file(path, range(1, 2000))
    data = bytearray(path.read_bytes())
    data[4096 * 20 : 4096 * 22] = b"\xff" * 8192
    path.write_bytes(data)
    assert check(str(path)).problems


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


# --------------------------------------------------------------------- the command


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", *arguments])
    return result.exit_code, result.output


def test_the_command_prints_what_is_there(path: Path) -> None:
    a_file(path, range(1, 4))
    status, output = run("check", str(path))
    assert status == 0
    assert f"{path}: ok" in output.replace("\n", "") or "ok" in output
    assert "schema 3, 3 messages" in output


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
