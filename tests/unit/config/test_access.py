"""Connections: TLS, the management API, nodes of this process, and the order of addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from broker_client.config import BrokerConfig, ConnectionConfig
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError


def a_connection(value: object) -> ConnectionConfig:
    (found,) = load_config({"vhosts": {"/": {"connection": value}}}).vhosts["/"].connections
    return found


def refusal(connection: object) -> str:
    with pytest.raises(ConfigError) as caught:
        a_connection(connection)
    return str(caught.value)


# --------------------------------------------------------------------------- TLS


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "some.pem"
    path.write_text("a certificate")
    return str(path)


def test_amqps_is_verified_unless_told_otherwise() -> None:
    tls = a_connection("amqps://h").tls
    assert tls is not None
    assert (tls.verify, tls.verify_hostname, tls.cafile) == (True, True, None)


@pytest.mark.parametrize("connection", ["amqp://h", "embedded://", {"hostname": "h"}])
def test_other_addresses_have_no_tls(connection: object) -> None:
    assert a_connection(connection).tls is None


def test_files_are_taken_when_they_are_there(file: str) -> None:
    tls = a_connection(
        {"url": "amqps://h", "tls": {"cafile": file, "certfile": file, "keyfile": file}}
    ).tls
    assert tls is not None
    assert (tls.cafile, tls.certfile, tls.keyfile) == (file, file, file)


def test_host_name_check_is_turned_off_alone() -> None:
    tls = a_connection({"scheme": "amqps", "tls": {"verify_hostname": False}}).tls
    assert tls is not None
    assert (tls.verify, tls.verify_hostname) == (True, False)


@pytest.mark.parametrize("key", ["cafile", "certfile", "keyfile"])
def test_missing_file_is_reported_at_load(key: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    text = refusal({"url": "amqps://h", "tls": {key: missing}})
    assert text == (
        f"configuration: vhosts./.connection.tls: {key} '{missing}': there is no such file"
    )


def test_folder_is_no_certificate(tmp_path: Path) -> None:
    assert "no such file" in refusal({"url": "amqps://h", "tls": {"cafile": str(tmp_path)}})


def test_key_without_certificate_is_refused(file: str) -> None:
    assert "keyfile needs its certificate" in refusal(
        {"url": "amqps://h", "tls": {"keyfile": file}}
    )


@pytest.mark.parametrize("connection", [{"url": "amqp://h"}, {"hostname": "h"}, {}])
def test_tls_of_a_plain_address_is_refused(connection: dict[str, Any]) -> None:
    assert "tls: needs an amqps:// address" in refusal({**connection, "tls": {"verify": True}})


def test_tls_of_a_default_serves_the_encrypted_addresses_only() -> None:
    config = load_config(
        {
            "vhosts": {"/": {"connections": ["amqps://a", "amqp://b", {"scheme": "amqps"}]}},
            "defaults": {"vhosts": {"connection": {"tls": {"verify_hostname": False}}}},
        }
    )
    found = [each.tls for each in config.vhosts["/"].connections]
    assert [None if tls is None else tls.verify_hostname for tls in found] == [False, None, False]


def test_wrong_tls_of_a_default_is_reported_in_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            {
                "vhosts": {"/": {"connection": "amqps://h"}},
                "defaults": {"vhosts": {"connection": {"tls": {"cafle": "x"}}}},
            }
        )
    (problem,) = caught.value.problems
    assert problem.path == "defaults.vhosts.connection.tls.cafle"


# --------------------------------------------------------------------------- management API


@pytest.mark.parametrize(
    ("management", "address", "masked"),
    [
        (None, "http://h:15672", "http://u:***@h:15672"),
        ("https://m", "https://m:15671", "https://u:***@m:15671"),
        ("http://a:b@m:1/x/", "http://m:1/x", "http://a:***@m:1/x"),
        ({"port": 80}, "http://h:80", "http://u:***@h:80"),
        ({"scheme": "https", "user": "a"}, "https://h:15671", "https://a:***@h:15671"),
        ({"url": "http://[::1]:1", "password": "s"}, "http://[::1]:1", "http://u:***@[::1]:1"),
    ],
)
def test_management_takes_from_the_connection_what_it_leaves_out(
    management: object, address: str, masked: str
) -> None:
    found = a_connection({"url": "amqp://u:p@h", "management": management}).management
    assert found.address == address
    assert found.masked_url == masked


def test_management_has_the_password_of_the_connection_unless_it_has_its_own() -> None:
    url = "amqp://u:p%40@h"
    theirs = a_connection({"url": url}).management
    own = a_connection({"url": url, "management": "http://a:b%2F@m"}).management
    assert theirs.password is not None
    assert theirs.password.get_secret_value() == "p@"
    assert own.password is not None
    assert own.password.get_secret_value() == "b/"


def test_management_has_a_timeout_of_a_second() -> None:
    assert a_connection("amqp://h").management.timeout == 1.0
    slow = a_connection({"url": "amqp://h", "management": {"timeout": "5s"}})
    assert slow.management.timeout == 5.0


@pytest.mark.parametrize(
    ("management", "reason"),
    [
        ("amqp://m", "unknown URL scheme 'amqp'; allowed: http://, https://"),
        ("http://m?x=1", "must not have a query"),
        ("http://a:s3cret#@m", "raw '#'"),
        ({"url": "http://m", "hostname": "n"}, "url and hostname contradict each other"),
        ({"prt": 1}, "did you mean 'port'?"),
    ],
)
def test_wrong_management_is_refused(management: object, reason: str) -> None:
    text = refusal({"url": "amqp://h", "management": management})
    assert "vhosts./.connection.management" in text
    assert reason in text
    assert "s3cret" not in text


def test_secrets_of_the_management_are_not_printed() -> None:
    connection = a_connection({"url": "amqp://u:hunter2@h", "management": "http://a:hunter3@m"})
    for text in (repr(connection), repr(connection.management), repr(connection.model_dump())):
        assert "hunter" not in text


# --------------------------------------------------------------------------- embedded addresses


@pytest.mark.parametrize(
    ("url", "name", "path"),
    [
        ("embedded://", "", None),
        ("embedded://orders", "orders", None),
        ("embedded://a%2Fb", "a/b", None),
        ("embedded:///var/lib/x.db", "", "/var/lib/x.db"),
        ("embedded://./x.db", "", "./x.db"),
        ("embedded://data/a%20b%3F.db", "", "data/a b?.db"),
    ],
)
def test_embedded_address_is_private_or_a_name_or_a_file(
    url: str, name: str, path: str | None
) -> None:
    connection = a_connection(url)
    assert (connection.hostname, connection.store_path) == (name, path)
    again = ConnectionConfig.model_validate(connection.url.get_secret_value())
    assert (again.hostname, again.store_path) == (name, path)


@pytest.mark.parametrize("url", ["embedded://x:5672", "embedded://u@x"])
def test_embedded_name_is_no_host(url: str) -> None:
    assert "is a node in this process, without user or port" in refusal(url)


@pytest.mark.parametrize("url", ["embedded://?fsync=off", "embedded:///x.db?a=b", "embedded://x#y"])
def test_embedded_address_has_no_options(url: str) -> None:
    assert "has no options" in refusal(url)


def test_address_of_another_broker_is_neither_node_nor_file() -> None:
    connection = a_connection("amqp://h/x")
    assert (connection.is_embedded, connection.store_path) == (False, None)


# --------------------------------------------------------------------------- wire limits


def test_wire_limits_and_names_are_taken() -> None:
    connection = a_connection(
        {
            "url": "amqp://h",
            "name": "billing",
            "channel_max": 100,
            "frame_max": "64KiB",
            "client_properties": {"team": "a", "level": 3},
        }
    )
    assert (connection.name, connection.channel_max, connection.frame_max) == (
        "billing",
        100,
        65536,
    )
    assert connection.client_properties == {"team": "a", "level": 3}


@pytest.mark.parametrize(
    ("key", "value"), [("frame_max", 100), ("frame_max", 2**32), ("channel_max", 65536)]
)
def test_limits_outside_the_protocol_are_refused(key: str, value: int) -> None:
    with pytest.raises(ValidationError):
        ConnectionConfig.model_validate({"hostname": "h", key: value})


# --------------------------------------------------------------------------- order


def hosts(config: BrokerConfig, vhost: str) -> list[str]:
    return [each.hostname for each in config.connections_of(vhost)]


def a_cluster(strategy: str | None, size: int = 12) -> BrokerConfig:
    names = [f"amqp://n{index}" for index in range(size)]
    vhosts: dict[str, Any] = {
        "a": {"connections": names},
        "b": {"connections": list(reversed(names))},
    }
    if strategy is not None:
        vhosts = {
            name: {**vhost, "connection_strategy": strategy} for name, vhost in vhosts.items()
        }
    return load_config({"vhosts": vhosts})


def test_fixed_order_is_as_written() -> None:
    config = a_cluster("fixed")
    assert hosts(config, "a") == [f"n{index}" for index in range(12)]
    assert hosts(config, "b") == hosts(config, "a")[::-1]


def test_random_order_is_drawn_once_and_the_same_for_all_vhosts() -> None:
    config = a_cluster("random")
    order = hosts(config, "a")
    assert sorted(order) == sorted(each.hostname for each in config.vhosts["a"].connections)
    assert hosts(config, "a") == hosts(config, "b") == order


def test_random_order_differs_from_load_to_load() -> None:
    # 5 loads of 12! possible orders are not equal by chance.
    assert len({tuple(hosts(a_cluster(None), "a")) for _ in range(5)}) > 1


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown value 'zzz' \(allowed: fixed, random"):
        a_cluster("zzz")


# --------------------------------------------------------------------- credentials that change


def secret_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "secret"
    file.write_text(text)
    return str(file)


async def test_a_password_file_is_read_at_each_connect(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "first\n")
    connection = ConnectionConfig.model_validate(
        {"hostname": "h", "user": "app", "password_file": path}
    )
    found = await connection.current_credentials()
    assert (found.user, found.password.get_secret_value()) == ("app", "first")
    secret_file(tmp_path, "s:e/cond")
    found = await connection.current_credentials()
    assert found.password.get_secret_value() == "s:e/cond"
    assert connection.masked_url == "amqp://app:***@h:5672"


async def test_a_url_may_name_the_user_beside_a_password_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "word")
    connection = ConnectionConfig.model_validate({"url": "amqp://app@h", "password_file": path})
    found = await connection.current_credentials()
    assert (found.user, found.password.get_secret_value()) == ("app", "word")


async def test_a_function_gives_user_and_password_plain_or_to_be_awaited() -> None:
    async def later() -> tuple[str, str]:
        return "u2", "p2"

    plain = ConnectionConfig(url=SecretStr("amqp://h"), credentials=lambda: ("u1", "p1"))
    awaited = ConnectionConfig(url=SecretStr("amqp://h"), credentials=later)
    for connection, wanted in ((plain, ("u1", "p1")), (awaited, ("u2", "p2"))):
        found = await connection.current_credentials()
        assert (found.user, found.password.get_secret_value()) == wanted
        assert "p1" not in repr(found)
    wrong = ConnectionConfig(hostname="h", credentials=lambda: "secret")  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="must return") as told:
        await wrong.current_credentials()
    assert "secret" not in str(told.value)


async def test_credentials_come_through_the_loader(tmp_path: Path) -> None:
    vhost = {"connection": {"url": "amqp://h", "credentials": lambda: ("u", "p")}}
    config = load_config({"vhosts": {"/": vhost}})
    found = await config.vhosts["/"].connections[0].current_credentials()
    assert found.user == "u"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"url": "amqp://u:p@h", "password_file": "FILE"}, "password_file and password contradict"),
        ({"hostname": "h", "user": "u", "user_file": "FILE"}, "user_file and user contradict"),
        ({"hostname": "h", "password": "p", "credentials": print}, "credentials and password"),
        (
            {"hostname": "h", "password_file": "FILE", "credentials": print},
            "credentials and password_file contradict",
        ),
        ({"password_file": "FILE"}, "belongs to an amqp:// or amqps:// address"),
        ({"hostname": "h", "password_file": "/nowhere/pw"}, "there is no such file"),
        ({"hostname": "h", "credentials": "app"}, "must be a function, which only Python"),
        ({"url": "amqp://u:p@h", "refresh_credentials": "5m"}, "needs password_file or credential"),
        (
            {"hostname": "h", "user_file": "FILE", "refresh_credentials": "5m"},
            "needs password_file or credentials to read again",
        ),
        ({"url": "embedded://", "refresh_credentials": "5m"}, "needs password_file or credentials"),
        (
            {"hostname": "h", "password_file": "FILE", "refresh_credentials": "0s"},
            "refresh_credentials",
        ),
    ],
)
def test_sources_of_credentials_that_cannot_be_meant_are_refused(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    path = secret_file(tmp_path, "x")
    settings = {key: path if value == "FILE" else value for key, value in settings.items()}
    with pytest.raises(ConfigError, match=told):
        load_config({"vhosts": {"/": {"connection": settings}}})


async def test_defaults_may_hold_the_password_file_of_several_addresses(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "word")
    config = load_config(
        {
            "defaults": {"vhosts": {"connection": {"password_file": path}}},
            "vhosts": {"/": {"connections": ["amqp://a@one", "amqp://b:own@two"]}},
        }
    )
    found = {}
    for connection in config.vhosts["/"].connections:
        user, password = await connection.current_credentials()
        found[user] = password.get_secret_value()
    assert found == {"a": "word", "b": "own"}


@pytest.mark.parametrize("source_in_default", [False, True])
def test_defaults_may_hold_how_often_credentials_are_refreshed(
    tmp_path: Path, source_in_default: bool
) -> None:
    source = {"password_file": secret_file(tmp_path, "word")}
    default = {"refresh_credentials": "5m", **(source if source_in_default else {})}
    reading = {"url": "amqp://a@one", **({} if source_in_default else source)}
    config = load_config(
        {
            "defaults": {"vhosts": {"connection": default}},
            "vhosts": {"/": {"connections": [reading, "amqp://b:own@two"]}},
        }
    )
    found = [each.refresh_credentials for each in config.vhosts["/"].connections]
    assert found == [300.0, None]
