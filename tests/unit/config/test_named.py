"""Shovels, counters and encryption profiles: declared once, referred to by name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from broker_client.config import (
    BrokerConfig,
    ConsumeOptions,
    CounterConfig,
    DeduplicateConfig,
    EncryptionConfig,
    Forward,
    NodeConfig,
    Republish,
    ShovelConfig,
    SubscriptionConfig,
    strategies_from,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError

KEY = "0f" * 32
PROFILE = {"key": KEY, "algorithm": "aes-256-cbc", "iv_length": 16}


def a_config(vhost: dict[str, Any], **root: Any) -> BrokerConfig:
    return load_config({"vhosts": {"/": {"queues": ["q", "r"], **vhost}}, **root})


def problems(vhost: dict[str, Any], **root: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        a_config(vhost, **root)
    return [f"{each.path}: {each.message}" for each in caught.value.problems]


# --------------------------------------------------------------------------- shovels

ENDS = {"publications": {"p": {"queue": "r"}}, "subscriptions": {"s-1": {"queue": "q"}}}


@pytest.mark.parametrize(
    "shovels",
    [
        ["s-1 -> p"],
        ["s-1->p"],
        {"s-1 -> p": None},
        {"s-1 -> p": {}},
        [{"subscription": "s-1", "publication": "p"}],
        {"s-1 -> p": {"subscription": "s-1", "publication": "p"}},
    ],
)
def test_shovel_is_written_in_many_ways(shovels: object) -> None:
    assert a_config(ENDS, shovels=shovels).shovels == {
        "s-1 -> p": ShovelConfig(name="s-1 -> p", subscription="s-1", publication="p")
    }


@pytest.mark.parametrize("shovels", [{"x": "/q -> /r"}, [{"name": "x", "subscription": "/q"}]])
def test_shovel_has_a_name_and_may_use_what_is_implied(shovels: Any) -> None:
    if isinstance(shovels, list):
        shovels[0] = {**shovels[0], "publication": "/r"}
    found = a_config({}, shovels=shovels).shovels["x"]
    assert (found.subscription, found.publication) == ("/q", "/r")


@pytest.mark.parametrize("text", ["s > p", "s -> p -> q", "-> p", "s ->", "s p -> q", "s->p->q"])
def test_what_is_no_shovel_is_refused_whole(text: str) -> None:
    (problem,) = problems(ENDS, shovels=[text])
    assert problem.startswith(f"shovels[0]: {text!r} is not a shovel; write 'subscription -> pub")


def test_shovel_of_unknown_names_is_refused() -> None:
    assert problems(ENDS, shovels={"x": "s -> q"}) == [
        "shovels.x.publication: unknown publication 'q' (allowed: p)",
        "shovels.x.subscription: unknown subscription 's' (allowed: s-1)",
    ]


def test_shovel_needs_both_ends() -> None:
    assert problems(ENDS, shovels={"x": {"subscription": "s-1"}}) == [
        "shovels.x.publication: is missing"
    ]


# --------------------------------------------------------------------------- counters


def counter_of(config: BrokerConfig, name: str = "s") -> CounterConfig:
    return config.counter_of(config.subscriptions[name])


def counted(counter: str | None) -> dict[str, Any]:
    return {"subscriptions": {"s": {"queue": "q", "redeliveries": {"counter": counter}}}}


@pytest.mark.parametrize(("name", "kind"), [(None, "stub"), ("stub", "stub"), ("memory", "memory")])
def test_stub_and_memory_are_there_without_being_declared(name: str | None, kind: str) -> None:
    found = counter_of(a_config(counted(name)))
    assert (found.type, found.size) == (kind, 1000)


def test_counter_of_the_vhost_comes_before_that_of_the_file() -> None:
    def declared(path: str) -> dict[str, Any]:
        return {"counters": {"mine": {"type": "sqlite", "path": path}}}

    config = a_config(
        {**counted("mine"), "redeliveries": declared("vhost.db")}, redeliveries=declared("file.db")
    )
    assert counter_of(config).path == "vhost.db"
    assert counter_of(a_config(counted("mine"), redeliveries=declared("file.db"))).path == "file.db"


@pytest.mark.parametrize("counters", [{"memory": {"size": 5}}, [{"name": "memory", "size": 5}]])
def test_type_of_a_counter_is_its_name_when_left_out(counters: object) -> None:
    config = a_config(counted("memory"), redeliveries={"counters": counters})
    assert (counter_of(config).type, counter_of(config).size) == ("memory", 5)


def test_unknown_counter_is_refused_with_those_there_are() -> None:
    root = {"counters": {"mine": {"type": "memory"}}}
    assert problems(counted("min"), redeliveries=root) == [
        "vhosts./.subscriptions.s.redeliveries.counter: unknown counter 'min' "
        "(did you mean 'mine'?; allowed: memory, mine, stub)"
    ]


@pytest.mark.parametrize(
    ("counter", "text"),
    [
        ({"type": "inMemory"}, "c.type: unknown value 'inMemory' (did you mean 'memory'?"),
        ({}, "c.type: is missing"),
        ({"type": "sqlite"}, "c: sqlite needs a path"),
        ({"type": "redis"}, "c: redis needs a url"),
        ({"type": "memory", "path": "x"}, "c: path is for sqlite; this is memory"),
        ({"type": "memory", "options": {"a": 1}}, "c: options are for a custom counter"),
        ({"type": "memory", "size": 0}, "c.size: must be greater than or equal to 1"),
    ],
)
def test_wrong_counter_is_refused(counter: dict[str, Any], text: str) -> None:
    (problem,) = problems({}, redeliveries={"counters": {"c": counter}})
    assert problem.startswith(f"redeliveries.counters.{text}")


def test_custom_counter_takes_any_options() -> None:
    counter = CounterConfig(name="c", type="custom", options={"depth": 3}, path="x")
    assert counter.options == {"depth": 3}


def test_redeliveries_have_rascals_defaults() -> None:
    found = SubscriptionConfig(name="s", queue="q").redeliveries
    assert (found.limit, found.timeout, found.counter) == (100, 1.0, "stub")


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_store_of_message_ids_needs_its_place(store: str) -> None:
    with pytest.raises(ValidationError, match=f"{store} needs a"):
        DeduplicateConfig.model_validate({"store": store})


def test_address_of_a_counter_is_not_printed() -> None:
    counter = CounterConfig.model_validate(
        {"name": "c", "type": "redis", "url": "redis://u:hunter2@h"}
    )
    assert "hunter2" not in repr(counter)
    with pytest.raises(ConfigError) as caught:
        a_config({}, redeliveries={"counters": {"c": {"type": "redis", "url": ["u:hunter2@h"]}}})
    assert "hunter2" not in str(caught.value)


# --------------------------------------------------------------------------- encryption


def test_publication_names_a_profile_or_holds_one() -> None:
    config = a_config(
        {
            "publications": {
                "named": {"queue": "q", "encryption": "k"},
                "own": {"queue": "q", "encryption": {"name": "x", **PROFILE}},
                "plain": {"queue": "q"},
            }
        },
        encryption={"k": PROFILE},
    )
    found = [config.publications[name].encryption for name in ("named", "own", "plain")]
    assert found[0] == config.encryption["k"]
    assert found[1] is not None
    assert (found[1].name, found[1].key_bytes) == ("x", bytes.fromhex(KEY))
    assert found[2] is None


@pytest.mark.parametrize(
    ("encryption", "names"),
    [
        (None, ["k", "l"]),
        ("k", ["k"]),
        (["l", "k"], ["l", "k"]),
        ({"k": None, "x": PROFILE}, ["k", "x"]),
        ([{"name": "x", **PROFILE}], ["x"]),
    ],
)
def test_subscription_decrypts_with_the_named_profiles_or_with_all(
    encryption: object, names: list[str]
) -> None:
    config = a_config(
        {"subscriptions": {"s": {"queue": "q", "encryption": encryption}}},
        encryption={"k": PROFILE, "l": PROFILE},
    )
    profiles = config.profiles_of(config.subscriptions["s"])
    assert list(profiles) == [each.name for each in profiles.values()] == names


def test_profile_by_name_can_be_a_default_and_reaches_what_is_implied() -> None:
    config = a_config(
        {"publications": {"p": {"queue": "q"}}},
        encryption={"k": PROFILE},
        defaults={"publications": {"encryption": "k"}, "subscriptions": {"encryption": ["k"]}},
    )
    assert config.publications["p"].encryption == config.encryption["k"]
    implied = config.find_publication("/q")
    assert implied is not None
    assert implied.encryption == config.encryption["k"]
    subscription = config.find_subscription("/q")
    assert subscription is not None
    assert subscription.encryption == {"k": config.encryption["k"]}


def test_unknown_profile_is_refused_wherever_it_is_named() -> None:
    assert problems(
        {
            "publications": {"p": {"queue": "q", "encryption": "kk"}},
            "subscriptions": {"s": {"queue": "q", "encryption": ["k", "m"]}},
        },
        encryption={"k": PROFILE},
    ) == [
        "vhosts./.subscriptions.s.encryption.m: unknown encryption profile 'm' (allowed: k)",
        "vhosts./.publications.p.encryption: unknown encryption profile 'kk' "
        "(did you mean 'k'?; allowed: k)",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key": None}, "key: is missing"),
        ({"algorithm": None}, "algorithm: is missing"),
        ({"algorithm": "des"}, "algorithm: unknown value 'des' (allowed: aes-128-cbc"),
        ({"key": "secret!"}, ": key must be written in hexadecimal digits"),
        ({"key": "0f" * 16}, ": aes-256-cbc needs a key of 32 bytes, that is 64 hexadecimal"),
        ({"iv_length": 12}, ": aes-256-cbc needs an iv_length of 16"),
        (
            {"algorithm": "aes-256-gcm", "iv_length": 7},
            ": aes-256-gcm needs an iv_length of 8 or more; leave it out for 12",
        ),
        ({"ivLength": 16}, "ivLength: unknown key: ivLength is written iv_length here"),
    ],
)
def test_wrong_profile_is_refused_without_showing_its_key(
    changes: dict[str, Any], text: str
) -> None:
    (problem,) = problems({}, encryption={"k": {**PROFILE, **changes}})
    assert problem.startswith(f"encryption.k{'' if text.startswith(':') else '.'}{text}")
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("algorithm", "size", "vector", "authenticated"),
    [
        ("aes-256-cbc", 32, 16, False),
        ("aes-192-cbc", 24, 16, False),
        ("aes-128-cbc", 16, 16, False),
        ("aes-256-gcm", 32, 12, True),
        ("aes-128-gcm", 16, 12, True),
    ],
)
def test_algorithm_decides_on_key_and_vector(
    algorithm: str, size: int, vector: int, authenticated: bool
) -> None:
    profile = EncryptionConfig.model_validate(
        {"name": "k", "key": "ab" * size, "algorithm": algorithm}
    )
    assert len(profile.key_bytes) == size
    assert (profile.iv_bytes, profile.authenticated) == (vector, authenticated)
    with pytest.raises(ValidationError):
        EncryptionConfig.model_validate(
            {"name": "k", "key": "ab" * (size - 1), "algorithm": algorithm}
        )


def test_key_is_not_printed() -> None:
    config = a_config({}, encryption={"k": PROFILE})
    assert KEY not in repr(config)
    assert KEY not in repr(config.model_dump())


# --------------------------------------------------------------------------- streams, recovery


@pytest.mark.parametrize(
    ("offset", "argument"),
    [("first", "first"), ("next", "next"), (5, 5), ("5", 5), ("1h", "1h"), ("7 d", "7D")],
)
def test_offset_of_a_stream_becomes_its_argument(offset: Any, argument: object) -> None:
    options = ConsumeOptions.model_validate({"offset": offset})
    assert options.all_arguments == {"x-stream-offset": argument}


def test_offset_may_be_a_time_in_utc_unless_it_says_otherwise(tmp_path: Any) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(
        "vhosts: {/: {queues: [q]}}\n"
        "subscriptions: {s: {queue: q, options: {offset: 2026-01-02 03:04:05}}}\n"
    )
    found = load_config(file).subscriptions["s"].options.offset
    assert str(found) == "2026-01-02 03:04:05+00:00"


@pytest.mark.parametrize("text", ["2026-01-02 03:04:05", "2026-01-02T05:04:05+02:00"])
def test_offset_may_be_a_time_as_text(text: str) -> None:
    offset = ConsumeOptions.model_validate({"offset": text}).offset
    assert offset == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("offset", ["begin", "1 fortnight", -1, 2.5, True, []])
def test_what_is_no_offset_is_refused(offset: object) -> None:
    with pytest.raises(ValidationError):
        ConsumeOptions.model_validate({"offset": offset})


def test_recovery_takes_what_rascal_has() -> None:
    chain = strategies_from(
        [
            {"strategy": "republish", "immediate_nack": True},
            {
                "strategy": "forward",
                "publication": "p",
                "x_death_fix": True,
                "options": {"persistent": False, "expiration": "5s", "headers": {"a": 1}},
            },
        ]
    )
    assert chain[0] == Republish(immediate_nack=True)
    forward = chain[1]
    assert isinstance(forward, Forward)
    assert forward.x_death_fix
    assert (forward.options.persistent, forward.options.expiration) == (False, 5.0)
    assert forward.options.headers == {"a": 1}


# --------------------------------------------------------------------------- node


def test_node_stands_at_the_root() -> None:
    config = a_config({}, node={"memory_limit": "1MiB", "scan": {"interval": "50ms"}})
    assert (config.node.memory_limit, config.node.scan.interval) == (2**20, 0.05)
    assert problems({"node": {}}) == [
        "vhosts./.node: unknown key: node stands at the root of the file, once for all vhosts"
    ]


def test_node_has_the_defaults_of_nsq() -> None:
    node = NodeConfig()
    assert (node.message_timeout, node.max_message_timeout) == (60.0, 900.0)
    assert node.max_requeue_timeout == 3600.0
    scan = node.scan
    assert (scan.interval, scan.refresh_interval) == (0.1, 5.0)
    assert (scan.selection_count, scan.dirty_percent, scan.worker_pool_max) == (20, 0.25, 4)


def test_touching_cannot_shorten_a_lease() -> None:
    with pytest.raises(ValidationError, match=r"max_message_timeout .* is below message_timeout"):
        NodeConfig(message_timeout=10.0, max_message_timeout=5.0)


# --------------------------------------------------------------------------- vhosts


def test_vhost_starts_and_connects_as_told() -> None:
    vhost = a_config(
        {"assert": True, "check": True, "startup": "retry", "startup_timeout": "2m"}
    ).vhosts["/"]
    assert (vhost.assert_, vhost.check) == (True, True)
    assert (vhost.startup, vhost.startup_timeout) == ("retry", 120.0)
    default = a_config({}).vhosts["/"]
    assert (default.assert_, default.check, default.startup) == (False, False, "fail")
    assert (default.startup_timeout, default.separate_connections) == (None, True)


def test_unknown_reply_queue_is_refused() -> None:
    assert problems({"publications": {"p": {"queue": "q", "reply_to": "answers"}}}) == [
        "vhosts./.publications.p.reply_to: unknown reply queue 'answers' (allowed: q, r)"
    ]


ROOT_ONLY = [
    *("recovery", "encryption", "shovels", "profile", "node"),
    *("schedules", "tracing", "server"),
]
ANYWHERE_ELSE = ["redeliveries", "publications", "subscriptions", "defaults"]
"""Also in a vhost, or in `defaults`."""


@pytest.mark.parametrize(
    ("section", "place"),
    [
        *(
            (name, at)
            for name in ROOT_ONLY
            for at in ("vhosts", "connection", "queues", "defaults")
        ),
        *((name, at) for name in ANYWHERE_ELSE for at in ("connection", "queues")),
    ],
)
def test_section_of_the_whole_file_at_a_wrong_level_is_sent_to_the_root(
    section: str, place: str
) -> None:
    wrong: dict[str, Any] = {section: {"x": {}}}
    vhost: dict[str, Any] = {"queues": {"q": None}}
    document: dict[str, Any] = {"vhosts": {"/": vhost}}
    match place:
        case "vhosts":
            vhost |= wrong
        case "connection":
            vhost["connection"] = {"url": "amqp://h", **wrong}
        case "queues":
            vhost["queues"] = {"q": wrong}
        case "defaults":
            document["defaults"] = wrong
    with pytest.raises(ConfigError, match=f"{section} stands at the root of the file"):
        load_config(document)


@pytest.mark.parametrize("section", ["bindings", "exchanges", "queues"])
@pytest.mark.parametrize("place", ["root", "connection", "subscription"])
def test_section_of_a_vhost_at_a_wrong_level_is_sent_there(section: str, place: str) -> None:
    document: dict[str, Any] = {
        "vhosts": {
            "/": {
                "connection": {"url": "amqp://h"},
                "queues": {"q": None},
                "subscriptions": {"s": {"queue": "q"}},
            }
        }
    }
    vhost = document["vhosts"]["/"]
    {
        "root": document,
        "connection": vhost["connection"],
        "subscription": vhost["subscriptions"]["s"],
    }[place][section] = {}
    with pytest.raises(ConfigError, match=f"{section} stands in a vhost: vhosts.NAME.{section}"):
        load_config(document)
