"""A node killed with SIGKILL under load: nothing confirmed is lost, nothing settled comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.crash import KilledNode, compare

KILLS = 4


@pytest.mark.timeout(150)
def test_killed_at_random_moments_it_loses_nothing_and_brings_nothing_back(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    victim = KilledNode(tmp_path, seed)
    while victim.kills < KILLS or not (victim.has_done_everything or victim.kills == 5 * KILLS):
        victim.live_and_die(longest=0.6)
    verdict = victim.judge()
    told = f"seed {seed}: {verdict}\n" + "\n".join(verdict.wrong[:20])
    assert not verdict.wrong, told
    assert verdict.confirmed, told
    assert verdict.settled, told
    assert verdict.declared, told


def test_the_judge_sees_what_is_lost_doubled_or_back() -> None:
    log = "".join(f"p {n}\nc {n}\n" for n in "abcde") + "s left b\nS left b\nn left c\nN left c\n"
    everything = list("abcde")
    good = {"left": ["a", "d", "e"], "right": everything, "dead": ["c"]}
    assert compare(1, log, good).wrong == []
    assert compare(1, log, good | {"left": ["a", "d"]}).wrong == ["lost from left: e"]
    assert compare(1, log, good | {"dead": []}).wrong == ["lost from left: c"]
    assert compare(1, log, good | {"dead": ["c", "c"]}).wrong == ["twice in dead: c"]
    assert compare(1, log, good | {"left": ["a", "b", "d", "e"]}).wrong == [
        "settled and back in left: b"
    ]
    assert compare(1, log, good | {"left": ["a", "d", "e", "x"]}).wrong == [
        "never published, in left: x"
    ]
    assert compare(1, f"{log}d new\n", good, ["new"]).wrong == []
    assert compare(1, f"{log}d new\n", good, []).wrong == ["declared and not there: new"]
