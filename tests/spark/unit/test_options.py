"""Options: every mistake is reported, without secrets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from broker_client.errors import ChannelsExhaustedError, ConfigError
from broker_client.spark.endpoints import connect_any, connectors
from broker_client.spark.errors import OptionError
from broker_client.spark.options import SinkOptions, SourceOptions, names, parse
from tests.support.rabbitmq import RabbitMQ

URL = "amqp://me:hidden-word@host:5672/v"
SOURCE = {"url": URL, "queue": "q", "spool": "folder"}


def test_defaults_hold_where_nothing_is_said() -> None:
    options = parse(SourceOptions, SOURCE)
    assert (options.prefetch, options.segment_rows, options.segment_age) == (10_000, 5_000, 1.0)
    assert (options.exclusive, options.fail_on_data_loss) == (True, True)


def test_names_are_read_in_any_case() -> None:
    # Spark hands options over in lower case.
    options = parse(SourceOptions, {**SOURCE, "segmentage": "250ms", "SPOOLMAXBYTES": "2MiB"})
    assert (options.segment_age, options.spool_max_bytes) == (0.25, 2 * 2**20)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"prefetsch": "1"}, "did you mean 'prefetch'?"),
        ({"window": "1"}, "is an option for writing"),
        ({"prefetch": "0"}, "from 1 to 65535"),
        ({"prefetch": "many"}, "whole number"),
        ({"segmentAge": "1"}, "has no unit"),
        ({"exclusive": "yes"}, "true or false"),
        ({"spoolMaxBytes": "big"}, "number of bytes"),
        ({"mode": "tail"}, "queue, stream"),
        ({"startingOffset": "next"}, "first or an offset"),
        ({"subscription": "s"}, "one of the two"),
        ({"urlEnv": "X"}, "got url and urlEnv"),
    ],
    ids=str,
)
def test_wrong_source_option_is_refused_with_what_is_right(
    extra: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match="format") as caught:
        parse(SourceOptions, {**SOURCE, **extra})
    assert said in str(caught.value)


@pytest.mark.parametrize("missing", ["url", "queue", "spool"])
def test_missing_source_option_is_named(missing: str) -> None:
    given = {key: value for key, value in SOURCE.items() if key != missing}
    with pytest.raises(OptionError) as caught:
        parse(SourceOptions, given)
    assert caught.value.option == missing


@pytest.mark.parametrize(
    ("extra", "option"),
    [
        ({"prefetch": "1"}, "prefetch"),
        ({"ids": "random"}, "ids"),
        ({"unroutable": "dead"}, "deadQueue"),
        ({"deadQueue": "q"}, "deadQueue"),
        ({"invalid": "dead"}, "deadQueue"),
        ({"mandatory": "false", "unroutable": "drop"}, "unroutable"),
        ({"publication": "p"}, "publication"),
        ({"window": "0"}, "window"),
    ],
    ids=str,
)
def test_wrong_sink_option_is_refused(extra: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(SinkOptions, {"url": URL, **extra})
    assert caught.value.option == option


def test_what_spark_adds_is_no_mistake() -> None:
    options = parse(SinkOptions, {"url": URL, "checkpointLocation": "x", "path": "y"})
    assert options == parse(SinkOptions, {"url": URL})


def test_password_is_in_no_text_but_travels() -> None:
    options = parse(SourceOptions, SOURCE)
    assert "hidden-word" not in repr(options) + str(options)
    assert "me:***@host" in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_malformed_address_is_refused_without_showing_it() -> None:
    options = parse(SinkOptions, {"url": "amqp://me:hidden/word@host"})
    with pytest.raises(OptionError) as caught:
        connectors(options)
    assert "hidden" not in str(caught.value)


def test_embedded_broker_is_refused_with_what_to_do_instead() -> None:
    options = parse(SinkOptions, {"url": "embedded://"})
    with pytest.raises(OptionError, match="DriverPublisher"):
        connectors(options)


def test_encrypted_key_is_an_error_and_no_question_on_the_terminal(tmp_path: Path) -> None:
    certificates = pytest.importorskip("tests.support.certificates")
    files = certificates.Authority(tmp_path, "ours").sign("client", password="secret")
    tls = {"certfile": str(files.certificate), "keyfile": str(files.key)}
    file = a_config(tmp_path, {"url": "amqps://host", "tls": tls})
    with pytest.raises(ConfigError, match=r"connection\.tls\.keyfile: .*is encrypted"):
        connectors(parse(SinkOptions, {"configFile": file, "exchange": "e"}))


@pytest.mark.rabbitmq
async def test_limits_and_properties_of_the_configuration_hold_on_the_link(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    vhost = rabbitmq.make_vhost()
    properties = {"product": "orders"}
    limits = {"channel_max": 2, "frame_max": 8192, "max_message_size": 1000}
    connection = {"url": rabbitmq.url(vhost), "client_properties": properties, **limits}
    file = a_config(tmp_path, connection)
    link = await connect_any(
        connectors(parse(SinkOptions, {"configFile": file, "exchange": "e"})), timeout=10.0
    )
    assert (await link.open_channel()).size_limit.size_bytes == 1000
    await link.open_channel()
    with pytest.raises(ChannelsExhaustedError, match="all 2 channels"):
        await link.open_channel()
    listed = rabbitmq.ctl("list_connections", "vhost", "frame_max", "client_properties")
    [ours] = [line for line in listed.splitlines() if line.startswith(vhost)]
    assert "8192" in ours
    assert '{"product","orders"}' in ours
    await link.close()


def a_config(folder: Path, connection: dict[str, Any]) -> str:
    file = folder / "app.json"
    file.write_text(json.dumps({"vhosts": {"/": {"connection": connection, "queues": ["q"]}}}))
    return str(file)


def test_environment_variable_is_read_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse(SinkOptions, {"urlEnv": "SOME_BROKER_URL"})
    monkeypatch.delenv("SOME_BROKER_URL", raising=False)
    with pytest.raises(OptionError, match="SOME_BROKER_URL"):
        connectors(options)
    monkeypatch.setenv("SOME_BROKER_URL", "amqp://one/v,amqp://two/v")
    assert sorted(each.url for each in connectors(options)) == [
        "amqp://guest:***@one:5672/v",
        "amqp://guest:***@two:5672/v",
    ]


def test_every_option_has_a_name_of_its_own_and_a_text() -> None:
    for kind in (SourceOptions, SinkOptions):
        for name, field in names(kind).items():
            assert name[0].islower()
            assert field.metadata["doc"]


def test_query_of_an_address_is_read_or_refused() -> None:
    assert connectors(parse(SinkOptions, {"url": "amqp://one/v?heartbeat=30"}))
    for url, told in (
        ("amqp://one/?ssl=1", "write amqps://"),
        ("amqp://one/?hartbeat=3", "heartbeat"),
    ):
        with pytest.raises(OptionError, match=told):
            connectors(parse(SinkOptions, {"url": url}))
