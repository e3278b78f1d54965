"""Documents and code name the same things."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

from broker_client import errors
from broker_client.errors import BrokerClientError
from tests.architecture.source import FILES, MODULES
from tests.docs.documents import ROOT, read

ERRORS = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BrokerClientError) and kind.__module__ == errors.__name__
}
PACKAGE_FILES = {f"{'/'.join(m.split('.'))}.py" for m in MODULES if FILES[m].name != "__init__.py"}


def error_rows() -> dict[str, list[str]]:
    """The cells of each row of docs/errors.md that is about an error."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in read("docs/errors.md").splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row for row in rows}


@pytest.mark.parametrize("name", ERRORS)
def test_error_is_documented(name: str) -> None:
    assert f"`{name}`" in read("docs/errors.md"), f"docs/errors.md: say what {name} means"


def test_no_error_is_documented_that_does_not_exist() -> None:
    named = set(re.findall(r"`([A-Z]\w+Error)`", read("docs/errors.md")))
    assert named - {"TimeoutError", "ConnectionError", "ValueError", "LookupError"} <= set(ERRORS)


@pytest.mark.parametrize("name", error_rows())
def test_documented_error_is_retryable_as_it_says(name: str) -> None:
    assert error_rows()[name][-1] == ("yes" if ERRORS[name].retryable else "no")


@pytest.mark.parametrize("file", sorted(PACKAGE_FILES))
def test_architecture_names_the_module(file: str) -> None:
    assert f"| `{file}` |" in read("ARCHITECTURE.md"), f"ARCHITECTURE.md: give {file} a line"


def test_architecture_names_no_module_that_does_not_exist() -> None:
    named = re.findall(r"^\| `([\w/]+\.py)` \|", read("ARCHITECTURE.md"), re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) <= PACKAGE_FILES


def test_architecture_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", read("ARCHITECTURE.md")))
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in code} == set()


def test_changelog_speaks_of_the_version_of_the_project() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    headings = re.findall(r"^## \[?([^\s\]]+)", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == version
    if version not in headings:
        unreleased = read("CHANGELOG.md").split("## Unreleased")[1]
        assert version in unreleased, "say which version is being made"
