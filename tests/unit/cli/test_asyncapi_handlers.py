"""``broker-client asyncapi``: the model that describes the messages of a subscription."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app

PROGRAM = """
from pydantic import BaseModel
from broker_client import Router

class Whole(BaseModel):
    id: int

class Part(BaseModel):
    id: int

router = Router({"vhosts": {"/": {"queues": ["all", "some"]}}})

@router.handle("/all")
async def whole(order: Whole) -> None: ...

@router.handle("/some", type="part")
async def part(order: Part) -> None: ...

@router.handle("/some")
async def rest(order: Part) -> None: ...
"""


def test_model_of_a_handler_for_some_of_the_messages_does_not_describe_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_parts.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, ["asyncapi", "shop_of_parts:router"])
    assert done.exit_code == 0, done.output
    assert "Whole" in done.output
    assert "Part" not in done.output
