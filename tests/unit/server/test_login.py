"""What a client offers as its login."""

from __future__ import annotations

import pytest

from broker_client.amqp.tables import encode_table
from broker_client.server.login import Login, read_login


def test_plain_is_an_identity_a_user_and_a_password() -> None:
    assert read_login("PLAIN", b"\0anna\0s3cr\xc3\xa9t") == Login("anna", "s3crét")
    assert read_login("PLAIN", b"ignored\0anna\0") == Login("anna", "")


@pytest.mark.parametrize("response", [b"", b"anna", b"\0anna", b"\0a\0b\0c", b"\0\xff\0x"])
def test_plain_that_is_malformed_is_no_login(response: bytes) -> None:
    assert read_login("PLAIN", response) is None


def test_amqplain_is_a_table_without_its_length() -> None:
    table = encode_table({"LOGIN": "anna", "PASSWORD": "secret"})[4:]
    assert read_login("AMQPLAIN", table) == Login("anna", "secret")


@pytest.mark.parametrize(
    "response",
    [b"", b"\x05LOGIN", encode_table({"LOGIN": "anna"})[4:], encode_table({"LOGIN": 1})[4:]],
)
def test_amqplain_that_is_malformed_is_no_login(response: bytes) -> None:
    assert read_login("AMQPLAIN", response) is None


def test_a_mechanism_without_password_is_no_login() -> None:
    assert read_login("EXTERNAL", b"\0anna\0secret") is None


def test_a_login_does_not_show_its_password() -> None:
    assert "secret" not in repr(Login("anna", "secret"))
