"""A disk under SQLite itself: each write and each sync of the real library is seen, and may fail.

SQLite writes through a VFS (https://sqlite.org/vfs.html). Here its own one is registered anew with
an `xOpen` which puts our functions before `xWrite`, `xTruncate` and `xSync` of each file; they note
what is done, and then do it. So the disk knows what was synced and what a power cut may take.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

_OK, _FULL, _IOERR = 0, 13, 10
FAULTS = {"write": 778, "sync": 1034, "full": _FULL}
"""SQLite's results: SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC, SQLITE_FULL."""
_SECTOR = 512  # bytes that a disk writes whole or not at all

_Pointer = ctypes.c_void_p


def _fields(*names: str) -> list[tuple[str, Any]]:
    return [(name, _Pointer) for name in names]


class _Methods(ctypes.Structure):
    """sqlite3_io_methods."""

    _fields_: ClassVar[Any] = [
        ("iVersion", ctypes.c_int),
        *_fields("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock"),
        *_fields("xUnlock", "xCheckReservedLock", "xFileControl", "xSectorSize"),
        *_fields("xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap"),
        *_fields("xFetch", "xUnfetch"),
    ]


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""

    _fields_: ClassVar[Any] = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", _Pointer),
        ("zName", ctypes.c_char_p),
        ("pAppData", _Pointer),
        *_fields("xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym"),
        *_fields("xDlClose", "xRandomness", "xSleep", "xCurrentTime", "xGetLastError"),
        *_fields("xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall", "xNextSystemCall"),
    ]


_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, _Pointer, ctypes.c_int, _Pointer)
_CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int)


@dataclass
class _File:
    """What of a file is safe, and what was done to it since."""

    durable: bytearray
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, data), or (size, None) for a truncation."""

    def sync(self) -> None:
        for at, data in self.pending:
            _do(self.durable, at, data)
        self.pending.clear()

    def after_power_cut(self, chance: Random) -> bytes:
        """What is safe, and of the rest what chance had written, sector by sector."""
        found = bytearray(self.durable)
        for at, data in self.pending:
            if data is None:
                if chance.random() < 0.5:
                    _do(found, at, None)
                continue
            whole = chance.random()
            for start in range(0, len(data), _SECTOR):
                if whole < 0.4 or (whole < 0.7 and chance.random() < 0.5):
                    _do(found, at + start, data[start : start + _SECTOR])
        return bytes(found)


def _do(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


class Disk:
    """A folder on a disk that can fail, and lose its power.

    A disk that is dead does nothing any more and says so.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dies_in: int | None = None
        """Writes and syncs after which its power is cut."""
        self.fails_in: int | None = None
        """Writes and syncs after which `fault` happens."""
        self.fault = "write"
        self.is_dead = False
        self.faults = 0
        """How many have happened."""
        self.operations = 0
        self.syncs = 0
        self._files: dict[str, _File] = {}

    def opened(self, path: str) -> None:
        if path not in self._files:
            self._files[path] = _File(bytearray(Path(path).read_bytes()))

    def write(self, path: str, at: int, data: bytes) -> int:
        if result := self._fails("write"):
            return result
        self._files[path].pending.append((at, data))
        return _OK

    def truncate(self, path: str, size: int) -> int:
        if result := self._fails("write"):
            return result
        self._files[path].pending.append((size, None))
        return _OK

    def sync(self, path: str) -> int:
        if result := self._fails("sync"):
            return result
        self.syncs += 1
        self._files[path].sync()
        return _OK

    def _fails(self, what: str) -> int:
        """Does the next operation fail? The result for SQLite."""
        if self.is_dead:
            return _IOERR
        self.operations += 1
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in <= 0:
                self.is_dead = True
                return _IOERR
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in <= 0 and (self.fault == "sync") == (what == "sync"):
                self.fails_in = None
                self.faults += 1
                return FAULTS[self.fault]
        return _OK

    def image(self, folder: Path, chance: Random, *, power: bool) -> Disk:
        """A disk in `folder` with what is left after the process, or the power, is gone.

        Args:
            folder: to make.
            chance: says what of the unsynced is left.
            power: it was cut; else everything written is there.
        """
        folder.mkdir()
        for path in sorted(self.folder.iterdir()):
            if path.suffix.endswith("-shm"):
                continue
            target = folder / path.name
            known = self._files.get(str(path))
            if power and known is not None:
                target.write_bytes(known.after_power_cut(chance))
            elif not power or path.suffix != ".lock" or chance.random() < 0.5:
                shutil.copyfile(
                    path, target
                )  # the note in the lock file is not synced: all or none
        self.is_dead = True
        return Disk(folder)


class SimVfs:
    """SQLite's way to its files, for the disks that are mounted."""

    def __init__(self) -> None:
        self._disks: dict[str, Disk] = {}
        self._library = ctypes.CDLL("libsqlite3.so.0")  # the one that Python's sqlite3 has loaded
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        original = self._library.sqlite3_vfs_find(None).contents
        self._vfs = _Vfs.from_buffer_copy(original)
        self._vfs.zName = b"simulation"
        self._open = _OPEN(original.xOpen)
        self._hook = _OPEN(self._opened)
        self._vfs.xOpen = ctypes.cast(self._hook, _Pointer)
        self._files: dict[int, tuple[Disk, str]] = {}
        """By the address of the sqlite3_file."""
        self._tables: dict[int, _Methods] = {}
        """Ours, by the address of the original."""
        self._ours: set[int] = set()
        self._kept: list[object] = []
        """Functions that SQLite may call."""

    @contextlib.contextmanager
    def registered(self) -> Iterator[SimVfs]:
        """The VFS of all that is opened meanwhile."""
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield self
        finally:
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))

    def mount(self, disk: Disk) -> None:
        self._disks[str(disk.folder)] = disk

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        # SQLite keeps the address of the name, and reads on behind it: it is passed on as it is.
        result: int = self._open(vfs, name, file, flags, out)
        self._files.pop(file, None)
        if result or name is None:
            return result
        path = ctypes.string_at(name).decode()
        disk = self._disks.get(path.rpartition("/")[0])
        if disk is None:
            return result
        disk.opened(path)
        self._files[file] = disk, path
        slot = ctypes.cast(file, ctypes.POINTER(_Pointer))
        slot[0] = ctypes.addressof(self._table(slot[0]))
        return result

    def _table(self, original: int) -> _Methods:
        """The functions at `original`, with ours before three of them."""
        if original in self._tables:
            return self._tables[original]
        methods = _Methods.from_address(original)
        write, truncate = _WRITE(methods.xWrite), _TRUNCATE(methods.xTruncate)
        files = self._files

        def on_write(file: int, data: int, size: int, at: int) -> int:
            disk, path = files[file]
            failed = disk.write(path, at, ctypes.string_at(data, size))
            return failed or write(file, data, size, at)

        def on_truncate(file: int, size: int) -> int:
            disk, path = files[file]
            return disk.truncate(path, size) or truncate(file, size)

        def on_sync(file: int, flags: int) -> int:
            disk, path = files[file]
            return disk.sync(path)  # the machine's own disk need not be asked

        table = _Methods.from_buffer_copy(methods)
        for name, kind, function in (
            ("xWrite", _WRITE, on_write),
            ("xTruncate", _TRUNCATE, on_truncate),
            ("xSync", _SYNC, on_sync),
        ):
            hook = kind(function)
            self._kept.append(hook)
            setattr(table, name, ctypes.cast(hook, _Pointer))
        self._tables[original] = table
        return table
