"""Sessions with a class archive, without one, and with a broken one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.class_archive import ClassArchive

pytest.importorskip("pyspark")


def jvm(options: list[str], *, broken: bool = False) -> Callable[[str], str]:
    """Records its options; does not start with a broken archive."""
    from pyspark.errors import PySparkRuntimeError

    def create(more: str) -> str:
        options.append(shlex.split(more)[0])
        if broken and "SharedArchiveFile" in more:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        return "session"

    return create


def test_archive_that_is_missing_is_made_under_another_name(tmp_path: Path) -> None:
    options: list[str] = []
    archive = ClassArchive(tmp_path / "new folder" / "spark.jsa")
    assert archive.start(jvm(options)) == "session"
    (option,) = options
    name, _, path = option.partition("=")
    assert name == "-XX:ArchiveClassesAtExit"
    assert Path(path).parent == tmp_path / "new folder"
    assert Path(path).name != "spark.jsa"
    assert Path(path).parent.is_dir()


def test_archive_that_is_there_is_used(tmp_path: Path) -> None:
    options: list[str] = []
    file = tmp_path / "spark.jsa"
    file.write_bytes(b"classes")
    assert ClassArchive(file).start(jvm(options)) == "session"
    assert options == [f"-XX:SharedArchiveFile={file}"]


def test_archive_with_which_no_jvm_comes_up_is_deleted_and_the_session_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: list[str] = []
    file = tmp_path / "spark.jsa"
    file.write_bytes(b"cut short")
    assert ClassArchive(file).start(jvm(options, broken=True)) == "session"
    assert [each.partition("=")[0] for each in options] == [
        "-XX:SharedArchiveFile",
        "-XX:ArchiveClassesAtExit",
    ]
    assert not file.exists()
    assert "to be created again" in caplog.text


def test_jvm_that_fails_without_an_archive_is_not_tried_again(tmp_path: Path) -> None:
    from pyspark.errors import PySparkRuntimeError

    def create(more: str) -> str:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    with pytest.raises(PySparkRuntimeError):
        ClassArchive(tmp_path / "spark.jsa").start(create)
