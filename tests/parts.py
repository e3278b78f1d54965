"""The whole test run in parts, three at a time: ``python -m tests.parts``.

Each part is a pytest process with servers, ports and folders of its own. Its output is printed when
it ends, in one piece; a summary and what failed come last. Everything runs on the machine's own
RabbitMQ, and what depends on the server once more on the newest.

Servers, browsers and clocks are real, and the machine is shared with other parts. So when no more
than a few tests failed, these are run once more at the end, alone. One that passes then does not
fail the run; it is listed as unstable, with its first output, and must be fixed: the fault may be
the test's or the product's.

JOBS in the environment says how many run at a time: by default one more than there are cores, three
at most, since parts wait for their servers for half of the time.

With arguments, pytest is run with them instead, on the machine's own RabbitMQ and on the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.support.rabbitmq_installed import installed

_FAILURES = ("FAILED ", "ERROR ")
_NO_TESTS = 5
"""pytest's exit status where nothing is selected."""
_TESTS_FAILED = 1
"""pytest's exit status where tests failed, and nothing worse."""
_FEW = 3
"""The number of failed tests of a run that are run again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One pytest process.

    Attributes:
        name: what the output calls it.
        arguments: for pytest.
        rabbitmq: the version to start; None for the machine's own, or else the newest.
    """

    name: str
    arguments: Sequence[str]
    rabbitmq: str | None = None

    def passes_with(self, status: int) -> bool:
        """True if this exit status of pytest is a success. A part that is run again may have no
        tests."""
        return status == 0 or (status == _NO_TESTS and self.rabbitmq is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended."""

    part: Part
    status: int
    seconds: float
    output: str
    failed: Sequence[str] = ()
    """Ids of the tests that failed."""

    @property
    def passed(self) -> bool:
        return self.part.passes_with(self.status)

    def __str__(self) -> str:
        last = self.output.rstrip().rpartition("\n")[2]
        result = "passed" if self.passed else f"FAILED (status {self.status})"
        return f"{self.part.name}: {result} in {self.seconds:.0f} s: {last}"

    def failures(self) -> list[str]:
        """The lines of pytest's own summary that name a failed test."""
        return [line for line in self.output.splitlines() if line.startswith(_FAILURES)]


_SLOWEST = ("--durations=8", "--durations-min=5")
_AGAIN = ("-m", "rabbitmq and not own_versions")
"""Tests that depend on the version of RabbitMQ."""
_MANAGEMENT_API = "tests/server/http/test_as_rabbitmq.py"
_DIFFERENT_API = [
    f"{_MANAGEMENT_API}::test_{name}"
    for name in (
        "wrong_login_is_401_and_asks_for_basic",
        "tag_management_sees_its_vhosts_and_administers_nothing",
        "definitions_of_a_vhost_come_back_after_it_was_deleted",
        "metadata_of_a_vhost_is_given_back_and_replaced_as_a_whole",
        "queue_without_a_type_gets_the_default_of_its_vhost",
        "metadata_of_vhosts_is_in_the_definitions",
    )
]
"""Tests of the management API whose answers depend on the version; the others take 40 s."""


def parts_for(newest: str | None) -> list[Part]:
    """The parts, those that take longest first.

    Args:
        newest: the RabbitMQ for the second run of what depends on its version; None without one.
    """
    apart = [
        Part("Spark", ["tests/spark"]),
        Part("server", ["tests/server", "tests/dashboard", "tests/programs", "tests/sql"]),
        Part("contract and client", ["tests/contract", "tests/client"]),
        Part("faults", ["tests/faults"]),
        Part("interop and documents", ["tests/interop", "tests/docs", "examples"]),
        Part("browser", ["tests/browser"]),
    ]
    folders = [folder for each in apart for folder in each.arguments]
    rest = [f"--ignore={folder}" for folder in folders if folder.startswith("tests/")]
    parts = [*apart[:3], Part("everything else", ["tests", *rest]), *apart[3:]]
    if newest is not None:
        for folder in ("faults", "interop", "contract", "client"):
            name = f"{folder} on RabbitMQ {newest}"
            more = _DIFFERENT_API if folder == "interop" else []
            parts.append(Part(name, [*_AGAIN, f"tests/{folder}", *more], newest))
    return parts


def run_all(parts: Sequence[Part], jobs: int) -> bool:
    """Run `parts`, `jobs` at a time, and print their output; returns whether all passed."""
    with tempfile.TemporaryDirectory(prefix="parts-") as folder:
        caches = {part.name: Path(folder, str(number)) for number, part in enumerate(parts)}
        outcomes = []
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed(
                    pool.submit(_run, part, caches[part.name]) for part in parts
                ):
                    outcome = done.result()
                    outcomes.append(outcome)
                    _say(f"\n==> {outcome.part.name}\n{outcome.output.rstrip()}")
            except BaseException:  # Ctrl-C has also reached the running parts
                pool.shutdown(cancel_futures=True)
                raise
        unstable = _unstable(outcomes, caches)
    _say("\n==> summary")
    for outcome in outcomes:
        _say(str(outcome))
    for outcome in outcomes:
        for line in outcome.failures():
            _say(f"{outcome.part.name}: {line}")
    for outcome in unstable:
        for test in outcome.failed:
            _say(f"{outcome.part.name}: UNSTABLE, passed when run again alone: {test}")
    return all(outcome.passed or outcome in unstable for outcome in outcomes)


def _unstable(outcomes: Sequence[Outcome], caches: Mapping[str, Path]) -> list[Outcome]:
    """Run what failed again, alone; returns the outcomes whose failed tests all passed now."""
    bad = [outcome for outcome in outcomes if not outcome.passed]
    if sum(len(outcome.failed) for outcome in bad) > _FEW:
        return []
    if not all(outcome.status == _TESTS_FAILED and outcome.failed for outcome in bad):
        return []
    unstable = []
    for outcome in bad:
        again = _run(outcome.part, caches[outcome.part.name], "--last-failed")
        _say(f"\n==> {outcome.part.name}: what failed, alone\n{again.output.rstrip()}")
        if again.status == 0:
            unstable.append(outcome)
    return unstable


def _command(part: Part) -> tuple[list[str], dict[str, str]]:
    """The command of `part`, and its environment."""
    environment = dict(os.environ)
    if part.rabbitmq is not None:
        environment["RABBITMQ"] = part.rabbitmq
    return [sys.executable, "-m", "pytest", "-q", *_SLOWEST, *part.arguments], environment


def _run(part: Part, cache: Path, *more: str) -> Outcome:
    words, environment = _command(part)
    _say(f"{part.name}: running")
    started = time.monotonic()
    done = subprocess.run(
        [*words, "-o", f"cache_dir={cache}", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - started
    return Outcome(part, done.returncode, seconds, done.stdout, _last_failed(cache))


def _last_failed(cache: Path) -> list[str]:
    """The failed tests in pytest's cache."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def _show(part: Part) -> bool:
    """Run `part` with its output as it comes; returns whether it passed."""
    _say(f"==> {part.name}")
    words, environment = _command(part)
    return part.passes_with(subprocess.run(words, env=environment, check=False).returncode)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - this is a command


def main(arguments: Sequence[str]) -> int:
    versions = installed()
    newest = versions[-1] if versions and versions[-1].version >= (4, 0) else None
    again = str(newest) if newest is not None and len(versions) > 1 else None
    if arguments:
        parts = [Part(f"pytest {' '.join(arguments)}", arguments)]
        if again is not None:
            name = f"{parts[0].name}, on RabbitMQ {again}"
            parts.append(Part(name, [*_AGAIN, *arguments], again))
        passed = all([_show(part) for part in parts])
    else:
        jobs = int(os.environ.get("JOBS") or min(3, (os.cpu_count() or 1) + 1))
        passed = run_all(parts_for(again), jobs)
    if newest is None:
        _say("LEFT OUT: the suites on RabbitMQ 4, which is not installed: scripts/install-servers")
        passed = passed and not os.environ.get("CI")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
