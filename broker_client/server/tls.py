"""TLS of the server's addresses: certificates, and whether their files have changed."""

from __future__ import annotations

import os
import ssl

from broker_client.config.server import ServerTlsConfig
from broker_client.errors import ConfigError, Problem

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
        raise _unusable("cafile", config.cafile, error) from None
    try:
        context.load_cert_chain(config.certfile, config.keyfile, password=_no_password)
    except _EncryptedKeyError:
        message = "the private key is encrypted; give a file without a password"
        raise ConfigError([Problem("server.tls.keyfile", message)]) from None
    except (ssl.SSLError, OSError) as error:
        raise _unusable("certfile", config.certfile, error) from None
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


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    """Instead of OpenSSL's prompt on the terminal."""
    raise _EncryptedKeyError


def _unusable(key: str, file: str | None, error: OSError) -> ConfigError:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    words = str(reason).replace("_", " ").lower()
    return ConfigError([Problem(f"server.tls.{key}", f"{file!r} cannot be used: {words}")])


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # while it is replaced
    return found.st_ino, found.st_mtime_ns, found.st_size
