"""Bodies encrypted on their way: rascal's AES-CBC, byte for byte, and AES-GCM.

The profile's name travels in the headers, so that a reader with several profiles finds the key;
that is how keys are rotated. Headers are rascal's: ``rascal.encryption`` holds `name`,
`iv` (hex) and `originalContentType`. GCM adds `authenticated`, and its tag ends the body.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from broker_client.config import EncryptionConfig
from broker_client.errors import InvalidContentError, UnsupportedError, install_extra
from broker_client.message import RASCAL, Properties

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import CBC

ENCRYPTED = "application/octet-stream"
_BLOCK_BITS = 128


def check_available() -> None:
    """Raise UnsupportedError when the package that encrypts is missing."""
    if find_spec("cryptography") is None:
        raise _missing()


def encrypt(
    profile: EncryptionConfig, body: bytes, properties: Properties
) -> tuple[bytes, Properties]:
    """Encrypt `body`; returns it with properties that describe the encryption.

    Raises:
        UnsupportedError: the `cryptography` package is missing.
    """
    iv = os.urandom(profile.iv_bytes)
    data = (
        _encrypt_gcm(profile, iv, body)
        if profile.authenticated
        else _encrypt_cbc(profile, iv, body)
    )
    note: dict[str, Any] = {"name": profile.name, "iv": iv.hex()}
    if properties.content_type is not None:
        note["originalContentType"] = properties.content_type
    if profile.authenticated:
        note["authenticated"] = True
    headers = dict(properties.headers or {})
    headers[RASCAL] = {**_table(headers.get(RASCAL)), "encryption": note}
    return data, properties._replace(content_type=ENCRYPTED, headers=headers)


def decrypt(
    profiles: Mapping[str, EncryptionConfig], body: bytes, properties: Properties
) -> tuple[bytes, str | None]:
    """Decrypt a message; returns (plain body, content type), unchanged if it is not encrypted.

    Raises:
        InvalidContentError: the profile is unknown, the key is wrong, or the message was changed.
        UnsupportedError: the `cryptography` package is missing.
    """
    note = _raw_note(properties)
    if note is None:
        return body, properties.content_type
    if not isinstance(note, Mapping):  # the body cannot be taken for plain
        raise InvalidContentError(ENCRYPTED, f"the header {RASCAL}.encryption is not a mapping")
    name = note.get("name")
    profile = profiles.get(str(name))
    if profile is None:
        known = ", ".join(sorted(profiles)) or "none"
        raise InvalidContentError(
            ENCRYPTED, f"unknown encryption profile {name!r} (known: {known})"
        )
    if bool(note.get("authenticated")) != profile.authenticated:
        raise InvalidContentError(
            ENCRYPTED, f"encryption profile {name!r} is {profile.algorithm}, the message is not"
        )
    original = note.get("originalContentType")
    try:
        iv = bytes.fromhex(str(note.get("iv", "")))
        plain = (
            _decrypt_gcm(profile, iv, body)
            if profile.authenticated
            else _decrypt_cbc(profile, iv, body)
        )
    except ValueError as error:
        raise InvalidContentError(
            ENCRYPTED, f"cannot be decrypted with profile {name!r}: {error}"
        ) from error
    return plain, str(original) if original is not None else None


def encryption_note(properties: Properties) -> Mapping[str, Any] | None:
    """The encryption header, or None."""
    note = _raw_note(properties)
    return note if isinstance(note, Mapping) else None


def _raw_note(properties: Properties) -> object:
    return _table((properties.headers or {}).get(RASCAL)).get("encryption")


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _encrypt_cbc(profile: EncryptionConfig, iv: bytes, body: bytes) -> bytes:
    cipher, padding = _cbc(profile, iv)
    padder = padding.PKCS7(_BLOCK_BITS).padder()
    encryptor = cipher.encryptor()
    padded = padder.update(body) + padder.finalize()
    return encryptor.update(padded) + encryptor.finalize()


def _decrypt_cbc(profile: EncryptionConfig, iv: bytes, body: bytes) -> bytes:
    cipher, padding = _cbc(profile, iv)
    decryptor = cipher.decryptor()
    unpadder = padding.PKCS7(_BLOCK_BITS).unpadder()
    padded = decryptor.update(body) + decryptor.finalize()
    plain: bytes = unpadder.update(padded) + unpadder.finalize()
    return plain


def _cbc(profile: EncryptionConfig, iv: bytes) -> tuple[Cipher[CBC], Any]:
    try:
        from cryptography.hazmat.primitives import padding
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as error:
        raise _missing() from error
    return Cipher(algorithms.AES(profile.key_bytes), modes.CBC(iv)), padding


def _encrypt_gcm(profile: EncryptionConfig, iv: bytes, body: bytes) -> bytes:
    return bytes(_gcm(profile).encrypt(iv, body, profile.name.encode()))


def _decrypt_gcm(profile: EncryptionConfig, iv: bytes, body: bytes) -> bytes:
    cipher = _gcm(profile)
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher.decrypt(iv, body, profile.name.encode()))
    except InvalidTag:
        raise ValueError("wrong key, or the message was changed") from None


def _gcm(profile: EncryptionConfig) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise _missing() from error
    return AESGCM(profile.key_bytes)


def _missing() -> UnsupportedError:
    return UnsupportedError("encryption", install_extra("crypto"))
