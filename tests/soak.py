"""The long proofs, one after the other, and a table of what came of them.

    python -m tests.soak --seconds 600 [--seeds 1000000] [--only cluster simulation]

Each is a piece of its own: one that fails does not keep the others from running, `--only` picks
some by a word of their names, and after a ctrl-C the table has what was done. `--seeds` says how
many seeds the quickest simulation runs, the others in proportion to what a seed takes; how far each
is, is kept in `.soak/` until it is done, so that the same call after a ctrl-C goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.rabbitmq_installed import installed

_SHARES = {"node-short": 1, "node": 10, "embedded": 200, "full": 1_000}
"""So many seeds of the quickest level for one of each."""
_KEPT = Path(".soak")
_GRACE = 60.0  # seconds a proof may take to end after a ctrl-C


@dataclass(frozen=True)
class Proof:
    """One of them: its name, and the arguments for Python."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    progress: Path | None = None
    """Where it keeps how far it is."""


@dataclass(frozen=True)
class Outcome:
    """What came of one."""

    name: str
    status: int
    seconds: float
    last: str
    """The last line that it printed."""

    def __str__(self) -> str:
        result = "passed" if self.status == 0 else f"FAILED ({self.status})"
        return f"{self.name:34} {result:12} {self.seconds:7.0f} s  {self.last}"


def proofs(seconds: float, seeds: int | None) -> list[Proof]:
    """All of them, about `seconds` long together, but for the seeds."""
    most, some = str(round(seconds * 0.6)), str(round(seconds * 0.1))
    module = "-m"
    found = [
        Proof("kill -9 of the built-in broker", [module, "tests.faults.crash", "--seconds", most]),
        Proof(
            "kill -9 of the server under load",
            [module, "pytest", "-q", "tests/faults/test_server_kill.py"],
            {"KILL_ROUNDS": "30"},
        ),
        Proof(
            "tests of faults on the server",
            [module, "pytest", "-q", "tests/faults", "-k", "served"],
            {"FAULTS": "all"},
        ),
        *(
            Proof(
                f"faults of every kind, {broker}",
                [module, "tests.faults.chaos", "--seconds", some, "--broker", broker],
            )
            for broker in ("rabbitmq", "served")
        ),
        Proof("nodes of a cluster", [module, "tests.faults.cluster", "--seconds", some]),
        *(
            Proof(
                f"a steady load, {broker}",
                [module, "tests.faults.endurance", "--seconds", some, "--broker", broker],
            )
            for broker in ("embedded", "rabbitmq")
        ),
        Proof(
            "simulation, on a RabbitMQ",
            [module, "tests.simulation.live", "--seeds", "300", "--first", str(int(time.time()))],
        ),
    ]
    return found + [_simulation(level, seconds / 20, seeds) for level in _SHARES]


def _simulation(level: str, seconds: float, seeds: int | None) -> Proof:
    arguments = ["-m", "tests.simulation", "--level", level, "--first", str(int(time.time()))]
    kept = None
    if seeds is None:
        arguments += ["--seconds", f"{seconds:g}"]
    else:
        kept = _KEPT / f"{level}-{seeds}.json"
        arguments += ["--seeds", str(max(1, seeds // _SHARES[level])), "--resume", str(kept)]
        arguments += ["--jobs", str(os.cpu_count() or 1)]
    return Proof(f"simulation, level {level}", arguments, progress=kept)


def run(proof: Proof) -> Outcome:
    """Run one, with its output as it comes."""
    _say(f"==> {proof.name}")
    began, last = time.monotonic(), ""
    with subprocess.Popen(
        [sys.executable, *proof.arguments],
        env={**os.environ, **proof.environment},
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                _say(line.rstrip("\n"))
                last = line.strip() or last
        except KeyboardInterrupt:  # it has got that too
            with contextlib.suppress(subprocess.TimeoutExpired):
                _say(process.communicate(timeout=_GRACE)[0].rstrip("\n"))
            process.kill()
            raise
    if process.returncode == 0 and proof.progress is not None:
        proof.progress.unlink()
    return Outcome(proof.name, process.returncode, time.monotonic() - began, last)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - this is a command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    options = parser.parse_args(arguments)
    _KEPT.mkdir(exist_ok=True)
    chosen = [
        proof
        for proof in proofs(options.seconds, options.seeds)
        if any(word in proof.name for word in options.only)
    ]
    has_four = any(each.version >= (4, 0) for each in installed())
    outcomes = []
    try:
        for proof in chosen:
            if proof.name == "nodes of a cluster" and not has_four:
                missing = "LEFT OUT: there is no RabbitMQ 4: scripts/install-servers"
                outcomes.append(Outcome(proof.name, 1, 0.0, missing))
            else:
                outcomes.append(run(proof))
    except KeyboardInterrupt:
        _say("interrupted")
    _say("\n==> summary")
    for outcome in outcomes:
        _say(str(outcome))
    return 0 if len(outcomes) == len(chosen) and not any(each.status for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
