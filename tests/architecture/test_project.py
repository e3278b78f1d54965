"""The project's own files agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "constraints.txt").read_text().splitlines()

# In parts, so that this file does not contain what it forbids.
REGISTRY_HOSTS = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "deb." + "debian.org"]
TEXT_SUFFIXES = {"", ".cfg", ".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt"}
TEXT_SUFFIXES |= {".yaml", ".yml", ".csv"}


def committed_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout: an unpacked archive has nothing to look through")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix in TEXT_SUFFIXES]


def make_targets() -> list[str]:
    return re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_committed_text_names_a_package_registry_host() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in committed_files()
        for host in REGISTRY_HOSTS
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert not wrong


def test_changelog_starts_with_unreleased_or_the_version_of_the_project() -> None:
    first = re.search(r"^## \[?([^\s\]]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] in {"Unreleased", PROJECT["version"]}


def test_readme_names_every_extra() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## Install")[1].split("\n## ")[0]
    assert [each for each in PROJECT["optional-dependencies"] if f"`{each}`" not in section] == []


def test_readme_names_every_make_target() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = [target for target in make_targets() if target != "help"]
    assert targets
    assert [target for target in targets if f"make {target}" not in readme] == []


def test_contributing_names_every_make_target_a_contributor_needs() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [
        target for target in ("check", "test", "demo", "bench") if f"make {target}" not in text
    ] == []


def test_pins_are_names_and_versions_only() -> None:
    wrong = [line for line in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.+!]*", line)]
    assert not wrong


def test_every_dependency_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    installed = ("test", "crypto", "redis", "spark")  # `test` brings the first two of the others
    wanted = [*PROJECT["dependencies"], *(each for extra in installed for each in extras[extra])]
    names = {normal(re.split(r"[<>=!~\[; ]", requirement)[0]) for requirement in wanted}
    assert names - {normal(PROJECT["name"])} <= {normal(line.split("==")[0]) for line in PINS}


@pytest.mark.parametrize(
    "name",
    [
        ".ci/run",
        *(
            f"scripts/{path.name}"
            for path in (ROOT / "scripts").iterdir()
            if path.is_file() and path.suffix != ".py"
        ),
    ],
)
def test_script_can_be_run_and_stops_at_the_first_failure(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
