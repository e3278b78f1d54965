"""The lock of a file, and a file that is not what it was when it was opened."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_client.core.engine import Engine
from broker_client.core.records import QueueAdded, VHostAdded
from broker_client.errors import StoreError, StoreLockedError
from broker_client.store.lock import FileLock
from broker_client.store.maintenance import check, compact
from broker_client.store.statistics import read_stats
from broker_client.store.writer import SqliteStore
from tests.support.eventually import eventually
from tests.support.files import a_file, appended
from tests.support.files import opened as opened_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    a_file(path)
    lock = FileLock(str(path))
    lock.acquire()
    with opened_file(path):
        yield lock
    lock.release()


def acquire(path: Path) -> None:
    other = FileLock(str(path))
    other.acquire()
    other.release()


async def committed(store: SqliteStore, number: int) -> StoreError | None:
    """Commit a message; returns why that failed."""
    answers: list[StoreError | None] = []
    store.write([appended(number)])
    store.commit(answers.append)
    await eventually(lambda: answers)
    return answers[0]


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(str(path))
    await store.start(Engine().restoring)
    store.write([VHostAdded("/"), QueueAdded("/", "q", False, {})])
    assert await committed(store, 1) is None
    return store


# --------------------------------------------------------------------- identity of a file


@pytest.mark.parametrize("deleted", [["node.db"], ["node.db-wal"], ["node.db", "node.db-wal"]])
async def test_a_file_that_is_deleted_while_open_confirms_nothing_more(
    path: Path, deleted: list[str]
) -> None:
    store = await opened(path)
    for name in deleted:
        os.unlink(path.with_name(name))
    assert "was deleted" in str(await committed(store, 2))
    await store.close()


async def test_a_file_that_is_replaced_while_open_confirms_nothing_more(path: Path) -> None:
    store = await opened(path)
    a_file(path.with_name("other.db")).rename(path)
    assert "was replaced by another file" in str(await committed(store, 2))
    await store.close()


def test_a_lock_file_that_was_deleted_is_made_again(
    path: Path, lock: FileLock, caplog: pytest.LogCaptureFixture
) -> None:
    os.unlink(f"{path}.lock")
    with caplog.at_level(logging.WARNING):
        lock.check()
    assert "was deleted while its lock was held" in caplog.text
    with pytest.raises(StoreLockedError, match="another event loop of this process"):
        acquire(path)


def test_a_lock_that_another_took_after_its_file_was_deleted_is_noticed(
    path: Path, lock: FileLock
) -> None:
    os.unlink(f"{path}.lock")
    other = FileLock(str(path))
    other.acquire()
    with pytest.raises(StoreLockedError):
        lock.check()
    other.release()


async def test_a_file_with_two_names_is_refused(path: Path) -> None:
    a_file(path)
    os.link(path, path.with_name("other.db"))
    with pytest.raises(StoreError, match="hard links"):
        await SqliteStore(str(path)).start(Engine().restoring)


async def test_a_symbolic_link_is_one_file_with_what_it_leads_to(
    path: Path, lock: FileLock
) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(StoreLockedError):
        await SqliteStore(str(link)).start(Engine().restoring)


@pytest.mark.parametrize("special", ["/dev/null", "/dev/zero"])
async def test_a_device_is_refused(special: str) -> None:
    with pytest.raises(StoreError, match="not a regular file"):
        await SqliteStore(special).start(Engine().restoring)


# --------------------------------------------------------------------- forked children

_PARENT = """
import os, sys, time
from broker_client.store.lock import FileLock

lock = FileLock(sys.argv[1])
lock.acquire()
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
{end}
"""


@pytest.mark.parametrize(
    "end", ["os._exit(9)", "lock.release(); print('released', flush=True); time.sleep(60)"]
)
def test_a_forked_child_does_not_keep_the_lock(path: Path, end: str) -> None:
    a_file(path)
    script = textwrap.dedent(_PARENT).format(end=end)
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        if end.startswith("os._exit"):
            child.wait(20)
        else:
            assert child.stdout is not None
            child.stdout.readline()
        acquire(path)
    finally:
        os.killpg(child.pid, 9)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_holder_that_has_ended_is_not_named_as_running(path: Path, lock: FileLock) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    text = Path(f"{path}.lock").read_text().replace(str(os.getpid()), str(ended.pid))
    Path(f"{path}.lock").write_text(text)
    with pytest.raises(StoreLockedError, match=f"forked from process {ended.pid}, which has ended"):
        acquire(path)


@pytest.mark.parametrize("name", ["node.db", "node.db.lock"])
async def test_files_with_bodies_are_for_their_owner_only(path: Path, name: str) -> None:
    store = await opened(path)
    for each in (name, f"{name}-wal" if name == "node.db" else name):
        assert path.with_name(each).stat().st_mode & 0o077 == 0
    await store.close()


async def test_a_file_is_opened_by_a_symbolic_link_too(path: Path) -> None:
    a_file(path)
    link = path.parent / "folder" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    for number in (1, 2):
        store = SqliteStore(str(link))
        await store.start(Engine().restoring)
        assert await committed(store, number) is None
        await store.close()
    assert check(str(link)).messages == 2
    assert read_stats(str(link)).messages == 2
    compact(str(link), drop_damaged=True)
    assert link.is_symlink()


def test_what_the_system_refuses_is_an_error_of_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("broker_client.store.sqlite.for_owner_only", refuse)
    with pytest.raises(StoreError, match="Permission denied"), opened_file(path):
        pass
