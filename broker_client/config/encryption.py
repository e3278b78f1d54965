"""Model of an encryption profile."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from broker_client.config.values import Settings

_CBC_IV, _GCM_IV, _GCM_LEAST = 16, 12, 8


class EncryptionConfig(Settings):
    """A key and what to do with it. CBC profiles read and write what Node's rascal does."""

    name: str
    """Key of the profile; it travels with each message, so that the reader finds the key."""
    key: SecretStr
    """Key in hexadecimal digits, of the length that the algorithm requires. Never printed."""
    algorithm: Literal["aes-256-cbc", "aes-192-cbc", "aes-128-cbc", "aes-256-gcm", "aes-128-gcm"]
    """`aes-256-cbc`, `aes-192-cbc`, `aes-128-cbc` (as in rascal), `aes-256-gcm` or `aes-128-gcm`
    (which detect changed messages)."""
    iv_length: Annotated[int, Field(ge=1, le=64)] | None = None
    """Length in bytes of the random vector in front of each message; 16 for CBC, 12 for GCM."""

    @model_validator(mode="after")
    def _key_and_vector_fit(self) -> Self:
        wanted = int(self.algorithm.split("-")[1]) // 8
        try:
            length = len(self.key_bytes)
        except ValueError:
            raise ValueError("key must be written in hexadecimal digits") from None
        if length != wanted:
            raise ValueError(
                f"{self.algorithm} needs a key of {wanted} bytes, that is {2 * wanted} hexadecimal "
                f"digits; this one has {length} bytes"
            )
        # NIST SP 800-38A: the vector of CBC is one block long.
        if not self.authenticated and self.iv_length not in (None, _CBC_IV):
            raise ValueError(f"{self.algorithm} needs an iv_length of {_CBC_IV}")
        # NIST SP 800-38D recommends 12 bytes; OpenSSL's limits, as `cryptography` states them.
        if self.authenticated and not self.iv_bytes >= _GCM_LEAST:
            raise ValueError(
                f"{self.algorithm} needs an iv_length of {_GCM_LEAST} or more; "
                f"leave it out for {_GCM_IV}"
            )
        return self

    @property
    def key_bytes(self) -> bytes:
        return bytes.fromhex(self.key.get_secret_value())

    @property
    def iv_bytes(self) -> int:
        """Bytes of the vector, `iv_length` or the algorithm's own."""
        return self.iv_length or (_GCM_IV if self.authenticated else _CBC_IV)

    @property
    def authenticated(self) -> bool:
        """True where a changed message is noticed (GCM)."""
        return self.algorithm.endswith("-gcm")
