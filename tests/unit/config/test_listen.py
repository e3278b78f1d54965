"""Addresses to listen on."""

from __future__ import annotations

import pytest

from broker_client.config.listen import ListenAddress, parse_listen_address


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("amqp://127.0.0.1:5672", ListenAddress("amqp", "127.0.0.1", 5672), None),
        ("127.0.0.1:5679", ListenAddress("amqp", "127.0.0.1", 5679), "amqp://127.0.0.1:5679"),
        ("amqp://localhost", ListenAddress("amqp", "localhost", 5672), "amqp://localhost:5672"),
        ("amqps://0.0.0.0", ListenAddress("amqps", "0.0.0.0", 5671), "amqps://0.0.0.0:5671"),
        ("amqp://[::1]:0", ListenAddress("amqp", "::1", 0), None),
        ("AMQP://h:1/", ListenAddress("amqp", "h", 1), "amqp://h:1"),
        (
            "unix:///run/b%20c.sock",
            ListenAddress("unix", path="/run/b c.sock"),
            "unix:///run/b c.sock",
        ),
    ],
)
def test_address_is_read(text: str, address: ListenAddress, shown: str | None) -> None:
    assert parse_listen_address(text) == address
    assert str(address) == (shown or text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://127.0.0.1:80", "'http' is not a scheme to listen on"),
        ("amqp://guest:secret@127.0.0.1", "no user or password"),
        ("amqp://127.0.0.1:70000", "is not an address"),
        ("amqp://127.0.0.1:5672/vhost", "is not an address"),
        ("amqp://:5672", "is not an address"),
        ("", "is not an address"),
        ("unix://relative.sock", "absolute path"),
    ],
)
def test_what_is_no_address_is_refused_with_the_forms(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_listen_address(text)
    assert "secret" not in str(caught.value)
