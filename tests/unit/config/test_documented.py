"""docs/configuration.md and docs/configuration/ describe every key as the models do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from broker_client.config.loader import load_config
from broker_client.config.schema import config_schema
from broker_client.config.values import duration_seconds, size_bytes
from tests.docs import configuration
from tests.docs.configuration import MODELS, keys
from tests.docs.documents import read

DOCUMENT = "\n".join(map(read, configuration.DOCUMENTS))
SCHEMA = config_schema()


def rows(model: str) -> dict[str, tuple[str, str, str]]:
    """Value, default and meaning by key, in the table of `model`."""
    parts = re.split(r"^### (\w+)$", DOCUMENT, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert model in sections, f"no document of the configuration has a section ### {model}"
    table = sections[model].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", table, flags=re.MULTILINE)
    return {key: (value, default, meaning) for key, value, default, meaning in found}


@pytest.mark.parametrize("name", configuration.DOCUMENTS)
def test_document_is_what_the_models_say(name: str) -> None:
    present = read(name)
    assert configuration.text(present, name) == present, "run: python -m tests.docs.configuration"


@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_documented_and_no_other(model: str) -> None:
    assert rows(model).keys() == keys(MODELS[model]).keys()


@pytest.mark.parametrize("model", MODELS)
def test_documented_default_is_the_default(model: str) -> None:
    printed = rows(model)
    for key, field in keys(MODELS[model]).items():
        assert is_default(printed[key][1], field), f"{model}.{key}: {printed[key]}"


@pytest.mark.parametrize(
    ("model", "key", "value", "default"),
    [
        ("ConnectionConfig", "connect_timeout", "duration", "`10s`"),
        ("ScanConfig", "interval", "duration", "`100ms`"),
        ("NodeConfig", "max_publish_delay", "duration", "`25d`"),
        ("NodeConfig", "memory_limit", "size", "`64MiB`"),
        ("ConnectionConfig", "frame_max", "size", "none"),
        ("ConnectionConfig", "retry", "[RetryConfig](#retryconfig)", "see below"),
        ("QueueConfig", "reply_to", "`true`, `false` or text", "none"),
        ("PublishQueueConfig", "policy", "`wait`, `reject`, `drop_oldest`", "`wait`"),
        ("SubscriptionConfig", "prefetch", "0 to 65535", "`10`"),
        ("SubscriptionConfig", "queue", "text", "required"),
        (
            "BrokerConfig",
            "shovels",
            "[ShovelConfig](configuration/consuming.md#shovelconfig) by name",
            "none",
        ),
    ],
)
def test_value_and_default_stand_there_as_users_write_them(
    model: str, key: str, value: str, default: str
) -> None:
    assert rows(model)[key][:2] == (value, default)


@pytest.mark.parametrize("name", configuration.DOCUMENTS)
def test_links_of_the_tables_lead_to_sections(name: str) -> None:
    present = read(name)
    headings = {each.lower() for each in re.findall(r"^#+ (\w+)$", present, flags=re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", present)) <= headings


@pytest.mark.parametrize("model", MODELS)
def test_editors_are_told_the_same(model: str) -> None:
    schema = SCHEMA
    defined = schema["$defs"].get(model, schema)
    [about] = re.findall(rf"^### {model}\n\n(.+)$", DOCUMENT, flags=re.MULTILINE)
    assert about in " ".join(defined["description"].split())
    for key, (_, _, meaning) in rows(model).items():
        assert key == "strategy" or meaning in " ".join(
            defined["properties"][key]["description"].split()
        )


def is_default(printed: str, field: FieldInfo) -> bool:
    if field.is_required():
        return printed == "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return printed == "see below"
    if value is None or value in ({}, ()):
        return printed == "none"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    text = printed.strip("`")
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, float) and text[-1].isalpha():
        return bool(duration_seconds(text) == value)
    if isinstance(value, int) and text[-1].isalpha():
        return value in (_quantity(duration_seconds, text), _quantity(size_bytes, text))
    if isinstance(value, str):
        return text == (value or "''")
    if isinstance(value, tuple):
        return text == str(list(value)).replace("'", '"')
    return text == str(value)


def _quantity(read: Callable[[object], float], text: str) -> float | None:
    try:
        return read(text)
    except ValueError:
        return None


def test_examples_of_the_document_are_good(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    configurations = [block for block in blocks if not block.startswith("#")]
    assert len(configurations) >= 2
    for block in configurations:
        file = tmp_path / "app.yaml"
        file.write_text(block if "vhosts:\n" in block else "vhosts: [/]\n" + block)
        assert load_config(file).vhosts
