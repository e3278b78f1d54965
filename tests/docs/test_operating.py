"""The examples of docs/operating.md work, and fit the service in examples/."""

from __future__ import annotations

import configparser
import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from broker_client import Broker
from broker_client.broker import _DRAIN_TIMEOUT
from broker_client.config.loader import load_config
from tests.docs.documents import ROOT, blocks
from tests.docs.fragments import check_fragments

DOCUMENT = "docs/operating.md"
SERVICE = ROOT / "config" / "service.yaml"
SHOWN = {block.language: block.text for block in blocks(DOCUMENT)}
FROM_ENVIRONMENT, FROM_FILE, REFRESHED = (
    block.text for block in blocks(DOCUMENT) if block.language == "yaml"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a configuration, and a secret as systemd passes it on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "rabbitmq").write_text("p@ss/word\n")
    (tmp_path / "app.yaml").write_text(FROM_ENVIRONMENT)
    return tmp_path


async def test_fragments_print_what_the_document_shows(folder: Path) -> None:
    config = load_config(SERVICE, environ={"BROKER_URL": f"embedded://{folder}/broker.db"})
    async with Broker.create(config) as broker:
        namespace: dict[str, Any] = {"broker": broker}
        await check_fragments(DOCUMENT, namespace)
    loaded = namespace["config"]
    [connection] = loaded.vhosts["/"].connections
    assert connection.password.get_secret_value() == "p@ss/word"


@pytest.mark.parametrize("shown", [FROM_FILE, REFRESHED])
async def test_password_is_taken_from_the_file_that_the_document_names(
    folder: Path, shown: str
) -> None:
    (folder / "app.yaml").write_text(shown)
    [connection] = load_config("app.yaml").vhosts["/"].connections
    user, password = await connection.current_credentials()
    assert (user, password.get_secret_value()) == ("orders", "p@ss/word")


def test_unit_of_systemd_fits_the_service() -> None:
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys as written
    unit.read_string(SHOWN["ini"])
    service = unit["Service"]
    variable, _, url = service["Environment"].partition("=")
    config = load_config(SERVICE, environ={variable: url})
    [connection] = config.vhosts["/"].connections
    assert connection.store_path is not None
    folder = PurePosixPath(connection.store_path).parent
    assert folder == PurePosixPath("/var/lib") / service["StateDirectory"]
    longest = max(each.close_timeout for each in config.subscriptions.values())
    assert float(service["TimeoutStopSec"]) > longest + _DRAIN_TIMEOUT


def test_container_runs_python_without_a_shell() -> None:
    lines = dict(line.split(" ", 1) for line in SHOWN["dockerfile"].splitlines())
    command = json.loads(lines["CMD"])
    assert command[0] == "python"
    assert (ROOT / command[1].removeprefix("/opt/orders/")).exists()
    _, _, url = lines["ENV"].partition("=")
    [connection] = load_config(SERVICE, environ={"BROKER_URL": url}).vhosts["/"].connections
    assert connection.store_path is not None
    assert str(PurePosixPath(connection.store_path).parent) == lines["VOLUME"]
