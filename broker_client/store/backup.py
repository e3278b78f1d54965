"""Copies the file of a node while that runs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from broker_client.errors import StoreCorruptError, StoreError, StoreLockedError
from broker_client.runtime.slotted import slotted
from broker_client.store import tables
from broker_client.store.lock import SUFFIX, FileLock
from broker_client.store.maintenance import check
from broker_client.store.sqlite import log_problem, reading, translated

_PAGES = 1_000  # between two reports; of 4 KiB each


@slotted
class BackupReport:
    """What `backup` wrote."""

    path: str
    size_bytes: int
    messages: int


def backup(
    path: str, target: str, progress: Callable[[int, int], None] | None = None
) -> BackupReport:
    """Write a copy of the file at `path` as it is at this moment; a node may have it open.

    Every commit before this moment is in it, none after. The copy is read through and on the disk
    before it gets its name; its mode is 0600.

    Args:
        path: of the file.
        target: path of the copy, where nothing is yet.
        progress: called with the number of copied pages and of all pages.

    Raises:
        StoreCorruptError: the file is damaged.
        StoreError: there is no such file, or the copy cannot be written.
    """
    if not os.path.exists(path):
        raise StoreError(path, "there is no such file")
    if os.path.lexists(target):
        raise StoreError(target, "exists already; a backup does not replace files")
    _check_log(path)
    part = f"{target}.part"
    with _removed(part), translated(path):
        try:  # its mode is set before there is a body in it
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise StoreError(part, error.strerror or str(error)) from error
        _copy(path, part, progress)
        report = check(part)
        if report.problems:
            raise StoreCorruptError(path, report.problems[0])
        try:
            os.rename(part, target)
        except OSError as error:
            raise StoreError(target, error.strerror or str(error)) from error
        _sync_folder(target)
    return BackupReport(target, report.size_bytes, report.messages)


def _check_log(path: str) -> None:
    """Look for the damage that SQLite takes for the end of the log, where no node has the file."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except StoreLockedError:
        return  # the node has looked as it opened it
    try:
        problem = log_problem(path, lock.position)
    finally:
        lock.release()
    if problem is not None:
        raise StoreCorruptError(path, problem)


def _copy(path: str, part: str, progress: Callable[[int, int], None] | None) -> None:
    def told(status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    with reading(path) as source:
        # One snapshot for the whole copy: else each commit of the node would begin it again
        # (https://sqlite.org/backup.html, "File and Database Connection Locking").
        source.execute("BEGIN")
        tables.check_ours(source, path)
        made = sqlite3.connect(part)
        try:
            source.backup(made, pages=_PAGES, progress=told)
            made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            made.close()
    with open(part, "rb") as written:
        os.fsync(written.fileno())


@contextlib.contextmanager
def _removed(part: str) -> Iterator[None]:
    """Leave nothing of it behind, however this ends."""
    if os.path.lexists(part):
        raise StoreError(
            part, "exists already: a backup is running, or was killed (then remove it)"
        )
    try:
        yield
    finally:
        for suffix in ("", "-wal", "-shm", "-journal", SUFFIX):
            Path(part + suffix).unlink(missing_ok=True)


def _sync_folder(target: str) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
