"""Users: passwords, permissions, and the records of changes."""

from __future__ import annotations

import base64
import hashlib

import pytest

from broker_client.core.access import (
    DEFAULT_EXCHANGE,
    SHA256,
    Permission,
    Users,
    hash_password,
)
from broker_client.core.records import (
    AccessRecord,
    PermissionsRemoved,
    TopicPermissionsRemoved,
    UserRemoved,
    UserSet,
)
from broker_client.errors import AccessControlError, UnknownNameError

READ, WRITE, CONFIGURE = Permission.READ, Permission.WRITE, Permission.CONFIGURE
SALT = b"\x90\x8d\xc6\x0a"
KNOWN_HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
"""Of `test12` with that salt: the example of RabbitMQ's documentation of passwords."""


@pytest.fixture
def records() -> list[AccessRecord]:
    return []


@pytest.fixture
def users(records: list[AccessRecord]) -> Users:
    made = Users(records.append)
    made.add_user("ann", password_hash=hash_password("secret", SALT), tags=["management"])
    made.add_user("bob")
    return made


# --------------------------------------------------------------------------- passwords


def test_hash_is_that_of_the_documentation_of_rabbitmq() -> None:
    assert hash_password("test12", SALT) == KNOWN_HASH


def test_imported_hash_accepts_its_password_only(users: Users) -> None:
    users.add_user("imported", password_hash=KNOWN_HASH, hashing_algorithm=SHA256)
    assert users.authenticate("imported", "test12") == users.user("imported")
    assert users.authenticate("imported", "test13") is None


def test_sha512_hash_of_a_definition_accepts_its_password(users: Users) -> None:
    digest = hashlib.sha512(SALT + b"secret").digest()
    users.add_user(
        "imported",
        password_hash=base64.b64encode(SALT + digest).decode(),
        hashing_algorithm="rabbit_password_hashing_sha512",
    )
    assert users.authenticate("imported", "secret") is not None
    assert users.authenticate("imported", "") is None


@pytest.mark.parametrize("name", ["ann", "bob", "nobody", ""])
@pytest.mark.parametrize("password", ["", "wrong", "SECRET"])
def test_wrong_password_or_user_is_refused(users: Users, name: str, password: str) -> None:
    assert users.authenticate(name, password) is None


def test_user_without_a_password_cannot_log_in_even_with_the_hash_of_nothing(users: Users) -> None:
    assert users.authenticate("bob", "") is None


@pytest.mark.parametrize(
    ("password_hash", "algorithm", "told"),
    [
        ("not base64!", SHA256, "is not base64"),
        (base64.b64encode(b"short").decode(), SHA256, "is not base64 of a salt"),
        (KNOWN_HASH, "rabbit_password_hashing_md5", "rabbit_password_hashing_md5"),
        (KNOWN_HASH, "rabbit_password_hashing_sha512", "is not base64 of a salt"),
    ],
)
def test_hash_of_another_form_is_refused_and_changes_nothing(
    users: Users, password_hash: str, algorithm: str, told: str
) -> None:
    before = users.version
    with pytest.raises(AccessControlError, match=told):
        users.add_user("eve", password_hash=password_hash, hashing_algorithm=algorithm)
    assert "eve" not in users
    assert users.version == before


def test_hash_is_in_no_repr(users: Users, records: list[AccessRecord]) -> None:
    hashed = users.user("ann").password_hash
    assert hashed
    assert hashed not in repr(users.user("ann")) + repr(users) + repr(records)


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "\ud800"])
def test_name_that_is_empty_or_too_long_is_refused(users: Users, name: str) -> None:
    with pytest.raises(AccessControlError, match="1 to 255 bytes"):
        users.add_user(name)


# --------------------------------------------------------------------------- permissions


def test_user_without_permissions_may_not_use_the_vhost(users: Users) -> None:
    assert not users.may_use_vhost("ann", "/")
    assert not users.may("ann", "/", READ, "orders")


def test_permissions_are_for_one_vhost_and_one_kind(users: Users) -> None:
    users.set_permissions("ann", "a", configure="", write="^out\\.", read=".*")
    assert users.may_use_vhost("ann", "a")
    assert not users.may_use_vhost("ann", "b")
    assert not users.may_use_vhost("bob", "a")
    assert users.may("ann", "a", WRITE, "out.orders")
    assert not users.may("ann", "a", WRITE, "in.orders")
    assert users.may("ann", "a", READ, "in.orders")
    assert not users.may("ann", "a", CONFIGURE, "out.orders")
    assert not users.may("ann", "b", READ, "in.orders")


def test_empty_patterns_let_a_user_in_and_do_nothing(users: Users) -> None:
    users.set_permissions("ann", "/", configure="", write="", read="")
    assert users.may_use_vhost("ann", "/")
    assert not any(users.may("ann", "/", each, "x") for each in Permission)


@pytest.mark.parametrize("name", ["", DEFAULT_EXCHANGE])
def test_default_exchange_has_a_name_of_its_own_for_permissions(users: Users, name: str) -> None:
    users.set_permissions("ann", "/", configure="", write="^amq\\.default$", read="")
    assert users.may("ann", "/", WRITE, name)
    users.set_permissions("ann", "/", configure="", write="^orders$", read="")
    assert not users.may("ann", "/", WRITE, name)


def test_changed_permissions_count_at_once(users: Users) -> None:
    users.set_permissions("ann", "/", configure="", write="^a$", read="")
    assert users.may("ann", "/", WRITE, "a")
    version = users.version
    users.set_permissions("ann", "/", configure="", write="^b$", read="")
    assert users.version > version
    assert not users.may("ann", "/", WRITE, "a")
    assert users.may("ann", "/", WRITE, "b")


