from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from broker_client.runtime.file_lock import try_lock

WITHOUT_LOCKS = """
import asyncio, sys
sys.modules["fcntl"] = None  # as on Windows
from broker_client import Broker
from broker_client.errors import UnsupportedError

def vhost(url):
    return {"vhosts": {"/": {"connection": url, "queues": ["q"]}}}

async def main():
    async with Broker.create(vhost("embedded://")) as broker:
        await (await broker.publish("/q", 1))
        print("in memory")
    try:
        await Broker.create(vhost("embedded:///" + sys.argv[1]))
    except UnsupportedError as error:
        print(error)

asyncio.run(main())
"""


def test_file_is_had_by_one_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_system_without_locks_has_all_but_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path / "broker.db")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "in memory",
        "a file that one process may have is not supported here: "
        "that takes the file locks of a POSIX system",
    ], done.stderr
