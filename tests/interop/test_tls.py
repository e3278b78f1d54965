"""TLS to a real RabbitMQ that verifies client certificates, with our own authorities."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker_client.broker import Broker
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError, ConnectFailedError
from tests.support.certificates import Authority, Files
from tests.support.eventually import eventually
from tests.support.fake_broker import FakeBroker
from tests.support.own_server import free_port
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

pytest.importorskip("cryptography")


@dataclass(frozen=True, slots=True)
class Place:
    """A RabbitMQ whose certificate is for localhost only, and the authority of its clients."""

    server: RabbitMQ
    port: int
    management_port: int
    authority: Authority
    client: Files
    folder: Path

    def config(self, host: str = "localhost", port: int = 0, **tls: Any) -> dict[str, Any]:
        """Trusts the authority and presents a certificate; `tls` overrides settings."""
        settings = {
            "cafile": str(self.authority.file),
            "certfile": str(self.client.certificate),
            "keyfile": str(self.client.key),
            **tls,
        }
        return {
            "vhosts": {
                "/": {
                    "connection": {
                        "url": f"amqps://guest:guest@{host}:{port or self.port}",
                        "tls": {key: value for key, value in settings.items() if value is not None},
                        "retry": {"min": "50ms", "max": "200ms"},
                    },
                    "queues": {"tls": {"options": {"auto_delete": True}}},
                }
            }
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, "Our Authority")
    server_files = authority.sign("broker", "localhost")
    port, management_port = free_port(), free_port()
    settings = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {authority.file}",
        f"ssl_options.certfile = {server_files.certificate}",
        f"ssl_options.keyfile = {server_files.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
        "management.ssl.ip = 127.0.0.1",
        f"management.ssl.port = {management_port}",
        f"management.ssl.cacertfile = {authority.file}",
        f"management.ssl.certfile = {server_files.certificate}",
        f"management.ssl.keyfile = {server_files.key}",
    ]
    with RabbitMQ(settings=settings) as server:
        client = authority.sign("client")
        yield Place(server, port, management_port, authority, client, folder)


pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(180)]


async def test_own_authority_and_client_certificate_make_a_link(place: Place) -> None:
    async with Broker.create(place.config()) as broker:
        await (await broker.publish("/tls", {"over": "TLS"}))
        assert broker.connections()[0][1].startswith("amqps://guest:***@localhost:")
        await eventually(
            lambda: any(
                each.get("ssl") and each.get("peer_cert_subject") == "CN=client"
                for each in place.server.connections()
            ),
            timeout=15.0,
        )


async def test_vhost_is_asserted_and_deleted_over_https_with_the_connections_trust(
    place: Place,
) -> None:
    vhosts = place.config()["vhosts"]
    vhosts["asserted over https"] = vhost = vhosts.pop("/")
    vhost["assert"] = True
    vhost["connection"]["management"] = f"https://localhost:{place.management_port}"
    broker = await Broker.create({"vhosts": vhosts})
    assert "asserted over https" in place.server.ctl("list_vhosts")
    await broker.nuke()
    assert "asserted over https" not in place.server.ctl("list_vhosts")


async def test_wrong_authority_is_an_error_that_names_the_issuer(place: Place) -> None:
    other = Authority(place.folder, "Another Authority")
    with pytest.raises(ConnectFailedError) as caught:
        await Broker.create(place.config(cafile=str(other.file)))
    assert "from 'Our Authority', not trusted (tls.cafile)" in str(caught.value)


async def test_system_authorities_do_not_trust_ours(place: Place) -> None:
    with pytest.raises(ConnectFailedError, match="'Our Authority', not trusted"):
        await Broker.create(place.config(cafile=None))


async def test_wrong_host_is_an_error_of_its_own(place: Place) -> None:
    with pytest.raises(ConnectFailedError, match=r"another host \(tls.verify_hostname\).*127"):
        await Broker.create(place.config("127.0.0.1"))


async def test_host_name_alone_may_be_left_unchecked(place: Place) -> None:
    async with Broker.create(place.config("127.0.0.1", verify_hostname=False)):
        pass
    other = Authority(place.folder, "Third Authority")
    with pytest.raises(ConnectFailedError, match="not trusted"):
        await Broker.create(
            place.config("127.0.0.1", verify_hostname=False, cafile=str(other.file))
        )


async def test_nothing_is_checked_without_verify(place: Place) -> None:
    async with Broker.create(place.config("127.0.0.1", verify=False, cafile=None)):
        pass


async def test_plain_address_at_a_tls_port_says_what_to_write(place: Place) -> None:
    with pytest.raises(ConnectFailedError, match=r"TLS.* write amqps://"):
        await Broker.create({"vhosts": {"/": {"connection": f"amqp://localhost:{place.port}"}}})


async def test_missing_client_certificate_is_said_to_be_missing(place: Place) -> None:
    with pytest.raises(ConnectFailedError, match=r"asks for a client certificate"):
        await Broker.create(place.config(certfile=None, keyfile=None))


async def test_client_certificate_of_another_authority_is_not_accepted(place: Place) -> None:
    stranger = Authority(place.folder, "Stranger").sign("stranger")
    with pytest.raises(ConnectFailedError, match=r"does not accept our certificate"):
        await Broker.create(
            place.config(certfile=str(stranger.certificate), keyfile=str(stranger.key))
        )


async def test_reconnects_with_the_same_trust(place: Place) -> None:
    async with Proxy("127.0.0.1", place.port) as proxy:
        config = place.config(port=proxy.port)
        async with Broker.create(config) as broker:
            broker.on("error", lambda error, vhost: None)
            proxy.cut()
            await eventually(lambda: broker.stats().vhosts["/"].connects == 2)
            await (await broker.publish("/tls", "again"))


async def test_amqps_address_is_never_spoken_to_in_plain_text(place: Place) -> None:
    config = place.config(port=place.server.port)
    with pytest.raises(ConnectFailedError, match=r"does not use TLS: is it the port of amqp://"):
        await Broker.create(config)


async def test_server_that_speaks_tls_12_and_asks_for_a_certificate(place: Place) -> None:
    files = place.authority.sign("twelve", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(place.authority.file))
    context.load_cert_chain(files.certificate, files.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    async with FakeBroker(context=context) as fake:
        async with Broker.create(place.config(port=fake.port)):
            pass
        with pytest.raises(ConnectFailedError, match="asks for a client certificate"):
            await Broker.create(place.config(port=fake.port, certfile=None, keyfile=None))


# --------------------------------------------------------------------------- files


def refused(config: dict[str, Any]) -> str:
    load_config(config)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(_create(config))
    return str(caught.value)


async def _create(config: dict[str, Any]) -> None:
    await Broker.create(config)


def test_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(place: Place) -> None:
    files = place.authority.sign("secretive", password="hidden")
    text = refused(place.config(certfile=str(files.certificate), keyfile=str(files.key)))
    assert "vhosts./.connection.tls.keyfile" in text
    assert "is encrypted" in text


def test_key_of_another_certificate_is_refused(place: Place) -> None:
    other = place.authority.sign("other")
    text = refused(place.config(keyfile=str(other.key)))
    assert "vhosts./.connection.tls.certfile" in text
    assert "key values mismatch" in text


def test_file_that_is_no_pem_is_refused(place: Place) -> None:
    nonsense = place.folder / "nonsense.pem"
    nonsense.write_text("not a certificate")
    assert "tls.cafile: " in refused(place.config(cafile=str(nonsense)))


async def test_cut_right_after_the_handshake_speaks_of_certificates(place: Place) -> None:
    """With TLS 1.3 a refused client may see a reset instead of the alert that says why."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)  # "AMQP....", so the handshake is over on both sides
        writer.transport.abort()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    identity = place.authority.sign("resetting", "localhost")
    context.load_cert_chain(identity.certificate, identity.key)
    server = await asyncio.start_server(reset, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectFailedError, match=r"most likely .*tls.certfile"):
            await Broker.create(place.config(port=port))
