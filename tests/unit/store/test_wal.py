"""Damage in the write-ahead log, which SQLite passes over without a word."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from broker_client.core.engine import Engine
from broker_client.errors import StoreCorruptError
from broker_client.store.lock import FileLock, Note
from broker_client.store.maintenance import check, compact
from broker_client.store.wal import LogPosition
from broker_client.store.writer import SqliteStore
from tests.support.files import a_file, appended, opened, rows, written

COMMITS = 6


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A file whose process was killed after some commits, with the note of the last."""
    path = a_file(tmp_path / "node.db")
    with opened(path) as file:
        for number in range(1, COMMITS + 1):
            written(file, appended(number))
        return left_behind(path, file.position)


def left_behind(path: Path, noted: LogPosition | None) -> Path:
    """A copy of file and log as they are now, and a lock file with the note."""
    copy = path.parent / "crashed" / path.name
    copy.parent.mkdir()
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    lock = FileLock(str(copy))
    lock.acquire()
    lock.note(Note(0.0, 0.0, noted))
    lock.release()
    return copy


def log_of(path: Path) -> bytes:
    return Path(f"{path}-wal").read_bytes()


def set_log(path: Path, log: bytes) -> None:
    Path(f"{path}-wal").write_bytes(log)


def flip(path: Path, at: int) -> None:
    """Change a bit of the log."""
    data = bytearray(log_of(path))
    data[at] ^= 0x10
    set_log(path, bytes(data))


def bodies(path: Path) -> list[bytes]:
    return [body for (body,) in rows(path, "SELECT body FROM messages ORDER BY id")]


async def started(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.start(Engine().restoring)
    await store.close()


async def test_a_whole_log_is_read_to_its_end(crashed: Path) -> None:
    assert check(str(crashed)).problems == ()
    await started(crashed)
    assert bodies(crashed) == [b"body %d" % number for number in range(1, COMMITS + 1)]
    assert check(str(crashed)).problems == ()


@pytest.mark.parametrize("seed", range(20))
async def test_a_changed_bit_anywhere_in_the_log_is_found(crashed: Path, seed: int) -> None:
    size = len(log_of(crashed))
    at = random.Random(seed).randrange(size) if seed else 17  # the salt in the header
    flip(crashed, at)
    log = log_of(crashed)
    problems = check(str(crashed)).problems
    assert any("log is damaged" in each for each in problems), at
    for _ in range(2):  # a start that was refused must not make the next one forget
        with pytest.raises(StoreCorruptError, match="log is damaged"):
            await started(crashed)
    assert log_of(crashed) == log


@pytest.mark.parametrize(("frame", "other"), [(0, 3), (3, 0), (4, 5)])
async def test_a_frame_that_was_written_to_the_place_of_another_is_found(
    crashed: Path, frame: int, other: int
) -> None:
    log, length = log_of(crashed), 24 + 4096
    there, here = (log[32 + each * length :][:length] for each in (frame, other))
    assert there != here
    log = log[: 32 + frame * length] + here + log[32 + (frame + 1) * length :]
    set_log(crashed, log)
    problems = check(str(crashed)).problems
    assert any("log is damaged" in each for each in problems)
    with pytest.raises(StoreCorruptError, match="log is damaged"):
        await started(crashed)
    assert log_of(crashed) == log


async def test_damage_before_other_commits_is_found_without_a_note(crashed: Path) -> None:
    os.unlink(f"{crashed}.lock")
    flip(crashed, 32 + 24 + 100)
    with pytest.raises(StoreCorruptError, match="commits follow frame 0"):
        await started(crashed)


async def test_a_torn_end_is_left_away_as_what_was_never_confirmed(tmp_path: Path) -> None:
    path = a_file(tmp_path / "node.db")
    with opened(path) as file:
        written(file, appended(1))
        noted = file.position
        written(file, appended(2))  # its sync has not returned: nothing was noted
        torn = left_behind(path, noted)
    flip(torn, -50)
    assert check(str(torn)).problems == ()
    await started(torn)
    assert bodies(torn) == [b"body 1"]


async def test_what_a_torn_end_left_is_not_taken_for_damage_behind_later_commits(
    tmp_path: Path,
) -> None:
    path = a_file(tmp_path / "node.db")
    with opened(path) as file:
        written(file, appended(1))
        noted = file.position
        written(file, *(appended(number) for number in range(2, 200)))
        torn = left_behind(path, noted)
    flip(torn, 32 + noted.frame * (24 + 4096) + 200)
    with opened(torn) as file:
        written(file, appended(2))
        again = left_behind(torn, file.position)
    await started(again)
    assert bodies(again) == [b"body 1", b"body 2"]


async def test_salvage_saves_what_stands_before_the_damage(crashed: Path) -> None:
    flip(crashed, -50)
    report = compact(str(crashed), drop_damaged=True)
    assert report.messages == COMMITS - 1
    assert check(str(crashed)).problems == ()
    await started(crashed)
    assert len(bodies(crashed)) == COMMITS - 1


async def test_an_end_in_order_takes_the_note_back(tmp_path: Path) -> None:
    path = a_file(tmp_path / "node.db")
    await started(path)
    lock = FileLock(str(path))
    lock.acquire()
    lock.release()
    assert lock.position is None
