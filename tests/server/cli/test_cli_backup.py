"""``broker-client backup`` of a file that is in use, and of one that is not."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker_client import Broker
from broker_client.errors import StoreError
from broker_client.store.backup import backup
from tests.server.cli.test_cli_where import application
from tests.support.command_line import run, told
from tests.support.eventually import eventually


async def backed_up_under_load(path: Path, copy: Path) -> tuple[int, bytes]:
    """The number of confirms before a backup, and the backup's output."""
    config = {"vhosts": {"/": {"connection": f"embedded://{path}", "queues": ["q"]}}}
    confirmed = 0

    async def load() -> None:
        nonlocal confirmed
        while True:
            batch = [
                await broker.publish("/q", "x" * 4_000, message_id=str(confirmed + i))
                for i in range(50)
            ]
            for publication in batch:
                await publication
            confirmed += len(batch)
            await asyncio.sleep(0.2)  # about 250 a second are enough load

    async with Broker.create(config) as broker:
        publishing = asyncio.create_task(load())
        await eventually(lambda: confirmed >= 300)
        before = confirmed
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "broker_client", "backup", str(path), str(copy), "--json"),
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
        await eventually(lambda: confirmed > before)  # the load goes on
        publishing.cancel()
        await asyncio.wait([publishing])
    assert process.returncode == 0
    return before, output


def test_everything_confirmed_before_is_in_a_backup_under_load(tmp_path: Path) -> None:
    path, copy = tmp_path / "app.db", tmp_path / "copy.db"
    before, output = asyncio.run(backed_up_under_load(path, copy))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    lines = run(str(copy), "get", "q", "--count", "100000", "--json").stdout.splitlines()
    ids = [int(json.loads(line)["properties"]["message_id"]) for line in lines]
    assert ids == list(range(len(ids)))  # a consistent state, with nothing written later
    report = json.loads(output)
    assert len(ids) == report["messages"] >= before
    assert report["path"] == str(copy)


def test_a_file_that_is_not_open_is_copied_with_its_users(tmp_path: Path) -> None:
    path, copy = tmp_path / "app.db", tmp_path / "copy.db"
    with application(path) as process:
        run(str(path), "publish", "q", input="1\n2\n")
        process.send_signal(signal.SIGKILL)  # its log was not checkpointed into the file
        process.wait()
    run(str(path), "user", "add", str(path), "app", "--no-password")
    result = run("", "backup", str(path), str(copy))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{copy}: 2 messages, ")
    assert told(run(str(copy), "get", "q", "--json"))["body"] == "1"
    assert "app" in run("", "user", "list", str(copy)).stdout
    assert sorted(each.name for each in tmp_path.iterdir() if ".part" in each.name) == []


def test_a_backup_replaces_nothing_and_leaves_nothing_where_it_fails(tmp_path: Path) -> None:
    path, copy = tmp_path / "app.db", tmp_path / "copy.db"
    copy.write_text("mine")
    with application(path):
        there = run("", "backup", str(path), str(copy))
        nowhere = run("", "backup", str(path), str(tmp_path / "no" / "copy.db"))
    missing = run("", "backup", str(tmp_path / "none.db"), str(tmp_path / "new.db"))
    for result, why in (
        (there, "exists already"),
        (nowhere, "No such file or directory"),
        (missing, "there is no such file"),
    ):
        assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
        assert why in result.stderr
    assert copy.read_text() == "mine"
    with path.open("r+b") as damaged:
        damaged.seek(8_192)
        damaged.write(b"\xff" * 20_000)
    assert run("", "backup", str(path), str(tmp_path / "new.db")).exit_code == 1
    assert not list(tmp_path.glob("new.db*"))
    assert run("", "backup", "amqp://host", str(tmp_path / "new.db")).exit_code == 2


def test_a_backup_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    path, copy = tmp_path / "app.db", tmp_path / "copy.db"
    with application(path):
        run(str(path), "publish", "q", *[__file__] * 1_200)

        def interrupted(pages: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backup(str(path), str(copy), interrupted)
        assert not list(tmp_path.glob("copy.db*"))
        (tmp_path / "copy.db.part").write_text("of another")
        with pytest.raises(StoreError, match="exists already"):
            backup(str(path), str(copy))
        assert (tmp_path / "copy.db.part").read_text() == "of another"
