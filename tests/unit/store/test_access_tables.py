"""Users and permissions in a file: kept, restored, checked and salvaged."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from broker_client.core.access import ADMINISTRATOR, Permission
from broker_client.errors import StoreCorruptError
from broker_client.node.node import Node
from broker_client.store import tables
from broker_client.store.maintenance import check, compact
from broker_client.store.writer import SqliteStore
from tests.support.files import rows


@contextlib.asynccontextmanager
async def a_node(path: Path):  # type: ignore[no-untyped-def]
    node = Node(store=SqliteStore(str(path)))
    await node.recover()
    try:
        yield node
    finally:
        await node.close()


async def filled(path: Path) -> Path:
    async with a_node(path) as node:
        node.access.add_user("ann", "secret", tags=["management", "a,b"])
        node.access.add_user("bob", None)
        node.access.set_permissions("ann", "/", configure="^c", write="^w", read="^r")
        node.access.set_permissions("bob", "/", configure="", write="", read="")
        node.access.set_topic_permissions("ann", "/", "t", write="^{username}", read=".*")
    return path


async def test_users_outlive_the_node(tmp_path: Path) -> None:
    path = await filled(tmp_path / "broker.db")
    async with a_node(path) as node:
        ann = node.access.authenticate("ann", "secret")
        assert ann is not None
        assert ann.tags == ("management", "a,b")
        assert node.access.authenticate("bob", "") is None
        assert node.access.may("ann", "/", Permission.WRITE, "wide")
        assert not node.access.may("ann", "/", Permission.WRITE, "read")
        assert not node.access.may_topic("ann", "/", Permission.WRITE, "t", "bob.x")
        node.access.clear_topic_permissions("ann", "/")
        node.access.clear_permissions("bob", "/")
        node.access.remove_user("ann")
    async with a_node(path) as node:
        assert [user.name for user in node.access.users] == ["bob"]
        assert node.access.users.permissions() == []
    assert rows(path, "SELECT * FROM topic_permissions") == []


async def test_password_is_not_in_the_file(tmp_path: Path) -> None:
    path = await filled(tmp_path / "broker.db")
    assert b"secret" not in path.read_bytes()


async def test_each_user_has_a_salt_of_its_own(tmp_path: Path) -> None:
    async with a_node(tmp_path / "broker.db") as node:
        first = node.access.add_user("a", "same").password_hash
        assert node.access.add_user("b", "same").password_hash != first


@pytest.mark.parametrize("table", sorted(tables.ACCESS))
async def test_damaged_row_is_found_and_salvage_keeps_the_others(
    tmp_path: Path, table: str
) -> None:
    path = await filled(tmp_path / "broker.db")
    (hashed,) = rows(path, "SELECT password_hash FROM users WHERE name = 'ann'")[0]
    before = {each: rows(path, f"SELECT count(*) FROM {each}")[0][0] for each in tables.ACCESS}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        key = "name" if table == "users" else "user"
        connection.execute(f"UPDATE {table} SET sum = sum + 1 WHERE {key} = 'ann'")
        connection.commit()
    problems = check(str(path)).problems
    assert len(problems) == 1
    assert f"a row of {table} is damaged" in problems[0]
    assert hashed not in problems[0]
    with pytest.raises(StoreCorruptError, match=f"a row of {table} is damaged"):
        async with a_node(path):
            pass
    compact(str(path), drop_damaged=True)
    before[table] -= 1
    assert before == {
        each: rows(path, f"SELECT count(*) FROM {each}")[0][0] for each in tables.ACCESS
    }
    assert check(str(path)).problems == ()


async def test_default_user_is_added_to_a_node_without_users_only(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    async with a_node(path) as node:
        assert node.access.add_default_user()
        guest = node.access.authenticate("guest", "guest")
        assert guest is not None
        assert guest.tags == (ADMINISTRATOR,)
        assert node.access.is_loopback_only("guest")
        assert node.access.may("guest", "/", Permission.CONFIGURE, "anything")
        node.access.add_user("ann", "secret")
        node.access.remove_user("guest")
    async with a_node(path) as node:
        assert not node.access.add_default_user()
        assert [user.name for user in node.access.users] == ["ann"]
        assert not node.access.is_loopback_only("ann")