def test_invalid_pattern_is_refused_and_the_old_ones_stay(users: Users) -> None:
    users.set_permissions("ann", "/", configure="", write="^a$", read="")
    with pytest.raises(AccessControlError, match=r"pattern '\(' is invalid"):
        users.set_permissions("ann", "/", configure="", write=".*", read="(")
    assert not users.may("ann", "/", WRITE, "b")


def test_what_no_file_can_keep_is_refused_and_makes_no_record(
    users: Users, records: list[AccessRecord]
) -> None:
    before = list(records)
    with pytest.raises(AccessControlError, match="half of a surrogate pair"):
        users.set_permissions("ann", "/", configure="\ud800", write="", read="")
    with pytest.raises(AccessControlError, match="half of a surrogate pair"):
        users.set_topic_permissions("ann", "/", "events", write="a\udc80", read="")
    for exchange in ("\ud800", "x" * 256):
        with pytest.raises(AccessControlError, match="name of an exchange"):
            users.set_topic_permissions("ann", "/", exchange, write=".*", read=".*")
    assert records == before


def test_permissions_of_an_unknown_user_are_refused(users: Users) -> None:
    with pytest.raises(UnknownNameError, match="unknown user 'anna'; did you mean 'ann'"):
        users.set_permissions("anna", "/", configure="", write="", read="")


# --------------------------------------------------------------------------- topics


def test_routing_keys_are_free_without_topic_permissions(users: Users) -> None:
    assert users.may_topic("ann", "/", WRITE, "amq.topic", "any.key")


def test_topic_permissions_are_for_one_exchange_and_one_kind(users: Users) -> None:
    users.set_topic_permissions("ann", "/", "amq.topic", write="^mine\\.", read=".*")
    assert users.may_topic("ann", "/", WRITE, "amq.topic", "mine.key")
    assert not users.may_topic("ann", "/", WRITE, "amq.topic", "other.key")
    assert users.may_topic("ann", "/", READ, "amq.topic", "other.key")
    assert users.may_topic("ann", "/", WRITE, "events", "other.key")
    assert users.may_topic("bob", "/", WRITE, "amq.topic", "other.key")


def test_variables_of_topic_permissions_stand_for_the_names(users: Users) -> None:
    users.set_topic_permissions("ann", "prod", "t", write="^{vhost}-{username}-.*", read="")
    assert users.may_topic("ann", "prod", WRITE, "t", "prod-ann-x")
    assert not users.may_topic("ann", "prod", WRITE, "t", "prod-bob-x")
    (shown,) = users.topic_permissions()
    assert shown.write == "^{vhost}-{username}-.*"


def test_name_of_a_user_is_no_pattern(users: Users) -> None:
    users.add_user(".*")
    users.set_topic_permissions(".*", "/", "t", write="^{username}$", read="")
    assert users.may_topic(".*", "/", WRITE, "t", ".*")
    assert not users.may_topic(".*", "/", WRITE, "t", "anything")


# --------------------------------------------------------------------------- removal, records


def test_removed_user_takes_its_permissions_along(users: Users) -> None:
    users.set_permissions("ann", "/", configure=".*", write=".*", read=".*")
    users.set_topic_permissions("ann", "/", "t", write="^a$", read="")
    users.remove_user("ann")
    users.add_user("ann")
    assert not users.may_use_vhost("ann", "/")
    assert users.permissions() == []
    assert users.topic_permissions() == []


def test_last_user_cannot_be_removed(users: Users) -> None:
    users.remove_user("ann")
    with pytest.raises(AccessControlError, match="is the last one"):
        users.remove_user("bob")
    assert "bob" in users


def test_removed_vhost_takes_its_permissions_along(
    users: Users, records: list[AccessRecord]
) -> None:
    users.set_permissions("ann", "gone", configure=".*", write=".*", read=".*")
    users.set_permissions("ann", "kept", configure=".*", write=".*", read=".*")
    users.set_topic_permissions("ann", "gone", "t", write="^a$", read="")
    records.clear()
    users.forget_vhost("gone")
    assert records == [
        TopicPermissionsRemoved("gone", "ann", "t"),
        PermissionsRemoved("gone", "ann"),
    ]
    assert [each.vhost for each in users.permissions()] == ["kept"]


def test_records_restore_the_same_users(users: Users, records: list[AccessRecord]) -> None:
    users.set_permissions("ann", "/", configure="^a", write="^b", read="^c")
    users.set_topic_permissions("ann", "/", "t", write="^a$", read="")
    users.set_tags("bob", ["administrator", "own"])
    users.remove_user("ann")
    users.add_user("ann", tags=["monitoring"])
    users.set_permissions("ann", "/", configure="", write="", read="^c")
    restored_records: list[AccessRecord] = []
    restored = Users(restored_records.append)
    restored.restore(records)
    assert list(restored) == list(users)
    assert restored.permissions() == users.permissions()
    assert restored.topic_permissions() == users.topic_permissions()
    assert restored_records == []  # the store knows them


def test_clearing_what_is_not_there_makes_no_record(
    users: Users, records: list[AccessRecord]
) -> None:
    records.clear()
    assert not users.clear_permissions("ann", "/")
    assert not users.clear_topic_permissions("ann", "/")
    assert records == []


def test_record_of_a_change_says_all_of_the_user(users: Users, records: list[AccessRecord]) -> None:
    hashed = users.user("ann").password_hash
    records.clear()
    users.set_tags("ann", ["administrator", " ", "administrator"])
    users.remove_user("bob")
    assert records == [UserSet("ann", hashed, SHA256, ("administrator",)), UserRemoved("bob")]
