"""Encrypted bodies: rascal's CBC, our GCM, several keys, and failures."""

from __future__ import annotations

import pytest

from broker_client.codec.encryption import decrypt, encrypt, encryption_note
from broker_client.config import EncryptionConfig
from broker_client.errors import InvalidContentError
from broker_client.message import Properties

KEYS = {"aes-256": "00" * 31 + "01", "aes-192": "00" * 23 + "01", "aes-128": "00" * 15 + "01"}


def a_profile(
    algorithm: str = "aes-256-cbc", *, name: str = "v1", key: str = ""
) -> EncryptionConfig:
    return EncryptionConfig.model_validate(
        {"name": name, "key": key or KEYS[algorithm[:7]], "algorithm": algorithm}
    )


TEXT = Properties(content_type="text/plain", headers={"trace": "t1", "rascal": {"kept": 1}})


@pytest.mark.parametrize(
    "algorithm", ["aes-256-cbc", "aes-192-cbc", "aes-128-cbc", "aes-256-gcm", "aes-128-gcm"]
)
@pytest.mark.parametrize("body", [b"", b"a", b"x" * 16, b"x" * 1000])
def test_what_was_encrypted_decrypts_to_the_same(algorithm: str, body: bytes) -> None:
    profile = a_profile(algorithm)
    data, properties = encrypt(profile, body, TEXT)
    assert data != body
    assert decrypt({"v1": profile}, data, properties) == (body, "text/plain")


def test_headers_are_rascals_and_others_stay() -> None:
    _, properties = encrypt(a_profile(), b"hello", TEXT)
    assert properties.content_type == "application/octet-stream"
    assert properties.headers is not None
    assert properties.headers["trace"] == "t1"
    note = properties.headers["rascal"].pop("encryption")
    assert note == {"name": "v1", "iv": note["iv"], "originalContentType": "text/plain"}
    assert len(bytes.fromhex(note["iv"])) == 16
    assert properties.headers["rascal"] == {"kept": 1}
    assert TEXT.headers == {"trace": "t1", "rascal": {"kept": 1}}


def test_known_vector_of_aes_256_cbc_decrypts() -> None:
    # openssl enc -aes-256-cbc -K 00..01 -iv 00..02 <<< -n "hello"
    properties = Properties(
        content_type="application/octet-stream",
        headers={"rascal": {"encryption": {"name": "v1", "iv": "00" * 15 + "02"}}},
    )
    data = bytes.fromhex(OPENSSL_HELLO)
    assert decrypt({"v1": a_profile()}, data, properties) == (b"hello", None)


def test_two_messages_never_share_a_vector() -> None:
    profile = a_profile()
    first, second = (encrypt(profile, b"hello", TEXT) for _ in range(2))
    assert first[0] != second[0]


def test_keys_rotate_since_the_profile_travels_with_the_message() -> None:
    old, new = a_profile(), a_profile("aes-256-gcm", name="v2", key="11" * 32)
    both = {"v1": old, "v2": new}
    for profile in (old, new):
        assert decrypt(both, *encrypt(profile, b"hello", TEXT))[0] == b"hello"


def test_a_plain_message_is_left_alone() -> None:
    assert encryption_note(TEXT) is None
    assert decrypt({}, b"hello", TEXT) == (b"hello", "text/plain")


@pytest.mark.parametrize("note", ["aes", 1, ["v1"], b"v1"])
def test_note_of_encryption_that_is_no_mapping_makes_the_message_invalid(note: object) -> None:
    properties = Properties(headers={"rascal": {"encryption": note}})
    with pytest.raises(InvalidContentError, match="not a mapping"):
        decrypt({"v1": a_profile()}, b"ciphertext", properties)


@pytest.mark.parametrize("iv_length", [8, 12, 64])
def test_every_vector_of_gcm_that_loads_can_be_used(iv_length: int) -> None:
    profile = a_profile("aes-256-gcm").model_copy(update={"iv_length": iv_length})
    assert decrypt({"v1": profile}, *encrypt(profile, b"hello", TEXT))[0] == b"hello"


def test_unknown_profile_says_which_are_known() -> None:
    message = encrypt(a_profile(name="v9"), b"hello", TEXT)
    with pytest.raises(InvalidContentError, match=r"unknown encryption profile 'v9' \(known: v1\)"):
        decrypt({"v1": a_profile()}, *message)


def test_changed_message_is_noticed_with_gcm() -> None:
    profile = a_profile("aes-256-gcm")
    data, properties = encrypt(profile, b"hello", TEXT)
    with pytest.raises(InvalidContentError, match="wrong key, or the message was changed"):
        decrypt({"v1": profile}, bytes((data[0] ^ 1,)) + data[1:], properties)


def test_cut_message_is_invalid_content_with_cbc() -> None:
    profile = a_profile()
    data, properties = encrypt(profile, b"hello", TEXT)
    with pytest.raises(InvalidContentError, match="cannot be decrypted with profile 'v1'"):
        decrypt({"v1": profile}, data[:-1], properties)


def test_downgrade_from_gcm_to_cbc_is_refused() -> None:
    cbc, gcm = a_profile("aes-256-cbc"), a_profile("aes-256-gcm")
    with pytest.raises(InvalidContentError, match="aes-256-gcm, the message is not"):
        decrypt({"v1": gcm}, *encrypt(cbc, b"hello", TEXT))


def test_key_is_in_no_error_and_no_repr() -> None:
    profile = a_profile(key="ab" * 32)
    assert "abab" not in repr(profile)
    with pytest.raises(InvalidContentError) as caught:
        decrypt({"v1": profile}, b"not a block", encrypt(profile, b"hello", TEXT)[1])
    assert "abab" not in str(caught.value)


OPENSSL_HELLO = "25771f4e90d7024b9441687f0cbc0b42"
