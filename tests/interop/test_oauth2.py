"""Tokens as passwords, on a real RabbitMQ with its OAuth 2 plug-in."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from broker_client import AckOrNack, Broker, Message
from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectionLostError,
    TransportError,
)
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(180)]

USER = "a-service"
RESOURCE = "rabbitmq"
LIFETIME = 4.0
"""Seconds that a token is valid: short, but longer than a busy machine needs for a refresh."""
LIFETIMES = 3
PUBLISHING_AND_CONSUMING = 2


class Issuer:
    """Signs tokens (RS256), as an identity provider does."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.issued: list[str] = []

    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, lifetime: float = LIFETIME) -> str:
        """A token with all permissions in all vhosts, valid for `lifetime` seconds."""
        kinds = ("configure", "write", "read")
        claims = {
            "sub": USER,
            "aud": RESOURCE,
            "exp": int(time.time() + lifetime),
            "jti": str(len(self.issued)),
            "scope": " ".join(f"{RESOURCE}.{kind}:*/*" for kind in kinds),
        }
        head = {"alg": "RS256", "kid": "test", "typ": "JWT"}
        signed = b".".join(_base64url(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        made = b".".join((signed, _base64url(signature))).decode()
        self.issued.append(made)
        return made


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def server(issuer: Issuer) -> Iterator[RabbitMQ]:
    """A RabbitMQ that accepts the issuer's tokens, and its default user."""
    # A server in another root shares only /tmp with us.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        key = Path(folder) / "public.pem"
        key.write_bytes(issuer.public_key())
        Path(folder).chmod(0o755)
        settings = [
            "auth_backends.1 = internal",
            "auth_backends.2 = rabbit_auth_backend_oauth2",
            f"auth_oauth2.resource_server_id = {RESOURCE}",
            "auth_oauth2.default_key = test",
            f"auth_oauth2.signing_keys.test = {key}",
            "auth_oauth2.algorithms.1 = RS256",
        ]
        with RabbitMQ(settings=settings, plugins=["rabbitmq_auth_backend_oauth2"]) as server:
            yield server


@pytest.fixture
def vhost(server: RabbitMQ) -> Iterator[str]:
    name = server.make_vhost()
    yield name
    server.delete_vhost(name)


def config(server: RabbitMQ, vhost: str, **connection: Any) -> dict[str, Any]:
    where = {"hostname": "127.0.0.1", "port": server.port, "retry": {"min": "50ms", "max": "200ms"}}
    return {
        "vhosts": {
            vhost: {
                "connection": {**where, **connection},
                "queues": ["q"],
                "publications": {"p": {"queue": "q", "timeout": "30s"}},
                "subscriptions": {"s": {"queue": "q"}},
            }
        }
    }


async def test_connections_stay_up_over_many_lifetimes_where_the_token_is_refreshed(
    server: RabbitMQ, vhost: str, issuer: Issuer
) -> None:
    given = config(
        server, vhost, credentials=lambda: (USER, issuer.token()), refresh_credentials="1s"
    )
    handled: list[Any] = []
    lost: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    async with Broker.create(given) as broker:
        broker.on("error", lambda *args: lost.append(args))
        broker.on("disconnect", lambda *args: lost.append(args))
        (await broker.subscribe("s", handle)).on("error", lambda error: lost.append(error))
        loop = asyncio.get_running_loop()
        end = loop.time() + LIFETIMES * LIFETIME
        published = 0
        while loop.time() < end:
            await (await broker.publish("p", published))
            published += 1
            # Permissions are checked again at each declaration.
            await broker.purge("q") if published % 50 == 0 else await asyncio.sleep(0.02)
        await (await broker.publish("p", "last"))
        await eventually(lambda: "last" in handled)
        assert broker.stats().vhosts[vhost].connects == 1
    assert lost == []
    assert len(server.logged(f"user '{USER}' updated secret")) >= PUBLISHING_AND_CONSUMING
    assert not any(server.logged(token) for token in issuer.issued)


async def test_what_is_asked_with_an_expired_token_is_refused_and_the_token_is_not_told(
    server: RabbitMQ, vhost: str, issuer: Issuer
) -> None:
    """RabbitMQ refuses each command; 4.3 ends the connection too."""
    token = issuer.token()
    connector = NetworkConnector(f"amqp://{USER}:{token}@127.0.0.1:{server.port}", vhost=vhost)
    link = await connector.connect(timeout=30.0)
    await (await link.open_channel()).declare_queue("q")
    refusals: list[TransportError] = []
    wanted = ChannelClosedError if server.version < (4, 3) else ConnectionLostError

    async def refused() -> bool:
        try:
            await (await link.open_channel()).purge_queue("q")
        except (ChannelClosedError, ConnectionLostError) as error:
            refusals.append(error)
            return isinstance(error, wanted)
        return False

    await eventually(refused, timeout=3 * LIFETIME)
    for error in refusals:
        if isinstance(error, ChannelClosedError) and error.reply_code:
            assert error.reply_code == 403
            assert "token has expired" in str(error)
        else:  # the connection ended, possibly during a request of the channel
            assert "credential expired" in str(error)
        assert token not in str(error) + repr(error)
    await link.close()


async def test_broker_logs_in_again_with_a_new_token_where_the_expired_one_ended_its_connection(
    server: RabbitMQ, vhost: str, issuer: Issuer
) -> None:
    if server.version < (4, 3):
        pytest.skip("it keeps the connection, and refuses what is asked on it")
    given = config(server, vhost, credentials=lambda: (USER, issuer.token()))
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    async with Broker.create(given) as broker:
        ends: list[str] = []
        broker.on("error", lambda error, vhost: ends.append(str(error)))
        await broker.subscribe("s", handle)
        published = 0
        while broker.stats().vhosts[vhost].connects < 3:
            await (await broker.publish("p", published))
            published += 1
            await asyncio.sleep(0.02)
        await eventually(lambda: set(handled) == set(range(published)))
    assert ends
    assert all("credential expired" in each for each in ends)
    assert not any(token in each for token in issuer.issued for each in ends)


async def test_login_with_an_expired_token_is_refused_and_the_token_is_not_told(
    server: RabbitMQ, vhost: str, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(lifetime=-60.0)
    with pytest.raises(AuthenticationRefusedError, match="403 ACCESS_REFUSED") as caught:
        await Broker.create(config(server, vhost, credentials=lambda: (USER, token)))
    assert token not in str(caught.value) + caplog.text
