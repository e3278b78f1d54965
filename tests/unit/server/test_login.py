"""What a client offers as its login."""

from __future__ import annotations

import pytest

from broker_client.amqp.tables import encode_table
from broker_client.node.node import Node
from broker_client.server.login import Login, LoginOutcome, check_login, is_loopback, read_login


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


@pytest.mark.parametrize(
    ("mechanism", "response", "certificate_user"),
    [("PLAIN", b"\0guest\0guest", ""), ("EXTERNAL", b"", "guest")],
)
async def test_guest_when_from_another_machine_then_is_refused_by_any_mechanism(
    mechanism: str, response: bytes, certificate_user: str
) -> None:
    node = Node()
    node.access.add_default_user()

    def outcome(host: str) -> LoginOutcome:
        return check_login(
            node.access, mechanism, response, host=host, certificate_user=certificate_user
        )

    assert outcome("127.0.0.1") == LoginOutcome("guest", "")
    assert outcome("192.0.2.1").refusal == "the user may log in from this machine only"
    await node.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("a name", False),
    ],
)
def test_loopback_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
