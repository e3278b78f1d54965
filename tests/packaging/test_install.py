"""The sdist and its wheel are installed into an empty environment of each Python."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.docs.documents import blocks

pytestmark = pytest.mark.timeout(600)

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OFFLINE = re.compile(r"NewConnectionError|NameResolutionError|Temporary failure in name resolution")


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != "FORCE_COLOR"
    }
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


@functools.cache
def interpreters() -> dict[str, str]:
    """The Pythons on the path, and those that the variable PYTHONS names, by version."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    names = [*os.environ.get("PYTHONS", "").split(), *(f"python{each}" for each in VERSIONS)]
    for path in filter(None, map(shutil.which, names)):
        ask = "import sys, venv; print('{}.{}'.format(*sys.version_info))"
        tried = run(path, "-c", ask, cwd=ROOT)  # a shim of pyenv may exist and not run
        if tried.returncode == 0:
            found.setdefault(tried.stdout.strip(), path)
    return found


def build(source: Path, folder: Path) -> Path:
    """Build an sdist of `source` in `folder`, and a wheel of the sdist, which is in `unpacked`."""
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=source)
    assert done.returncode == 0, done.stderr
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    done = run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built of what is in it."""
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module", params=sorted(interpreters()))
def environment(
    built: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The programs of an environment that has only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    python = interpreters()[request.param]
    done = run(python, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    assert done.returncode == 0, done.stderr
    programs = folder / "venv" / "bin"
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    pip += ["--python", str(programs / "python")]
    pins = ROOT / "constraints.txt"
    done = run(*pip, "install", "-q", "--no-compile", "--no-input", "-c", pins, wheel, cwd=folder)
    if OFFLINE.search(done.stderr) and not os.environ.get("CI"):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    assert run(*pip, "check", cwd=folder).returncode == 0
    yield programs
    shutil.rmtree(folder)


def test_wheel_has_the_package_its_data_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    beside = ("broker_client_command.py", "pytest_broker_client.py")
    listed = run("git", "ls-files", "broker_client", *beside, cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    kept = {name for name in names if ".dist-info/" not in name}
    assert kept == set(listed.stdout.split())


def test_classifiers_name_every_python_that_is_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for version in VERSIONS:
        assert f'"Programming Language :: Python :: {version}"' in text


def test_first_example_of_the_readme_runs(environment: Path, tmp_path: Path) -> None:
    example, output = (block.text for block in blocks("README.md")[:2])
    (tmp_path / "hello.py").write_text(example)
    done = run(environment / "python", "-W", "error", "hello.py", cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (output.strip(), "")


def test_command_runs(environment: Path, tmp_path: Path) -> None:
    done = run(environment / "broker-client", "--version", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("broker-client 0.1.0\n", "")
    (tmp_path / "app.yaml").write_text("vhosts: {/: {queues: [orders]}}\n")
    done = run(environment / "broker-client", "check", "app.yaml", cwd=tmp_path)
    assert done.stdout.splitlines()[-1].startswith("app.yaml: ok"), done.stderr


PAGES = {
    "Source": "https://github.com/someone/broker",
    "Issues": "https://github.com/someone/broker/issues",
    "Documentation": "https://github.com/someone/broker/blob/HEAD/docs/index.md",
    "Changelog": "https://github.com/someone/broker/blob/HEAD/CHANGELOG.md",
}


@pytest.fixture
def checkout(built: Path, tmp_path: Path) -> Path:
    """A repository with the files of the sdist, without `origin`."""
    [source] = (built / "unpacked").iterdir()
    checkout = shutil.copytree(source, tmp_path / "checkout")
    (checkout / "PKG-INFO").unlink()
    assert run("git", "init", "-q", cwd=checkout).returncode == 0
    return checkout


def add_origin(checkout: Path, remote: str) -> None:
    assert run("git", "remote", "add", "origin", remote, cwd=checkout).returncode == 0


@pytest.mark.parametrize(
    ("remote", "urls"),
    [
        ("git@github.com:someone/broker.git", PAGES),
        (
            "https://someone:secret@git.example.org:8443/a/b",
            {"Source": "https://git.example.org:8443/a/b"},
        ),
        ("ssh://git@git.example.org:2222/a/b.git", {"Source": "https://git.example.org/a/b"}),
        ("/srv/git/broker.git", {}),
        ("file:///srv/git/broker.git", {}),
        ("../broker.git", {}),
    ],
)
def test_metadata_has_the_urls_of_the_repository(
    remote: str, urls: dict[str, str], checkout: Path
) -> None:
    add_origin(checkout, remote)
    done = run(sys.executable, "-m", "hatchling", "metadata", "urls", cwd=checkout)
    assert (json.loads(done.stdout or "{}"), done.stderr) == (urls, "")


def test_wheel_of_an_sdist_has_the_urls_of_the_repository(checkout: Path, tmp_path: Path) -> None:
    add_origin(checkout, PAGES["Source"])
    [wheel] = build(checkout, tmp_path / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = (each for each in archive.namelist() if each.endswith("/METADATA"))
        lines = archive.read(name).decode().splitlines()
    named = {line.removeprefix("Project-URL: ") for line in lines if line.startswith("Project-URL")}
    assert named == {f"{label}, {url}" for label, url in PAGES.items()}


APP = "from broker_client import Router\nrouter = Router({'vhosts': {'/': VHOST}})\n"
QUEUE = "{'queues': ['q'], 'publications': {'q': {'queue': 'q', KEY}}}"


def vhost(key: str) -> str:
    return QUEUE.replace("KEY", key)


COMMANDS = {
    "server": ("dashboard", "--management", "http://127.0.0.1:1"),
    "reload": ("run", "app:router", "--reload"),
}
KEYS = {
    "crypto": "'encryption': {'name': 'k', 'algorithm': 'aes-256-gcm', 'key': '0' * 64}",
    "zstd": "'compress': 'zstd'",
    "fsspec": "'claim_check': {'url': 'memory://bodies'}",
}
MODULES = {
    "prometheus": "broker_client.metrics",
    "sqlalchemy": "broker_client.sql",
    "otel": "broker_client.tracing",
}


def test_command_without_its_extra_names_it(environment: Path, tmp_path: Path) -> None:
    for extra, words in COMMANDS.items():
        program = environment / "broker-client"
        done = run(program, *words, cwd=tmp_path, BROKER_CLIENT_PASSWORD="secret")
        assert done.returncode != 0
        assert f"amqp-broker-client[{extra}]" in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr


def test_configuration_without_its_extra_names_it(environment: Path, tmp_path: Path) -> None:
    for extra, key in KEYS.items():
        (tmp_path / "app.py").write_text(APP.replace("VHOST", vhost(key)))
        done = run(environment / "broker-client", "run", "app:router", cwd=tmp_path)
        assert done.returncode == 1
        assert f"amqp-broker-client[{extra}]" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_module_without_its_extra_names_it(environment: Path, tmp_path: Path) -> None:
    for extra, module in MODULES.items():
        done = run(environment / "python", "-c", f"import {module}", cwd=tmp_path)
        assert done.returncode == 1
        assert "UnsupportedError: " in done.stderr
        assert f"amqp-broker-client[{extra}]" in done.stderr.splitlines()[-1]
