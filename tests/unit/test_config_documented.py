"""docs/configuration.md lists every key of every model, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

import broker_client.config as config_module
from broker_client.config_loader import load_config
from broker_client.config_values import duration_seconds

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
MODELS = {
    name: value
    for name in config_module.__all__
    if isinstance(value := getattr(config_module, name), type) and issubclass(value, BaseModel)
}


def rows(model: str) -> dict[str, str]:
    """Key and printed default of each row in the table of `model`."""
    parts = re.split(r"^### (\w+)$", DOCUMENT, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert model in sections, f"docs/configuration.md has no section ### {model}"
    table = sections[model].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, flags=re.MULTILINE))


def keys(model: str) -> dict[str, FieldInfo]:
    """What users may write; the name of an entry is the key it stands under."""
    return {
        str(field.validation_alias or name): field
        for name, field in MODELS[model].model_fields.items()
        if name != "name" or not field.is_required()
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_documented_and_no_other(model: str) -> None:
    assert rows(model).keys() == keys(model).keys()


@pytest.mark.parametrize("model", MODELS)
def test_documented_default_is_the_default(model: str) -> None:
    printed = rows(model)
    for key, field in keys(model).items():
        assert is_default(printed[key], field), f"{model}.{key}: {printed[key]}"


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
    if text.endswith("s") and not isinstance(value, str):
        return bool(duration_seconds(text) == value)
    if isinstance(value, str):
        return text == (value or "''")
    if isinstance(value, tuple):
        return text == str(list(value)).replace("'", '"')
    return text == str(value)


def test_examples_of_the_document_are_good(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    configurations = [block for block in blocks if not block.startswith("#")]
    assert len(configurations) >= 2
    for block in configurations:
        file = tmp_path / "app.yaml"
        file.write_text(block if "vhosts:\n" in block else "vhosts: [/]\n" + block)
        assert load_config(file).vhosts
