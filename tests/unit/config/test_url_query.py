"""The query of a broker URL is read; unknown parameters are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_client.config import ConnectionConfig
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError


def loaded(connection: object, **root: Any) -> ConnectionConfig:
    (found,) = (
        load_config({"vhosts": {"/": {"connection": connection}}, **root}).vhosts["/"].connections
    )
    return found


def refusal(connection: object, **root: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(connection, **root)
    return str(caught.value)


def test_parameters_of_rabbitmq_are_keys_of_the_connection() -> None:
    found = loaded(
        "amqp://h/?heartbeat=30&channel_max=7&frame_max=8192&connection_timeout=2500"
        "&auth_mechanism=plain"
    )
    assert (found.heartbeat, found.channel_max, found.frame_max) == (30, 7, 8192)
    assert found.connect_timeout == 2.5
    assert found.url.get_secret_value() == "amqp://guest:guest@h:5672/"


def test_parameters_of_tls_are_keys_of_tls(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    for file in files.values():
        Path(file).touch()
    found = loaded(
        f"amqps://h/v?cacertfile={files['ca']}&certfile={files['cert']}&keyfile={files['key']}"
        "&verify=verify_none&fail_if_no_peer_cert=true"
    )
    assert found.tls is not None
    assert (found.tls.cafile, found.tls.certfile, found.tls.keyfile) == (
        files["ca"],
        files["cert"],
        files["key"],
    )
    assert found.tls.verify is False
    assert found.vhost == "v"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://h/?ssl=1", "ssl, which is not known: write amqps:// for TLS"),
        ("amqp://h/?heartbaet=30", "heartbaet, which is not known (did you mean 'heartbeat'?"),
        ("amqp://h/?Heartbeat=30", "did you mean 'heartbeat'?"),
        ("amqp://h/?timeout=3", "write connection_timeout, in milliseconds"),
        ("amqps://h/?no_verify_ssl=1", "write verify=verify_none"),
        ("amqps://h/?server_name_indication=x", "is that of the address"),
        ("amqp://h/?verify=verify_none", "verify in the URL is for amqps://; this one is amqp://"),
        ("amqps://h/?verify=none", "verify in the URL must be one of: verify_peer, verify_none"),
        ("amqp://h/?heartbeat=30s", "heartbeat in the URL must be a whole number"),
        ("amqp://h/?heartbeat=", "heartbeat in the URL must be a whole number"),
        ("amqp://h/?heartbeat=1&heartbeat=2", "the URL gives heartbeat twice"),
        ("amqp://h/?auth_mechanism=external", "auth_mechanism in the URL must be one of: plain"),
        ("amqp://h/?channel_max=70000", "65535"),
        ("amqps://h/?cacertfile=/nowhere.pem", "there is no such file"),
    ],
)
def test_what_is_not_known_is_refused_by_name(url: str, told: str) -> None:
    assert told in refusal(url)


def test_values_of_unknown_parameters_are_not_shown() -> None:
    assert "hunter2" not in refusal("amqp://h/?pasword=hunter2")


@pytest.mark.parametrize(
    ("beside", "key"),
    [
        ({"heartbeat": "20s"}, "heartbeat"),
        ({"channel_max": 8}, "channel_max"),
        ({"connect_timeout": "2s"}, "connect_timeout"),
    ],
)
def test_contradiction_with_a_key_beside_the_url_is_refused(
    beside: dict[str, Any], key: str
) -> None:
    url = "amqp://h/?heartbeat=30&channel_max=7&connection_timeout=2500"
    assert f"url and {key} contradict each other" in refusal({"url": url, **beside})
    same = {"heartbeat": "30s", "channel_max": 7, "connect_timeout": "2500ms"}
    assert loaded({"url": url, **same}).heartbeat == 30


def test_contradiction_within_tls_is_refused() -> None:
    connection = {"url": "amqps://h/?verify=verify_none", "tls": {"verify": True}}
    assert "url and verify contradict each other" in refusal(connection)


def test_query_wins_over_defaults() -> None:
    defaults = {"vhosts": {"connection": {"heartbeat": "5s", "connect_timeout": "3s"}}}
    found = loaded("amqp://h/?heartbeat=30", defaults=defaults)
    assert (found.heartbeat, found.connect_timeout) == (30, 3.0)
