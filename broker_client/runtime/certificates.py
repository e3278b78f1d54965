"""Certificates of TLS: loaded without a prompt, their failures as problems of a configuration."""

from __future__ import annotations

import ssl

from broker_client.errors import ConfigError, Problem


class _EncryptedKeyError(Exception):
    pass


def load_own_certificate(
    context: ssl.SSLContext, certfile: str, keyfile: str | None, path: str
) -> None:
    """Have `context` show the certificate in `certfile`.

    Args:
        context: of a client or a server.
        certfile: PEM file.
        keyfile: PEM file of its private key; None if `certfile` holds it.
        path: where both stand in the configuration, for errors.

    Raises:
        ConfigError: a file cannot be used: no PEM, a key of another certificate, an encrypted key.
    """
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except _EncryptedKeyError:
        message = (
            f"{keyfile or certfile!r}: the private key is encrypted; give a file without a password"
        )
        raise ConfigError([Problem(f"{path}.keyfile", message)]) from None
    except (ssl.SSLError, OSError) as error:
        raise unusable_file(f"{path}.certfile", certfile, error) from None


def unusable_file(path: str, file: str | None, error: OSError) -> ConfigError:
    """The error of a `file` named at `path` that OpenSSL cannot use."""
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    words = str(reason).replace("_", " ").lower()
    return ConfigError([Problem(path, f"{file!r} cannot be used: {words}")])


def _no_password() -> str:
    """Instead of OpenSSL's prompt on the terminal."""
    raise _EncryptedKeyError
