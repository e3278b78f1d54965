"""Durations, sizes and URLs; passwords are never shown."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from broker_client.config import BrokerConfig, ConnectionConfig, RetryConfig, VhostConfig
from broker_client.config.loader import load_config
from broker_client.config.url import masked, parse_url
from broker_client.config.values import (
    YAML_CONTEXT,
    Duration,
    Settings,
    duration_seconds,
    size_bytes,
)
from broker_client.connection.connectors import Network
from broker_client.errors import ConfigError

DURATION: TypeAdapter[float] = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("10s", 10.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("1.5s", 1.5),
        (" 10 s ", 10.0),
        ("0s", 0.0),
    ],
)
def test_duration_with_a_unit_is_seconds(text: str, seconds: float) -> None:
    assert DURATION.validate_python(text, context=YAML_CONTEXT) == pytest.approx(seconds)


@pytest.mark.parametrize("bare", [10, 10.0, "10", 0])
def test_bare_number_from_yaml_is_refused_with_the_fix(bare: object) -> None:
    with pytest.raises(ValidationError, match=r"has no unit: write (10|0)s or (10|0)ms"):
        DURATION.validate_python(bare, context=YAML_CONTEXT)


def test_bare_number_in_python_is_seconds() -> None:
    assert RetryConfig(min=0.5).min == 0.5
    assert RetryConfig(min=2).min == 2.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("-1s", "negative"),
        (-1.0, "negative"),
        (math.inf, "infinite"),
        (math.nan, "infinite"),
        ("10 parsecs", "unknown unit 'parsecs'"),
        ("soon", "is not a duration"),
        (True, "must be a duration"),
        ([], "must be a duration"),
    ],
)
def test_what_is_no_duration_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        duration_seconds(value)


@pytest.mark.parametrize("value", ["1500ms", "70000s"])
def test_heartbeat_must_be_whole_seconds_within_a_short_integer(value: str) -> None:
    with pytest.raises(ValidationError):
        ConnectionConfig.model_validate({"heartbeat": value})


@pytest.mark.parametrize(
    ("value", "size"),
    [(4096, 4096), ("4096", 4096), ("64MiB", 64 * 2**20), ("10MB", 10**7), ("1.5KiB", 1536)],
)
def test_size_takes_numbers_and_units(value: object, size: int) -> None:
    assert size_bytes(value) == size


@pytest.mark.parametrize("value", ["10 apples", True, None, "-1MB"])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="number of bytes"):
        size_bytes(value)


# --------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "key", "vhost"),
    [
        ("amqp://host", "v1", "v1"),
        ("amqp://host/", "v1", "/"),
        ("amqp://host/%2F", "v1", "/"),
        ("amqp://host/a%2Fb", "v1", "a/b"),
        ("amqp://host/other", "v1", "other"),
        ("embedded://", "v1", "v1"),
        ("embedded:///var/lib/broker.db", "v1", "v1"),
    ],
)
def test_vhost_is_the_path_of_the_url_or_else_the_key(url: str, key: str, vhost: str) -> None:
    connection = ConnectionConfig.model_validate(url)
    resolved = VhostConfig(name=key, connections=(connection,)).connections[0]

    assert connection.vhost_name(key) == vhost
    assert resolved.vhost == vhost


def test_url_of_a_loaded_connection_leads_to_its_vhost() -> None:
    vhost = VhostConfig(name="a/b", connections=(ConnectionConfig.model_validate("amqp://host"),))
    assert vhost.connections[0].url.get_secret_value() == "amqp://guest:guest@host:5672/a%2Fb"


SPECIAL = "p@s:s/w#%$é"


@pytest.mark.parametrize("vhost", ["/", "a/b", "straße"])
def test_special_characters_survive_parts_and_encoded_url_alike(vhost: str) -> None:
    parts = ConnectionConfig.model_validate(
        {"hostname": "h", "user": SPECIAL, "password": SPECIAL, "vhost": vhost}
    )
    by_url = ConnectionConfig.model_validate(parts.url.get_secret_value())

    for connection in (parts, by_url):
        assert connection.hostname == "h"
        assert connection.port == 5672
        assert connection.user == SPECIAL
        assert connection.password.get_secret_value() == SPECIAL
        assert connection.vhost == vhost


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("amqp://guest:s3#cret@host/", "'#'"),
        ("amqp://guest:s3/cret@host/", "'/'"),
        ("amqp://guest:s3?cret@host/", "'?'"),
        ("amqp://guest:s3@cret@host/", "'@'"),
        ("amqp://guest:s3%cret@host/", "the password of the URL holds a raw '%'"),
        ("amqp://s3%cret:x@host/", "the user of the URL holds a raw '%'"),
        ("amqp://guest:s3 cret@host/", "white space"),
        ("amqp://guest:s3cret@host:port/", "host or port"),
        ("amqp://guest:s3cret@/", "no host"),
        ("amqp://guest:s3cret@host/a/b", "vhost of the URL holds a raw '/'"),
        ("amqp://guest:%ff%fes3cret@host/", "not percent-encoded UTF-8"),
        ("http://guest:s3cret@host/", "unknown URL scheme 'http'"),
        ("guest:s3cret@host", "unknown URL scheme"),
    ],
)
def test_url_with_a_raw_special_is_refused_naming_the_part_and_not_the_secret(
    url: str, part: str
) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        parse_url(url)

    assert part in str(caught.value)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_port_defaults_by_scheme() -> None:
    assert parse_url("amqps://host").port == 5671
    assert parse_url("amqp://[::1]").hostname == "::1"


@pytest.mark.parametrize(
    "connection",
    [
        {"url": "amqp://u:hunter2@[::1]:5673"},
        {"hostname": "::1", "port": 5673, "user": "u", "password": "hunter2"},
        {"hostname": "[::1]", "port": 5673, "user": "u", "password": "hunter2"},
    ],
    ids=["url", "host", "host in brackets"],
)
def test_address_of_ipv6_is_shown_in_brackets(connection: dict[str, Any]) -> None:
    (loaded,) = load_config({"vhosts": {"/": {"connection": connection}}}).vhosts["/"].connections
    assert loaded.masked_url == "amqp://u:***@[::1]:5673/"
    assert loaded.management.address == "http://[::1]:15672"
    assert Network(loaded, "/").connector("x").url == "amqp://u:***@[::1]:5673/%2F"


def test_embedded_url_tells_its_file() -> None:
    assert ConnectionConfig.model_validate("embedded:///a%20b.db").store_path == "/a b.db"
    assert ConnectionConfig().store_path is None
    assert ConnectionConfig().is_embedded


def test_url_and_a_part_that_contradicts_it_are_refused() -> None:
    with pytest.raises(ValidationError, match="url and hostname contradict"):
        ConnectionConfig.model_validate({"url": "amqp://a", "hostname": "b"})


def test_connection_is_equal_after_a_round_trip_through_its_own_fields() -> None:
    connection = ConnectionConfig.model_validate("amqp://u:p@h/v")
    assert ConnectionConfig.model_validate(connection.model_dump()) == connection


# --------------------------------------------------------------------------- secrets

SECRET = "hunter2"


def a_config() -> BrokerConfig:
    connections = [
        f"amqp://app:{SECRET}@one/",
        f"amqp://app:{SECRET}@two/?heartbeat=30",
        {"hostname": "three", "password": SECRET},
    ]
    return load_config({"vhosts": {"/": {"connections": connections}}})


@pytest.mark.parametrize("show", [repr, str, lambda config: repr(config.model_dump())])
def test_password_is_not_in_what_a_configuration_prints(
    show: Callable[[BrokerConfig], str],
) -> None:
    text = show(a_config())
    assert "one" in text
    assert SECRET not in text


def test_password_is_there_for_who_asks_and_masked_for_who_prints() -> None:
    one, two, three = a_config().vhosts["/"].connections
    assert SECRET in one.url.get_secret_value()
    assert [each.masked_url for each in (one, two, three)] == [
        "amqp://app:***@one:5672/",
        "amqp://app:***@two:5672/",
        "amqp://guest:***@three:5672/",
    ]


@pytest.mark.parametrize(
    "connection",
    [
        f"amqp://app:{SECRET}#@host",
        f"amqp://app:{SECRET}@host:99999/",
        {"url": f"amqp://app:{SECRET}@host", "prt": 1},
        {"scheme": f"amqp://app:{SECRET}@host"},
        {"hostname": "h", "password": [SECRET]},
        {"hostname": "h", "password": SECRET, "port": "none"},
        {f"amqp://app:{SECRET}@host": None},
        [[f"amqp://app:{SECRET}@host"]],
        {"url": f"amqp://app:{SECRET}@host", "retry": f"amqp://app:{SECRET}@host"},
        {"url": f"amqp://app:{SECRET}@host", "connect_timeout": f"amqp://a:{SECRET}@host"},
    ],
)
def test_password_is_not_in_the_error_of_a_wrong_connection(connection: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"/": {"connection": connection}}})

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("url", [f"amqp://a:{SECRET}@h", f"amqp://a:{SECRET}#@h", f"x:{SECRET}@h"])
def test_masked_hides_the_password_of_any_text(url: str) -> None:
    assert SECRET not in masked(url)


class Deepest(Settings):
    number: int = 1


class Chosen(Settings):
    is_built_apart = False
    kind: Literal["chosen"] = "chosen"


class Other(Settings):
    is_built_apart = False
    kind: Literal["other"] = "other"


class Plain(Settings):
    deepest: Deepest = Field(default_factory=Deepest.model_construct)


class Outer(Settings):
    plain: Plain | None = None
    listed: dict[str, tuple[Plain, ...]] | None = None
    either: Annotated[Chosen | Other, Field(discriminator="kind")] | None = None


def built() -> set[str]:
    models = (Outer, Plain, Deepest)
    return {each.__name__ for each in models if each.__pydantic_complete__}


def test_model_is_built_when_its_section_is_written_and_not_for_a_default() -> None:
    assert built() == set()
    assert Outer.model_validate({"either": {"kind": "other"}}).either == Other()
    assert built() == {"Outer"}
    assert Outer.model_validate({"plain": {}}).plain == Plain()
    assert built() == {"Outer", "Plain"}
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"listed": {"a": [{}, {"deepest": {"number": "x"}}]}})
    (error,) = caught.value.errors()
    assert (error["loc"], error["type"]) == (("listed", "a", 1, "deepest", "number"), "int_parsing")
    assert built() == {"Outer", "Plain", "Deepest"}


def test_yaml_rules_hold_in_the_sections_of_a_section() -> None:
    written = {"plain": {"deepest": {"number": None}}}
    assert Outer.model_validate(written, context=YAML_CONTEXT) == Outer(plain=Plain())
    with pytest.raises(ValidationError):
        Outer.model_validate(written)


def models_below(model: type[Settings]) -> Iterator[type[Settings]]:
    for each in model.__subclasses__():
        yield each
        yield from models_below(each)


DEFAULTS = {
    factory.__self__
    for each in models_below(Settings)
    for field in each.model_fields.values()
    if isinstance(factory := field.default_factory, MethodType)
}


@pytest.mark.parametrize("model", sorted(DEFAULTS, key=str))
def test_default_that_is_not_validated_is_as_one_that_is(model: type[Settings]) -> None:
    assert model.model_construct() == model()
