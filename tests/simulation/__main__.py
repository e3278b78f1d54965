"""Runs simulations from seeds; a failure is shrunk, and told as the command that repeats it.

python -m tests.simulation                                     # seeds 0 to 99 of the full stack
python -m tests.simulation --level node --seeds 10000
python -m tests.simulation --level full --seed 7 --steps 1,4   # again, step by step
python -m tests.simulation --bugs                              # are planted bugs found, how soon?
python -m tests.simulation --level node-short --seeds 1000000 --jobs 2 --resume node-short.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import Campaign
from tests.simulation.levels import LEVELS, Level, failure_of, reason_of

_MOST = 2_000  # seeds in which a planted bug must be found


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - this is a command


def _again(level: Level, seed: int, steps: str | None) -> int:
    """Run one seed, and show its steps."""
    run = level.draw(seed)
    if steps is not None:
        run = run.only([int(each) for each in steps.split(",") if each != "none"])
    run.run(_say)
    _say(f"seed {seed}: all promises kept")
    return 0


def _many(level: Level, first: int, seeds: int, seconds: float | None) -> int:
    began = time.monotonic()
    done = 0
    while done < seeds if seconds is None else time.monotonic() - began < seconds:
        if (failure := failure_of(level, first + done)) is not None:
            _say(str(failure))
            return 1
        done += 1
    taken = time.monotonic() - began
    _say(f"{level.name}: {done} seeds in {taken:.0f} s ({done / taken:.1f}/s), all promises kept")
    return 0


def seeds_until_found(level: Level, bug: str, most: int = _MOST) -> int | None:
    """After how many seeds `level` finds the planted `bug`; None when it does not."""
    with BUGS[bug].planted():
        for seed in range(most):
            if reason_of(level.draw(seed)) is not None:
                return seed + 1
    return None


def _find_bugs() -> int:
    """Returns how many were not found."""
    missed = 0
    for name, bug in BUGS.items():
        for each in bug.levels:
            found = seeds_until_found(LEVELS[each], name)
            missed += found is None
            _say(f"{name} ({bug.what}), {each}: {found or 'NOT FOUND'}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--level", choices=LEVELS, default="full")
    parser.add_argument("--seed", type=int, help="run this one only, and show its steps")
    parser.add_argument("--steps", help="of that seed, such as 1,4,7; all by default")
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seconds", type=float, help="go on for so long instead of N seeds")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keeps how far it is")
    parser.add_argument("--bug", choices=BUGS, help="plant it")
    parser.add_argument("--bugs", action="store_true", help="plant each, and look for it")
    options = parser.parse_args()
    if options.bugs:
        return _find_bugs()
    level = LEVELS[options.level]
    if options.bug is not None:
        BUGS[options.bug].planted().__enter__()
    if options.seed is not None:
        return _again(level, options.seed, options.steps)
    if options.jobs > 1 or options.resume is not None:
        campaign = Campaign(level.name, options.first, options.seeds, options.resume)
        return campaign.run(options.jobs, _say)
    return _many(level, options.first, options.seeds, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
