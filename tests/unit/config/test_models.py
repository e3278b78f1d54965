"""The models as Python code uses them."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from broker_client.config import (
    BindingConfig,
    BrokerConfig,
    ConnectionConfig,
    ConsumeOptions,
    ExchangeConfig,
    ExchangeOptions,
    Forward,
    Nack,
    PoolConfig,
    PublicationConfig,
    QueueConfig,
    QueueOptions,
    Republish,
    RetryConfig,
    Strategy,
    SubscriptionConfig,
    VhostConfig,
    strategies_from,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        QueueConfig(name="q").purge = True


def test_every_vhost_has_the_default_exchange() -> None:
    vhost = VhostConfig(name="/", exchanges={"e": ExchangeConfig(name="e")})
    assert list(vhost.exchanges) == ["", "e"]
    assert vhost.exchanges[""].type == "direct"


def test_vhost_without_connection_is_embedded() -> None:
    assert [each.masked_url for each in VhostConfig(name="v").connections] == ["embedded://"]


def test_no_vhost_at_all_is_refused() -> None:
    with pytest.raises(ValidationError, match="No vhosts specified"):
        BrokerConfig(vhosts={})


def test_friendly_queue_options_become_arguments_in_milliseconds() -> None:
    options = QueueOptions(
        message_ttl=1.5,
        expires=60.0,
        dead_letter_exchange="dlx",
        dead_letter_routing_key="dead",
        max_length=10,
        max_priority=5,
        arguments={"x-queue-mode": "lazy"},
    )
    assert options.all_arguments == {
        "x-message-ttl": 1500,
        "x-expires": 60000,
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "dead",
        "x-max-length": 10,
        "x-max-priority": 5,
        "x-queue-mode": "lazy",
    }


def test_raw_argument_wins_over_the_friendly_option() -> None:
    options = QueueOptions(expires=60.0, arguments={"x-expires": 1})
    assert options.all_arguments == {"x-expires": 1}


def test_exchange_and_consumer_options_become_arguments() -> None:
    assert ExchangeOptions(alternate_exchange="lost").all_arguments == {
        "alternate-exchange": "lost"
    }
    assert ConsumeOptions(priority=3).all_arguments == {"x-priority": 3}
    assert ConsumeOptions().all_arguments == {}


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers", "x-delayed-message"])
def test_exchange_type_of_amqp_or_a_plug_in_is_taken(kind: str) -> None:
    assert ExchangeConfig(name="e", type=kind).type == kind


def test_other_exchange_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        ExchangeConfig(name="e", type="topics")


def test_publication_needs_exactly_one_of_exchange_and_queue() -> None:
    assert PublicationConfig(name="p", exchange="").exchange == ""
    with pytest.raises(ValidationError, match="either an exchange or a queue"):
        PublicationConfig(name="p")
    with pytest.raises(ValidationError, match="either an exchange or a queue"):
        PublicationConfig(name="p", exchange="e", queue="q")


@pytest.mark.parametrize(("value", "enabled"), [(True, True), (False, False)])
def test_retry_is_turned_on_and_off_by_a_boolean(value: bool, enabled: bool) -> None:
    assert RetryConfig.model_validate(value) == RetryConfig(enabled=enabled)


def test_limits_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValidationError, match="below min"):
        RetryConfig(min=5.0, max=1.0)
    with pytest.raises(ValidationError, match="below min"):
        PoolConfig(min=5, max=1)


def test_binding_without_keys_takes_every_message() -> None:
    assert BindingConfig(name="b", source="e", destination="q").binding_keys == ("#",)


# --------------------------------------------------------------------------- implied names


def a_config() -> BrokerConfig:
    return BrokerConfig(
        vhosts={
            "/": VhostConfig(
                name="/",
                exchanges={name: ExchangeConfig(name=name) for name in ("e", "both")},
                queues={name: QueueConfig(name=name) for name in ("q", "both")},
            ),
            "v1": VhostConfig(name="v1", queues={"q": QueueConfig(name="q")}),
        },
        publications={"/q": PublicationConfig(name="/q", exchange="e")},
        subscriptions={"s": SubscriptionConfig(name="s", queue="q")},
    )


@pytest.mark.parametrize(
    ("name", "vhost", "exchange", "queue"),
    [
        ("/q", "/", "e", None),  # declared
        ("/e", "/", "e", None),
        ("/both", "/", None, "both"),
        ("/", "/", "", None),
        ("v1/q", "v1", None, "q"),
    ],
)
def test_queue_and_exchange_have_a_publication_without_declaring_it(
    name: str, vhost: str, exchange: str | None, queue: str | None
) -> None:
    found = a_config().find_publication(name)
    assert found is not None
    assert (found.name, found.vhost, found.exchange, found.queue) == (name, vhost, exchange, queue)


def test_queue_has_a_subscription_without_declaring_it() -> None:
    found = a_config().find_subscription("v1/q")
    assert found == SubscriptionConfig(name="v1/q", vhost="v1", queue="q")
    assert a_config().find_subscription("s") is not None


@pytest.mark.parametrize("name", ["q", "/x", "v2/q", "v1/e"])
def test_unknown_name_has_neither(name: str) -> None:
    assert a_config().find_publication(name) is None
    assert a_config().find_subscription(name) is None


# --------------------------------------------------------------------------- strategies


@pytest.mark.parametrize(
    ("value", "chain"),
    [
        (Nack(), (Nack(),)),
        ([Republish(defer=1.0, attempts=10), Nack()], (Republish(defer=1.0, attempts=10), Nack())),
        ({"strategy": "republish", "defer": "250ms"}, (Republish(defer=0.25),)),
        (
            [{"strategy": "forward", "publication": "p", "routing_key": "k"}, Nack(requeue=True)],
            (Forward(publication="p", routing_key="k"), Nack(requeue=True)),
        ),
    ],
)
def test_recovery_is_given_as_objects_or_mappings_one_or_several(
    value: object, chain: tuple[Strategy, ...]
) -> None:
    assert strategies_from(value) == chain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"strategy": "republich"},
            "configuration: recovery[0]: unknown strategy 'republich' "
            "(did you mean 'republish'?; allowed: ack, forward, nack, republish)",
        ),
        (
            {"defer": "1s"},
            "configuration: recovery[0]: names no strategy; "
            "write strategy: one of ack, forward, nack, republish",
        ),
        (
            [Nack(), {"strategy": "nack", "requeu": True}],
            "configuration: recovery[1].requeu: unknown key "
            "(did you mean 'requeue'?; allowed: defer, requeue, strategy)",
        ),
        (
            {"strategy": "republish", "defer": 10},
            "configuration: recovery[0].defer: 10 has no unit: write 10s or 10ms",
        ),
        ("nack", "configuration: recovery[0]: must be a mapping, such as {strategy: nack}"),
        ({"strategy": "forward"}, "configuration: recovery[0].publication: is missing"),
    ],
)
def test_wrong_recovery_is_refused_in_plain_words(value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strategies_from(value)
    assert str(caught.value) == text


def test_configuration_pickles() -> None:
    config = a_config()
    assert pickle.loads(pickle.dumps(config)) == config


def test_defaults_are_those_rascal_recommends() -> None:
    connection = ConnectionConfig.model_validate("amqp://h")
    assert (connection.heartbeat, connection.connect_timeout) == (10, 10.0)
    assert connection.management.timeout == 1.0
    assert connection.retry == RetryConfig(min=1.0, max=60.0, factor=2.0, strategy="exponential")
    pool = PoolConfig()
    assert (pool.max, pool.acquire_timeout, pool.idle_timeout) == (5, 15.0, 60.0)
    assert SubscriptionConfig(name="s", queue="q").prefetch == 10


def test_retry_of_true_is_the_default() -> None:
    config = load_config(
        {"vhosts": {"/": {"queues": ["q"]}}, "subscriptions": {"s": {"queue": "q", "retry": True}}}
    )
    retry = config.subscriptions["s"].retry
    assert (retry.enabled, retry.min, retry.max, retry.factor) == (True, 1.0, 60.0, 2.0)


def test_publication_has_rascals_defaults() -> None:
    publication = PublicationConfig(name="p", exchange="")
    assert (publication.vhost, publication.exchange, publication.routing_key) == ("/", "", "")
    assert (publication.confirm, publication.timeout) == (True, 10.0)
    assert (publication.options.persistent, publication.options.mandatory) == (True, True)
    assert publication.encryption is None
