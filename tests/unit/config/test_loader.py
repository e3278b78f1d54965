"""Sources of a configuration, and the result of loading them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from broker_client.config import BrokerConfig, Nack, Republish, VhostConfig
from broker_client.config.loader import load_config

CONFIG = Path(__file__).parents[3] / "config"
READY_MADE = sorted(CONFIG.glob("*.yaml"))

DESIGN = """
vhosts:
  /:
    connection: embedded://
    exchanges: [flights, {name: dead-letters, type: topic}]
    queues:
      departures:
        options: {arguments: {x-dead-letter-exchange: dead-letters}}
      cemetery: {}
    bindings: ["flights[flight.#] -> departures", "dead-letters -> cemetery"]
    publications:
      departed: {exchange: flights}
    subscriptions:
      departures: {queue: departures, prefetch: 100, recovery: patient}
recovery:
  patient: [{strategy: republish, defer: 200ms, attempts: 2}, {strategy: nack}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "app.yaml"


def test_configuration_of_the_guide_is_loaded_whole(file: Path) -> None:
    file.write_text(DESIGN)
    config = load_config(file)
    vhost = config.vhosts["/"]

    assert list(vhost.exchanges) == ["", "flights", "dead-letters"]
    assert list(vhost.queues) == ["departures", "cemetery"]
    assert [(each.source, each.binding_keys, each.destination) for each in vhost.bindings] == [
        ("flights", ("flight.#",), "departures"),
        ("dead-letters", ("#",), "cemetery"),
    ]
    assert config.publications["departed"].vhost == "/"
    assert config.subscriptions["departures"].recovery == (
        Republish(defer=0.2, attempts=2),
        Nack(),
    )


def test_path_text_and_mapping_give_the_same(file: Path) -> None:
    as_json = file.with_suffix(".json")
    mapping = {"vhosts": {"/": {"queues": ["q"], "connection": "amqp://h/v"}}}
    as_json.write_text(json.dumps(mapping))

    assert load_config(mapping) == load_config(as_json) == load_config(str(as_json))


def test_ready_configuration_is_returned_as_it_is() -> None:
    config = BrokerConfig(vhosts={"/": VhostConfig(name="/")})
    assert load_config(config) is config


def test_mapping_is_not_changed() -> None:
    source = {
        "vhosts": {"/": {"queues": [{"name": "q"}], "publications": {"p": {"queue": "q"}}}},
        "defaults": {"queues": {"options": {"arguments": {"x": 1}}}},
    }
    before = copy.deepcopy(source)
    load_config(source)
    assert source == before


def test_mapping_may_hold_strategy_objects() -> None:
    config = load_config(
        {
            "vhosts": {"/": {"queues": ["q"]}},
            "subscriptions": {"s": {"queue": "q", "recovery": [Republish(defer=1.0), Nack()]}},
        }
    )
    assert config.subscriptions["s"].recovery == (Republish(defer=1.0), Nack())


def test_byte_order_mark_is_no_trouble(file: Path) -> None:
    file.write_text(DESIGN, encoding="utf-8-sig")
    assert "/" in load_config(file).vhosts


def test_merge_keys_and_aliases_work(file: Path) -> None:
    file.write_text(
        "vhosts:\n  /:\n    queues:\n      a: &base {purge: true}\n"
        "      b: {<<: *base, check: true}\n      c: *base\n"
    )
    queues = load_config(file).vhosts["/"].queues
    assert [(each.purge, each.check) for each in queues.values()] == [
        (True, False),
        (True, True),
        (True, False),
    ]


@pytest.mark.parametrize("key", ["on", "yes", "no", "1", "1.5", "null"])
def test_name_is_the_text_as_written_whatever_yaml_makes_of_it(file: Path, key: str) -> None:
    file.write_text(f"vhosts: {{/: {{queues: {{{key}: {{}}}}}}}}")
    assert list(load_config(file).vhosts["/"].queues) == [key]


# --------------------------------------------------------------------------- hoisting


def test_publications_and_subscriptions_of_a_vhost_move_to_the_root() -> None:
    config = load_config(
        {
            "vhosts": {
                "v1": {
                    "queues": ["q"],
                    "publications": {"p": {"queue": "q"}},
                    "subscriptions": [{"name": "s", "queue": "q"}],
                }
            },
            "publications": {"root": {"vhost": "v1", "queue": "q"}},
        }
    )
    assert {name: each.vhost for name, each in config.publications.items()} == {
        "root": "v1",
        "p": "v1",
    }
    assert config.subscriptions["s"].vhost == "v1"


def test_forward_may_name_a_publication_that_is_implied() -> None:
    config = load_config(
        {
            "vhosts": {"/": {"queues": ["q"]}},
            "recovery": {"aside": {"strategy": "forward", "publication": "/q"}},
        }
    )
    assert config.find_publication("/q") is not None


# --------------------------------------------------------------------------- environment


@pytest.mark.parametrize(
    ("text", "environ", "url"),
    [
        ("${URL}", {"URL": "amqp://h/"}, "amqp://guest:***@h:5672/"),
        ("${URL:-amqp://d/}", {}, "amqp://guest:***@d:5672/"),
        ("${URL:-amqp://d/}", {"URL": ""}, "amqp://guest:***@d:5672/"),
        ("${URL:-amqp://d/}", {"URL": "amqp://h/"}, "amqp://guest:***@h:5672/"),
        ("amqp://${U}:${P}@h/", {"U": "u", "P": "p"}, "amqp://u:***@h:5672/"),
    ],
)
def test_variables_are_filled_in(file: Path, text: str, environ: dict[str, str], url: str) -> None:
    file.write_text(f"vhosts: {{/: {{connection: '{text}'}}}}")
    (connection,) = load_config(file, environ=environ).vhosts["/"].connections
    assert connection.masked_url == url


def test_variables_come_from_the_process_when_none_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_QUEUE", "q")
    source = {"vhosts": {"/": {"queues": ["${A_QUEUE}"]}}}
    assert list(load_config(source).vhosts["/"].queues) == ["q"]


def test_two_dollars_are_one_and_a_single_one_stays() -> None:
    source = {"vhosts": {"/": {"queues": ["$${A}", "a$b", "$A"]}}}
    assert list(load_config(source, environ={}).vhosts["/"].queues) == ["${A}", "a$b", "$A"]


def test_variable_becomes_what_its_place_wants(file: Path) -> None:
    file.write_text(
        "vhosts:\n  /:\n    queues:\n      q:\n        purge: ${PURGE}\n"
        "        options:\n          arguments:\n            x-max: ${MAX}\n"
        "            x-text: '${MAX}'\n"
        "    connection:\n      hostname: h\n      password: ${PASSWORD}\n"
    )
    vhost = load_config(file, environ={"PURGE": "true", "MAX": "10", "PASSWORD": "12345"}).vhosts[
        "/"
    ]
    assert vhost.queues["q"].purge is True
    assert vhost.queues["q"].options.arguments == {"x-max": 10, "x-text": "10"}
    assert vhost.connections[0].password.get_secret_value() == "12345"


# --------------------------------------------------------------------------- ready-made files


def test_ready_made_files_are_there() -> None:
    assert {each.name for each in READY_MADE} >= {"demo.yaml", "embedded.yaml", "rabbitmq.yaml"}


@pytest.mark.parametrize("path", READY_MADE, ids=lambda path: path.name)
def test_ready_made_file_loads_without_any_variable_set(path: Path) -> None:
    assert load_config(path, environ={}).vhosts


def test_ready_made_files_differ_in_their_connection_only() -> None:
    embedded = load_config(CONFIG / "embedded.yaml", environ={})
    rabbitmq = load_config(CONFIG / "rabbitmq.yaml", environ={})
    assert embedded.vhosts["/"].connections[0].is_embedded
    assert rabbitmq.vhosts["/"].connections[0].hostname == "127.0.0.1"

    assert embedded.model_dump(exclude={"vhosts": {"/": {"connections"}}}) == rabbitmq.model_dump(
        exclude={"vhosts": {"/": {"connections"}}}
    )


def test_demo_takes_its_broker_from_the_environment() -> None:
    config = load_config(CONFIG / "demo.yaml", environ={"URL": "amqp://guest:guest@h:1/"})
    assert config.vhosts["/"].connections[0].port == 1
    assert {name: each.prefetch for name, each in config.subscriptions.items()} == {
        "departures": 200,
        "late": 200,
        "cemetery": 10,
    }


def test_schema_that_an_editor_wants_named_is_no_setting() -> None:
    assert load_config({"$schema": "config/schema.json", "vhosts": {"/": {}}}).warnings == ()
