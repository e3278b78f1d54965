from __future__ import annotations

import pytest

from tests import soak


def test_soak_runs_the_chosen_proofs_and_ends_with_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = soak.Proof("fine", ["-c", "print('one'); print('two')"])
    bad = soak.Proof("bad", ["-c", "import sys; print('three'); sys.exit(3)"])
    other = soak.Proof("other", ["-c", "raise SystemExit('not chosen')"])
    monkeypatch.setattr(soak, "proofs", lambda seconds, seeds: [fine, other, bad])
    assert soak.main(["--only", "fine", "bad"]) == 1
    table = capsys.readouterr().out.partition("==> summary\n")[2].splitlines()
    assert [line.split()[:2] for line in table] == [["fine", "passed"], ["bad", "FAILED"]]
    assert [line.split()[-1] for line in table] == ["two", "three"]
