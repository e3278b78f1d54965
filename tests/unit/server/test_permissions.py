"""Each method needs the permission that RabbitMQ's documentation gives, and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pamqp import commands
from pamqp.base import Frame

from broker_client.core.access import Permission
from broker_client.node.node import Node
from broker_client.server.permissions import SessionPermissions

CONFIGURE, WRITE, READ = Permission.CONFIGURE, Permission.WRITE, Permission.READ
DLX: dict[str, Any] = {"x-dead-letter-exchange": "dlx"}
AE: dict[str, Any] = {"alternate-exchange": "ae"}

NEEDS: list[tuple[Frame, set[tuple[Permission, str]]]] = [
    (commands.Exchange.Declare(exchange="x"), {(CONFIGURE, "x")}),
    (
        commands.Exchange.Declare(exchange="x", arguments=AE),
        {(CONFIGURE, "x"), (READ, "x"), (WRITE, "ae")},
    ),
    (commands.Exchange.Declare(exchange="x", passive=True), set()),
    (commands.Exchange.Delete(exchange="x"), {(CONFIGURE, "x")}),
    (commands.Exchange.Bind(destination="d", source="s"), {(WRITE, "d"), (READ, "s")}),
    (commands.Exchange.Unbind(destination="d", source="s"), {(WRITE, "d"), (READ, "s")}),
    (commands.Queue.Declare(queue="q"), {(CONFIGURE, "q")}),
    (
        commands.Queue.Declare(queue="q", arguments=DLX),
        {(CONFIGURE, "q"), (READ, "q"), (WRITE, "dlx")},
    ),
    (
        commands.Queue.Declare(queue="q", arguments={"x-dead-letter-exchange": ""}),
        {(CONFIGURE, "q"), (READ, "q"), (WRITE, "amq.default")},
    ),
    (commands.Queue.Declare(queue="q", passive=True, arguments=DLX), set()),
    (commands.Queue.Delete(queue="q"), {(CONFIGURE, "q")}),
    (commands.Queue.Bind(queue="q", exchange="x"), {(WRITE, "q"), (READ, "x")}),
    (commands.Queue.Bind(queue="q", exchange=""), {(WRITE, "q"), (READ, "amq.default")}),
    (commands.Queue.Unbind(queue="q", exchange="x"), {(WRITE, "q"), (READ, "x")}),
    (commands.Queue.Purge(queue="q"), {(READ, "q")}),
    (commands.Basic.Get(queue="q"), {(READ, "q")}),
    (commands.Basic.Consume(queue="q"), {(READ, "q")}),
    (commands.Basic.Consume(queue="amq.rabbitmq.reply-to"), set()),
    (commands.Basic.Cancel(consumer_tag="t"), set()),
    (commands.Basic.Qos(), set()),
    (commands.Confirm.Select(), set()),
    (commands.Tx.Select(), set()),
]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    node.administration.add_vhost("/")
    node.access.add_user("ann", "secret")
    yield node
    await node.close()


def permit(node: Node, rights: set[tuple[Permission, str]]) -> SessionPermissions:
    patterns: dict[str, str] = {
        each.value: "|".join(
            f"^{name}$" for right, name in sorted(rights, key=str) if right is each
        )
        for each in Permission
    }
    node.access.set_permissions("ann", "/", **patterns)
    return SessionPermissions(node, "ann", "/")


def described(case: Any) -> str | None:
    return f"{case.name}-{case.marshal()!r:.60}" if isinstance(case, Frame) else None


@pytest.mark.parametrize(("method", "needed"), NEEDS, ids=described)
async def test_method_is_allowed_with_what_it_needs_and_refused_without_any_of_it(
    node: Node, method: Frame, needed: set[tuple[Permission, str]]
) -> None:
    assert permit(node, needed).check(method) is None
    for missing in needed:
        # Everything else, on any name: only the one pair is missing.
        rest = {(right, ".*") for right in Permission if right is not missing[0]}
        rest |= {each for each in needed if each != missing}
        refusal = permit(node, rest).check(method)
        assert refusal is not None, missing
        assert (refusal.reply_code, refusal.scope) == (403, "channel")
        assert f"ACCESS_REFUSED - {missing[0].value} access to " in refusal.reply_text
        assert f" '{missing[1]}' in vhost '/' refused for user 'ann'" in refusal.reply_text


async def test_user_without_permissions_may_nothing_that_needs_any(node: Node) -> None:
    permissions = SessionPermissions(node, "ann", "/")
    for method, needed in NEEDS:
        assert (permissions.check(method) is None) is (not needed), method.name


async def test_empty_name_of_a_queue_means_the_one_declared_last(node: Node) -> None:
    permissions = permit(node, {(READ, "last")})
    assert permissions.check(commands.Basic.Get(queue=""), "last") is None
    assert permissions.check(commands.Basic.Get(queue=""), "other") is not None


async def test_queue_named_by_the_server_needs_configure_for_such_a_name(node: Node) -> None:
    declare = commands.Queue.Declare(queue="")
    assert permit(node, {(CONFIGURE, "amq\\.gen-.*")}).check(declare, "last") is None
    refusal = permit(node, {(CONFIGURE, "last")}).check(declare, "last")
    assert refusal is not None


async def test_redeclaring_what_is_there_needs_nothing_for_its_target(node: Node) -> None:
    # RabbitMQ: dead-letter and alternate exchanges are looked at when something new is made.
    vhost = node.engine.state.vhosts["/"]
    assert "amq.topic" in vhost.exchanges
    method = commands.Exchange.Declare(exchange="amq.topic", arguments=AE)
    assert permit(node, {(CONFIGURE, "amq.topic")}).check(method) is None


# --------------------------------------------------------------------------- publish, topics


@pytest.mark.parametrize(("exchange", "name"), [("orders", "orders"), ("", "amq.default")])
async def test_publish_needs_write_on_the_exchange(node: Node, exchange: str, name: str) -> None:
    assert permit(node, {(WRITE, name)}).check_publish(exchange, ["k"]) is None
    refusal = permit(node, {(WRITE, "other"), (READ, ".*")}).check_publish(exchange, ["k"])
    assert refusal is not None
    assert refusal.reply_text == (
        f"ACCESS_REFUSED - write access to exchange '{name}' in vhost '/' refused for user 'ann'"
    )


async def test_taken_permission_counts_for_the_next_publish_of_an_open_connection(
    node: Node,
) -> None:
    permissions = permit(node, {(WRITE, "orders")})
    assert permissions.check_publish("orders", ["k"]) is None
    node.access.clear_permissions("ann", "/")
    assert permissions.check_publish("orders", ["k"]) is not None


async def test_deleted_user_may_do_nothing_more_on_an_open_connection(node: Node) -> None:
    node.access.add_user("bob", "x")
    permissions = permit(node, {(WRITE, "orders"), (READ, "q")})
    assert permissions.check_publish("orders", ["k"]) is None
    node.access.remove_user("ann")
    assert permissions.check_publish("orders", ["k"]) is not None
    assert permissions.check(commands.Basic.Get(queue="q")) is not None


async def test_topic_permissions_limit_the_keys_of_publishes_and_bindings(node: Node) -> None:
    permissions = permit(node, {(WRITE, ".*"), (READ, ".*")})
    node.access.set_topic_permissions("ann", "/", "amq.topic", write="^{username}\\.", read="^r")
    assert permissions.check_publish("amq.topic", ["ann.x"]) is None
    refusal = permissions.check_publish("amq.topic", ["ann.x", "bob.x"])  # the second by CC
    assert refusal is not None
    assert "write access to topic 'bob.x' in exchange 'amq.topic'" in refusal.reply_text
    bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="r.#")
    assert permissions.check(bind) is None
    bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#")
    assert permissions.check(bind) is not None
    unbind = commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="#")
    assert permissions.check(unbind) is not None


async def test_topic_permissions_are_for_topic_exchanges_only(node: Node) -> None:
    permissions = permit(node, {(WRITE, ".*"), (READ, ".*")})
    node.access.set_topic_permissions("ann", "/", "amq.direct", write="^a$", read="^a$")
    assert permissions.check_publish("amq.direct", ["b"]) is None
