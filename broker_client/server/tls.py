"""TLS of the server's addresses: certificates, and whether their files have changed."""

from __future__ import annotations

import os
import ssl

from broker_client.config.server import ServerTlsConfig
from broker_client.runtime.certificates import load_own_certificate, unusable_file

_ASKS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(config: ServerTlsConfig) -> ssl.SSLContext:
    """What to show of ourselves, and which client certificates to trust.

    Raises:
        ConfigError: a file cannot be used: no PEM, a key of another certificate, an encrypted key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = _ASKS[config.client_certificates]
    try:
        if config.cafile is not None:
            context.load_verify_locations(config.cafile)
    except (ssl.SSLError, OSError) as error:
        raise unusable_file("server.tls.cafile", config.cafile, error) from None
    load_own_certificate(context, config.certfile, config.keyfile, "server.tls")
    return context


def file_versions(config: ServerTlsConfig) -> tuple[object, ...]:
    """What differs once one of the files has been written again or replaced."""
    return tuple(
        _version(path)
        for path in (config.certfile, config.keyfile, config.cafile)
        if path is not None
    )


def common_name(certificate: dict[str, object] | None) -> str:
    """The common name in a client's certificate, as `getpeercert` gives it; "" without one."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    for relative_name in subject:
        for key, value in relative_name:
            if key == "commonName":
                return str(value)
    return ""


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # while it is replaced
    return found.st_ino, found.st_mtime_ns, found.st_size
