from pathlib import Path

import pytest

from tests.parts import Part, parts_for, run_all

GOOD = "def test_good() -> None:\n    pass\n"
ONCE = """
from pathlib import Path


def test_once() -> None:
    ran = Path(__file__).with_suffix(".ran")
    first, _ = not ran.exists(), ran.touch()
    assert not first, "by chance"


def test_good() -> None:
    pass
"""
BAD = "def test_bad() -> None:\n    assert 0, 'as it must'\n"


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def part(folder: Path, name: str, text: str, rabbitmq: str | None = None) -> Part:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Part(name, [str(file), "--rootdir", str(folder), "-c", "/dev/null"], rabbitmq)


def test_every_part_is_shown_in_one_piece_and_a_failure_again_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not run_all([part(tmp_path, "bad", BAD), part(tmp_path, "good", GOOD)], jobs=2)
    shown, _, summary = capfd.readouterr().out.partition("==> summary\n")
    names = [piece.split("\n")[0] for piece in shown.split("==> ")[1:]]
    assert sorted(names) == ["bad", "bad: what failed, alone", "good"]
    (bad,) = [piece for piece in shown.split("==> ") if piece.startswith("bad\n")]
    assert "as it must" in bad
    assert "1 passed" not in bad
    assert "bad: FAILED (status 1)" in summary
    assert "good: passed" in summary
    assert "bad: FAILED " in summary.rstrip().splitlines()[-1]
    assert "::test_bad" in summary.rstrip().splitlines()[-1]


def test_test_that_passes_alone_does_not_fail_the_run_and_is_named_as_unstable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_all([part(tmp_path, "once", ONCE), part(tmp_path, "good", GOOD)], jobs=2)
    shown, _, summary = capfd.readouterr().out.partition("==> summary\n")
    assert "by chance" in shown
    assert "1 passed, 1 deselected" in shown or "1 passed" in shown.split("what failed, alone")[1]
    assert "once: FAILED (status 1)" in summary
    last = summary.rstrip().splitlines()[-1]
    assert last.startswith("once: UNSTABLE, passed when run again alone: ")
    assert last.endswith("test_once.py::test_once")


def test_failure_that_stays_is_shown_twice_and_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not run_all([part(tmp_path, "bad", BAD), part(tmp_path, "once", ONCE)], jobs=1)
    output = capfd.readouterr().out
    assert output.count("E       AssertionError: as it must") == 2
    assert "UNSTABLE" in output
    assert "test_bad.py::test_bad" in output


def test_more_failures_than_chance_explains_are_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    several = "".join(BAD.replace("bad", f"bad_{name}") for name in "abcd")
    assert not run_all([part(tmp_path, "several", several)], jobs=1)
    assert "alone" not in capfd.readouterr().out


def test_part_that_ends_badly_after_its_tests_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = "import atexit, os\n\n\ndef test_good() -> None:\n    atexit.register(os._exit, 9)\n"
    assert not run_all([part(tmp_path, "ends", ends)], jobs=1)
    assert "alone" not in capfd.readouterr().out


def test_part_without_a_test_fails_unless_it_is_a_second_run(tmp_path: Path) -> None:
    assert not run_all([part(tmp_path, "none", "")], jobs=1)
    assert run_all([part(tmp_path, "again", "", "4.3")], jobs=1)


def test_every_folder_of_tests_is_in_one_part_on_the_machines_own_server() -> None:
    given = [words for each in parts_for(None) for words in each.arguments]
    ignored = [each.removeprefix("--ignore=") for each in given if each.startswith("--ignore=")]
    named = [each for each in given if each.startswith("tests/")]
    assert sorted(ignored) == sorted(named), "what is left out of the rest is run by itself"
    assert len(named) == len(set(named))
    assert "tests" in given
    assert all(Path(each).is_dir() for each in named)


def test_second_run_is_of_the_tests_that_need_a_server() -> None:
    more = parts_for("4.3.6")[len(parts_for(None)) :]
    assert more
    assert {each.rabbitmq for each in more} == {"4.3.6"}
    assert all(each.arguments[0] == "-m" for each in more)
    assert all(each.arguments[1].startswith("rabbitmq and ") for each in more)
