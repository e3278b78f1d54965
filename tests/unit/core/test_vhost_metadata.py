"""The default queue type of a vhost: which queues get it, and how they compare afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.errors import InvalidVHostError, ReplyError
from tests.support.builders import EngineHarness

TYPE = "x-queue-type"


def set_default(harness: EngineHarness, type: str) -> None:
    harness.engine.set_vhost_metadata("/", VHostMetadata(default_queue_type=type))


def declare(harness: EngineHarness, name: str = "q", **options: Any) -> dict[str, Any]:
    """Declare, on a channel of its own; returns the arguments that the queue has."""
    channel = harness.another_channel(confirm=False)
    harness.engine.topology.declare_queue(channel, name, harness.now, **options)
    return dict(harness.engine.state.vhosts["/"].queues[name].arguments)


def test_queue_that_names_no_type_gets_the_default(harness: EngineHarness) -> None:
    set_default(harness, "quorum")
    assert declare(harness, arguments={"x-max-length": 3}) == {TYPE: "quorum", "x-max-length": 3}
    queue = harness.engine.state.vhosts["/"].queues["q"]
    assert (queue.type, queue.settings.quorum) == ("quorum", True)
    assert declare(harness, "own", arguments={TYPE: "classic"}) == {TYPE: "classic"}


@pytest.mark.parametrize(
    "options", [{"exclusive": True}, {"auto_delete": True}, {"durable": False}]
)
def test_queue_that_only_a_classic_one_can_be_is_classic(
    harness: EngineHarness, options: dict[str, Any]
) -> None:
    set_default(harness, "quorum")
    assert declare(harness, **options) == {TYPE: "classic"}
    assert harness.engine.state.vhosts["/"].queues["q"].type == "classic"


def test_default_of_a_new_vhost_changes_no_arguments(harness: EngineHarness) -> None:
    assert declare(harness) == {}


def test_redeclaration_without_a_type_is_the_same_queue(harness: EngineHarness) -> None:
    set_default(harness, "quorum")
    for arguments in (None, {}, {TYPE: "quorum"}, None):
        assert declare(harness, arguments=arguments) == {TYPE: "quorum"}
    with pytest.raises(ReplyError, match="received 'classic' but current is 'quorum'"):
        declare(harness, arguments={TYPE: "classic"})
    declare(harness, "fleeting", auto_delete=True)
    assert declare(harness, "fleeting", auto_delete=True) == {TYPE: "classic"}


def test_queue_keeps_its_type_when_the_default_changes(harness: EngineHarness) -> None:
    declare(harness, "old")
    set_default(harness, "quorum")
    declare(harness, "new")
    with pytest.raises(ReplyError, match="received 'quorum' but current is 'classic'"):
        declare(harness, "old")
    set_default(harness, "classic")
    with pytest.raises(ReplyError, match="received 'classic' but current is 'quorum'"):
        declare(harness, "new")
    assert declare(harness, "old") == {}


def test_argument_that_the_default_type_does_not_take_is_refused(harness: EngineHarness) -> None:
    set_default(harness, "quorum")
    with pytest.raises(ReplyError, match=r"x-max-priority.*of queue type rabbit_quorum_queue"):
        declare(harness, arguments={"x-max-priority": 3})


@pytest.mark.parametrize(
    ("type", "why"), [("stream", "this broker has no streams"), ("rubbish", "not a queue type")]
)
def test_type_that_this_broker_has_not_got_is_refused(
    harness: EngineHarness, type: str, why: str
) -> None:
    set_default(harness, "quorum")
    with pytest.raises(InvalidVHostError, match=why):
        set_default(harness, type)
    assert harness.engine.vhost_metadata("/").default_queue_type == "quorum"


def test_metadata_of_a_missing_vhost_is_refused(harness: EngineHarness) -> None:
    with pytest.raises(ReplyError, match="vhost nope not found"):
        harness.engine.set_vhost_metadata("nope", VHostMetadata())
