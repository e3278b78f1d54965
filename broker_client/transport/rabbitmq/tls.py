"""TLS for links to a RabbitMQ: what is trusted, and failures as texts that say what to do."""

from __future__ import annotations

import asyncio
import ssl

from broker_client.config.access import TlsConfig
from broker_client.runtime.certificates import load_own_certificate, unusable_file

_HOSTNAME_MISMATCH, _IP_MISMATCH = 62, 64  # OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, ..._IP_...
_UNTRUSTED = (2, 18, 19, 20, 21)  # OpenSSL: X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT and its like
_ASKS_FOR_CERTIFICATE = (
    "CERTIFICATE_REQUIRED",  # TLS 1.3
    "HANDSHAKE_FAILURE",  # TLS 1.2, where a certificate is demanded and there is none
)
_REFUSES_CERTIFICATE = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN")


def tls_context(config: TlsConfig, path: str = "tls") -> ssl.SSLContext:
    """What to trust and to show of ourselves; made once and used for every connection.

    Args:
        config: the settings.
        path: where they stand in the configuration, for errors.

    Raises:
        ConfigError: a file cannot be used: no PEM, a key of another certificate, an encrypted key.
    """
    try:
        context = ssl.create_default_context(cafile=config.cafile)
    except (ssl.SSLError, OSError) as error:
        raise unusable_file(f"{path}.cafile", config.cafile, error) from None
    context.check_hostname = config.verify and config.verify_hostname
    if not config.verify:
        context.verify_mode = ssl.CERT_NONE
    if config.certfile is not None:
        load_own_certificate(context, config.certfile, config.keyfile, path)
    return context


async def explained(error: ssl.SSLError, host: str, port: int) -> str:
    """What went wrong in a handshake with `host`, and which setting speaks of it.

    For a certificate that is not trusted it looks at that certificate again, on a connection of
    its own over which nothing is sent, since OpenSSL does not hand out what it refuses.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        if error.verify_code in (_HOSTNAME_MISMATCH, _IP_MISMATCH):
            return f"the broker's certificate is for another host (tls.verify_hostname): {said}"
        if error.verify_code in _UNTRUSTED:
            issuer = await _issuer_at(host, port)
            return f"the broker's certificate is from {issuer}, not trusted (tls.cafile): {said}"
        return f"the broker's certificate is not accepted: {said}"
    reason = error.reason or ""
    if any(word in reason for word in _ASKS_FOR_CERTIFICATE):
        return f"the broker asks for a client certificate (tls.certfile): {_words(reason)}"
    if any(word in reason for word in _REFUSES_CERTIFICATE):
        return f"the broker does not accept our certificate (tls.certfile): {_words(reason)}"
    if "WRONG_VERSION_NUMBER" in reason:
        return "the server there does not use TLS: is it the port of amqp://?"
    return f"TLS: {_words(reason) or error}"


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


async def _issuer_at(host: str, port: int) -> str:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, host, port, ssl=context
        )
    except OSError:
        return "an unknown authority"
    try:
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        transport.abort()
    return issuer_of(certificate) if certificate else "an unknown authority"


def issuer_of(certificate: bytes) -> str:
    """Name of the authority that signed `certificate` (DER), as far as it is known.

    Reading it takes the extra ``crypto``; without it the authority is an unknown one.
    """
    try:
        from cryptography import x509
    except ImportError:
        return "an unknown authority"
    try:
        issuer = x509.load_der_x509_certificate(certificate).issuer
    except ValueError:
        return "an unknown authority"
    for kind in (x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATION_NAME):
        for attribute in issuer.get_attributes_for_oid(kind):
            return repr(attribute.value)
    return "an authority without a name"
