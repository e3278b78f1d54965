"""Kills a working node repeatedly, and compares its file with its confirms.

python -m tests.faults.crash --seconds 600      # `make soak`: shows how far it is
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.crash_child import DEAD, QUEUES

ROOT = Path(__file__).parents[2]
_START_TIMEOUT = 90.0


@dataclass
class Verdict:
    """The result of a run of kills."""

    kills: int
    published: int
    confirmed: int
    settled: int
    declared: int
    left: int
    redelivered: int
    wrong: list[str] = field(default_factory=list)
    """One line for each broken promise."""

    def __str__(self) -> str:
        return (
            f"{self.kills} kills: {self.published:,} published, {self.confirmed:,} confirmed, "
            f"{self.settled:,} settled, {self.declared:,} declared, {self.left:,} left, "
            f"{self.redelivered:,} redelivered: "
            + (f"{len(self.wrong)} WRONG" if self.wrong else "nothing lost, nothing came back")
        )


class KilledNode:
    """One file, and the processes that work on it, one after another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "node.db"
        self.log = folder / "promises.log"
        self.log.touch()
        self.kills = 0
        self._random = random.Random(seed)
        self._seed = seed

    @property
    def has_done_everything(self) -> bool:
        """True once something was confirmed, settled and declared, which takes a while on a busy
        machine."""
        told = {line[:1] for line in self.log.read_text().splitlines()}
        return {"c", "d"} <= told and bool(told & {"S", "N"})

    def live_and_die(self, *, longest: float) -> None:
        """Start a process, let it work for a random while, kill it.

        Raises:
            AssertionError: it did not start to work, or died by itself.
        """
        self.kills += 1
        before = self.log.stat().st_size
        with self._start(f"{self._seed}.{self.kills}") as child:
            deadline = time.monotonic() + _START_TIMEOUT
            while self.log.stat().st_size == before:
                assert child.poll() is None, f"it ended by itself:\n{_errors(child)}"
                assert time.monotonic() < deadline, "it did not begin to work"
                time.sleep(0.005)
            time.sleep(self._random.uniform(0.0, longest))
            assert child.poll() is None, f"it ended by itself:\n{_errors(child)}"
            child.send_signal(signal.SIGKILL)
            child.wait()

    def judge(self) -> Verdict:
        """Read the file, and compare."""
        done = subprocess.run(
            self._command("drain"), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return compare(self.kills, self.log.read_text(), **json.loads(done.stdout))

    def _start(self, life: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command(life), cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def _command(self, life: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tests.faults.crash_child",
            str(self.path),
            str(self.log),
            life,
        ]


def _errors(child: subprocess.Popen[str]) -> str:
    assert child.stderr is not None
    return child.stderr.read()


def compare(
    kills: int, log: str, left: dict[str, list[str]], declared: Collection[str] = ()
) -> Verdict:
    """Compare the promises in `log` with the messages `left` in each queue, and the queues
    `declared`."""
    told: dict[str, set[str]] = {kind: set() for kind in "pcsSnNrd"}
    # The last line may be cut by the kill; then it does not count.
    for line in log.splitlines() if log.endswith("\n") else log.splitlines()[:-1]:
        kind, _, what = line.partition(" ")
        told[kind].add(what)
    found = {queue: set(names) for queue, names in left.items()}
    safely_gone = told["S"] | told["N"]
    wrong = [f"declared and not there: {queue}" for queue in told["d"].difference(declared)]
    for queue, names in left.items():
        wrong += [f"twice in {queue}: {n}" for n, count in Counter(names).items() if count > 1]
        wrong += [f"never published, in {queue}: {n}" for n in found[queue] - told["p"]]
        back = {n for n in found[queue] if f"{queue} {n}" in safely_gone}
        wrong += [f"settled and back in {queue}: {n}" for n in back]
    for queue in QUEUES:
        for name in told["c"] - found[queue]:
            if f"{queue} {name}" in told["s"]:
                continue
            rejected = f"{queue} {name}" in told["n"]
            if not rejected or (name not in found[DEAD] and f"{DEAD} {name}" not in told["s"]):
                wrong.append(f"lost from {queue}: {name}")
    return Verdict(
        kills=kills,
        published=len(told["p"]),
        confirmed=len(told["c"]),
        settled=len(told["S"]) + len(told["N"]),
        declared=len(told["d"]),
        left=sum(map(len, left.values())),
        redelivered=len(told["r"]),
        wrong=wrong,
    )


def soak(seconds: float, seed: int, say: Callable[[str], None]) -> list[Verdict]:
    """Rounds of kills, each on a file of its own, for about `seconds`."""
    end = time.monotonic() + seconds
    verdicts: list[Verdict] = []
    while time.monotonic() < end and not (verdicts and verdicts[-1].wrong):
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            victim = KilledNode(Path(folder), seed + len(verdicts))
            round_end = min(end, time.monotonic() + 60.0)
            while time.monotonic() < round_end:
                victim.live_and_die(longest=2.0)
            verdicts.append(victim.judge())
        left = max(0.0, end - time.monotonic())
        say(f"{left:5.0f} s to go · round {len(verdicts)}: {verdicts[-1]}")
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crash", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    say(f"seed {options.seed}")
    verdicts = soak(options.seconds, options.seed, say)
    wrong = [line for verdict in verdicts for line in verdict.wrong]
    for line in wrong[:50]:
        say(line)
    say(
        f"{sum(v.kills for v in verdicts)} kills, {sum(v.confirmed for v in verdicts):,} confirmed "
        f"in {len(verdicts)} rounds: {f'{len(wrong)} promises broken' if wrong else 'all kept'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
