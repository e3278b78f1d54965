"""Any text is loaded as a configuration, or refused with readable problems."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.config.loader import load_config, load_text
from broker_client.config.tree import expanded
from broker_client.errors import ConfigError
from tests.unit.config.strange import STRANGE, places

GOOD: dict[str, Any] = {
    "vhosts": {
        "/": {
            "connection": {
                "url": "amqps://h",
                "retry": {"max": "5s"},
                "tls": {"verify_hostname": False},
                "management": {"port": 1},
                "client_properties": {"a": 1},
                "frame_max": "64KiB",
            },
            "namespace": "ns",
            "redeliveries": {"counters": {"mine": {"type": "sqlite", "path": "x.db"}}},
            "exchanges": ["e", {"name": "f"}],
            "queues": {"q": {"options": {"arguments": {"x": 1}}}},
            "bindings": ["e -> q", {"source": "e", "destination": "q", "binding_keys": ["k"]}],
            "publications": {
                "p": {
                    "exchange": "e",
                    "options": {"headers": {"h": 1}},
                    "reply_to": "q",
                    "encryption": "k",
                }
            },
            "subscriptions": {
                "s": {
                    "queue": "q",
                    "recovery": "again",
                    "encryption": ["k"],
                    "redeliveries": {"counter": "mine"},
                    "deduplicate": {"window": "1m"},
                    "options": {"offset": "first"},
                }
            },
            "defaults": {"connection": {"heartbeat": "5s"}, "queues": {"purge": True}},
        }
    },
    "recovery": {"again": [{"strategy": "republish"}, {"strategy": "forward", "publication": "p"}]},
    "defaults": {
        "publications": {"timeout": "1s", "encryption": "k"},
        "subscriptions": {"recovery": "again", "encryption": ["k"]},
        "vhosts": {"connection": {"tls": {"verify": True}}, "redeliveries": {"counters": ["stub"]}},
    },
    "shovels": ["s -> p", {"name": "x", "subscription": "s", "publication": "p"}],
    "encryption": {"k": {"key": "ab" * 16, "algorithm": "aes-128-gcm"}},
    "redeliveries": {"counters": {"memory": {"size": 5}}},
    "node": {"scan": {"interval": "50ms"}, "memory_limit": "1MiB"},
    "profile": "test",
}


def with_value(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(GOOD)
    here: Any = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = copy.deepcopy(value)
    return changed


def test_the_starting_point_is_good() -> None:
    assert load_config(GOOD, environ={}).subscriptions["s"].recovery


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_strange_value_in_any_place_gives_a_configuration_or_readable_problems(
    value: object,
) -> None:
    refused = 0
    for path in places(GOOD):
        text = refusal(with_value(path, value))
        assert not re.search("pydantic|[Ii]nput|Value error|type=", text), path
        refused += bool(text)
    assert refused > 0


def refusal(source: dict[str, Any]) -> str:
    """The problems of `source`, "" without any."""
    try:
        load_config(source, environ={})
    except ConfigError as error:
        return str(error)
    return ""


# --------------------------------------------------------------------------- hostile files


def bomb(levels: int) -> str:
    """Ten aliases a level, so 10**levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


def merge_bomb(levels: int) -> str:
    lines = ["a0: &a0 {k: 1}"]
    lines += [
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}"
        for level in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


def chain_of_aliases(length: int) -> str:
    lines = [f"a{each}: &a{each} [*a{each - 1}]" for each in range(1, length)]
    return "\n".join(["a0: &a0 [x]", *lines]) + "\n"


HOSTILE = {
    "aliases": (bomb(9), 5, "more than 100,000 values"),
    "merge keys": (merge_bomb(9), 6, "more than 100,000 values"),
    "brackets": ("\n\na: " + "[" * 100_000, 3, "more than 64 levels deep"),
    "braces": ("a: " + "{a: " * 5_000, 1, "more than 64 levels deep"),
    "blocks": ("\n".join("  " * each + "a:" for each in range(500)), 64, "more than 64 levels"),
    "lists": ("- " * 5_000 + "x", 1, "more than 64 levels deep"),
    "chain of aliases": (chain_of_aliases(5_000), 64, "more than 64 levels deep"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(10)
def test_file_that_is_too_deep_or_too_large_is_refused_with_its_line(name: str) -> None:
    text, line, told = HOSTILE[name]
    with pytest.raises(ConfigError) as caught:
        load_text(text, "app.yaml")
    (problem,) = caught.value.problems
    assert told in problem.message
    assert problem.line == line


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("2026-13-45", "timestamp"),
        ("2026-01-01T99:00:00Z", "timestamp"),
        ("9" * 5_000, "int"),
        ("!!int x", "int"),
        ("!!int ''", "int"),
        ("!!float 1.5.2", "float"),
        ("!!bool perhaps", "bool"),
        ("!!timestamp soon", "timestamp"),
    ],
)
def test_value_that_yaml_cannot_read_is_refused_with_its_line(value: str, kind: str) -> None:
    text = f"vhosts:\n  /:\n    queues:\n      q: {value}\n"
    with pytest.raises(ConfigError) as caught:
        load_text(text, "app.yaml")
    (problem, *_) = caught.value.problems
    assert problem.message.startswith(f"is not a valid {kind}, as which YAML reads it")
    assert (problem.path, problem.line) == ("vhosts./.queues.q", 4)


def test_mapping_that_contains_itself_is_refused() -> None:
    document: dict[str, Any] = {"vhosts": {}}
    document["vhosts"]["/"] = document
    with pytest.raises(ConfigError, match="more than 64 levels deep"):
        load_config(document)


def test_aliases_of_an_ordinary_file_are_filled_in() -> None:
    text = "x: &x {options: {durable: false}}\nvhosts: {/: {queues: {a: *x, b: *x}}}\n"
    with pytest.raises(ConfigError, match="x: unknown key") as caught:
        load_text(text)
    assert len(caught.value.problems) == 1


def test_rascal_file_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rascal.json"
    file.write_text("[" * 100_000)
    result = CliRunner().invoke(app, ["import-rascal", str(file)])
    assert result.exit_code == 1
    assert "nested too deeply" in result.output or "not valid JSON" in result.output


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A:-${B}}", {"A": "a", "B": "b"}, "a"),
        ("${A:-${B}}", {"B": "b"}, "b"),
        ("${A:-${B:-${C:-c}}}-x", {}, "c-x"),
        ("${A:-${B}}", {"A": "a"}, "a"),
        ("${A:-$$}{x}", {}, "${x}"),
        ("a}${A:-}b", {}, "a}b"),
        ("$HOME and $$HOME", {}, "$HOME and $HOME"),
        ("${A}", {"A": "${B}"}, "${B}"),
    ],
)
def test_default_of_a_variable_may_hold_variables(
    text: str, environ: dict[str, str], value: str
) -> None:
    assert expanded(text, environ) == (value, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("${A:-${B}}", "variable B is not set"),
        ("${A:-${B}", "does not begin a variable"),
        ("${A:-" * 200 + "}" * 200, "does not begin a variable"),
        ("${}", "does not begin a variable"),
        ("${A-b}", "does not begin a variable"),
    ],
)
def test_variable_that_cannot_be_filled_in_is_an_error(text: str, told: str) -> None:
    assert told in str(expanded(text, {})[1])
