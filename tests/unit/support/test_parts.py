from pathlib import Path

import pytest

from tests.parts import Part, parts_for, run_all

GOOD = "def test_good() -> None:\n    pass\n"
BAD = "def test_bad() -> None:\n    assert 0, 'as it must'\n"


def part(folder: Path, name: str, text: str, rabbitmq: str | None = None) -> Part:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Part(name, [str(file), "--rootdir", str(folder), "-c", "/dev/null"], rabbitmq)


def test_every_part_is_shown_in_one_piece_and_a_failure_again_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not run_all([part(tmp_path, "bad", BAD), part(tmp_path, "good", GOOD)], jobs=2)
    shown, _, summary = capfd.readouterr().out.partition("==> summary\n")
    assert {piece.split("\n")[0] for piece in shown.split("==> ")[1:]} == {"bad", "good"}
    (bad,) = [piece for piece in shown.split("==> ") if piece.startswith("bad\n")]
    assert "as it must" in bad
    assert "1 passed" not in bad
    assert "bad: FAILED (status 1)" in summary
    assert "good: passed" in summary
    assert "bad: FAILED " in summary.rstrip().splitlines()[-1]
    assert "::test_bad" in summary.rstrip().splitlines()[-1]


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
