"""Reading the issuer of a certificate, also of an invalid one."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from broker_client.transport.rabbitmq.tls import issuer_of

pytest.importorskip("cryptography")

from tests.support.certificates import Authority


@pytest.fixture
def certificate(tmp_path: Path) -> bytes:
    files = Authority(tmp_path, "Größte Autorität").sign("broker", "localhost")
    return ssl.PEM_cert_to_DER_cert(files.certificate.read_text())


def test_issuer_is_read_from_the_certificate(certificate: bytes) -> None:
    assert issuer_of(certificate) == "'Größte Autorität'"


def test_certificate_cut_anywhere_raises_nothing(certificate: bytes) -> None:
    for end in range(0, len(certificate), 7):
        assert issuer_of(certificate[:end]) == "an unknown authority"


def test_without_cryptography_the_issuer_is_unknown(
    certificate: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert issuer_of(certificate) == "an unknown authority"


def test_nonsense_raises_nothing() -> None:
    for data in (b"", b"\x30", b"\x30\x84\xff\xff\xff\xff", bytes(range(256)), b"\x30\x02\x30\x00"):
        assert issuer_of(data) == "an unknown authority"
