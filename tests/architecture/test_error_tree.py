"""The drawing at the head of errors.py is right; every error can be pickled and has a text."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from broker_client import errors
from broker_client.errors import BrokerClientError, Problem

ERRORS: list[type[BrokerClientError]] = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, BrokerClientError) and member.__module__ == errors.__name__
]

BY_NAME: dict[str, Any] = {
    "known": ("orders", "invoices"),
    "scope": "channel",
}
BY_TYPE: dict[str, Any] = {
    "str": "text",
    "str | None": "text",
    "int": 312,
    "float": 1.5,
    "Sequence[str]": ("one", "two"),
    "Sequence[Problem]": (Problem("vhosts./.queues.q", "unknown key", "app.yaml", 3),),
}


def an_error(kind: type[BrokerClientError]) -> BrokerClientError:
    """One of `kind`, with a value for each field of its constructor."""
    values = [
        BY_NAME.get(name, BY_TYPE.get(str(parameter.annotation), "text"))
        for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return kind(*(values or ["text"]))


def drawn_tree() -> dict[str, str | None]:
    """Error name to the name of its parent, from the module's docstring."""
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.fullmatch(r"((?:│   |    )*(?:├── |└── )?)(\w+Error)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = path[depth - 1] if depth else None
    return drawn


def test_drawing_equals_the_classes() -> None:
    def parent(kind: type[BrokerClientError]) -> str | None:
        return next((b.__name__ for b in kind.__bases__ if issubclass(b, BrokerClientError)), None)

    assert drawn_tree() == {kind.__name__: parent(kind) for kind in ERRORS}


@pytest.mark.parametrize("kind", ERRORS)
def test_error_pickles_with_its_fields_and_text(kind: type[BrokerClientError]) -> None:
    error = an_error(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("kind", ERRORS)
def test_error_has_text_that_names_its_fields(kind: type[BrokerClientError]) -> None:
    text = str(an_error(kind))
    assert text
    assert "object at 0x" not in text


@pytest.mark.parametrize("kind", ERRORS)
def test_error_name_and_docstring(kind: type[BrokerClientError]) -> None:
    assert kind.__name__.endswith("Error")
    assert kind.__doc__
    assert kind.__doc__ not in {base.__doc__ for base in kind.__bases__}
    assert isinstance(kind.retryable, bool)
