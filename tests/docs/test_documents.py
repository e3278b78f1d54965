"""Documents and code name the same things."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

from broker_client import errors
from broker_client.errors import BrokerClientError
from tests.architecture.source import MODULES, PACKAGE
from tests.docs.documents import ROOT, read

ERRORS = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BrokerClientError) and kind.__module__ == errors.__name__
}


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


ROOMS = sorted({module.split(".")[0] for module in MODULES if "." in module})


@pytest.mark.parametrize("room", ROOMS)
def test_architecture_says_what_lives_in_the_room(room: str) -> None:
    assert re.search(rf"^\|.*`{room}/`.*\| .+ \|$", read("ARCHITECTURE.md"), re.MULTILINE)


def test_architecture_names_no_file_that_does_not_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", read("ARCHITECTURE.md"))
    assert named
    assert {
        name for name in named if not any((r / name).exists() for r in (PACKAGE, ROOT))
    } == set()


def test_changelog_speaks_of_the_version_of_the_project() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    headings = re.findall(r"^## \[?([^\s\]]+)", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == version
    if version not in headings:
        unreleased = read("CHANGELOG.md").split("## Unreleased")[1]
        assert version in unreleased, "say which version is being made"


def test_nothing_tells_to_install_the_package_of_another_project() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.py")]
    files += [ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("spark/**/*.md")]
    wrong = re.compile(r"install [^\n|;]*(?<![\w-])broker[-_]client(\[|['\"`]?(\s|$))")
    told = [f"{file}: {found[0]}" for file in files for found in wrong.finditer(file.read_text())]
    assert told == []
