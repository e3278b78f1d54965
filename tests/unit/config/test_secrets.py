"""A configuration that cannot be loaded shows no secret, even with the locals of each frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_client.config import ConnectionConfig
from broker_client.config.loader import load_config, load_text
from broker_client.errors import ConfigError
from tests.support.tracebacks import with_locals

SECRET = "hunter2" * 3
KEY = "0f" * 31


def a_document(**vhost: Any) -> dict[str, Any]:
    connection = {"hostname": "h", "password": SECRET, "management": {"password": SECRET}}
    return {
        "vhosts": {
            "/": {"connection": connection, **vhost},
            "v": {"connection": f"amqp://u:{SECRET}@h/"},
        },
        "encryption": {"k": {"key": "0f" * 32, "algorithm": "aes-256-gcm"}},
    }


WRONG: dict[str, Callable[[], object]] = {
    "unknown key": lambda: load_config(a_document(quues={})),
    "wrong value": lambda: load_config(a_document(concurrency=SECRET)),
    "unknown name": lambda: load_config(a_document(bindings=["e -> q"])),
    "wrong default": lambda: load_config(
        {**a_document(), "defaults": {"queues": {"options": {"durable": 5}}}}
    ),
    "what cannot work": lambda: load_config(
        a_document(
            queues={"q": {"options": {"arguments": {"x-queue-type": "stream"}}}},
            subscriptions={"s": {"queue": "q", "prefetch": 0}},
        )
    ),
    "wrong url": lambda: load_config({"vhosts": {"/": {"connection": f"amqp://u:{SECRET}/@h"}}}),
    "unknown query": lambda: load_config(
        {"vhosts": {"/": {"connection": f"amqp://u:p@h/?pass={SECRET}"}}}
    ),
    "text": lambda: load_text(f"vhosts: {{/: {{connection: 'amqp://u:{SECRET}@h', quues: 1}}}}"),
    "yaml": lambda: load_text(f"vhosts:\n  /: {{connection: 'amqp://u:{SECRET}@h'\n"),
    "variable": lambda: load_config(a_document(namespace="${MISSING}"), environ={"PW": SECRET}),
    "wrong key": lambda: load_config(
        {"vhosts": ["/"], "encryption": {"k": {"key": KEY, "algorithm": "aes-256-gcm"}}}
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_load_that_fails_shows_no_secret_in_its_frames(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WRONG[name]()
    shown = with_locals(caught.value)
    assert "ConfigError" in shown
    if name == "wrong value":  # the value itself is invalid; the same text elsewhere is not
        shown = shown.replace(f"unknown value '{SECRET}'", "")
    assert SECRET not in shown
    assert KEY not in shown


def a_password_file(folder: Path, encoding: str) -> Path:
    file = folder / "password"
    file.write_bytes(f"{SECRET}\xe9".encode(encoding))
    return file


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
async def test_password_file_that_cannot_be_read_shows_nothing_of_it(
    tmp_path: Path, encoding: str
) -> None:
    file = a_password_file(tmp_path, encoding)
    connection = ConnectionConfig.model_validate({"hostname": "h", "password_file": str(file)})
    with pytest.raises(ValueError, match="not UTF-8") as caught:
        await connection.current_credentials()
    assert SECRET not in with_locals(caught.value).replace("\\x00", "")


async def test_function_that_returns_something_else_shows_nothing_of_it() -> None:
    wrong: Any = lambda: [SECRET]  # noqa: E731
    connection = ConnectionConfig(hostname="h", credentials=wrong)
    with pytest.raises(ValueError, match="must return") as caught:
        await connection.current_credentials()
    assert SECRET not in with_locals(caught.value)
