"""The examples of README.md run, and print what it shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from tests.docs.documents import ROOT, Block, blocks, python_blocks, read
from tests.docs.processes import run_python

README = "README.md"
LOCAL_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
NAMED_FILE = re.compile(r"`((?:tests|bench|examples|scripts)/[\w./-]+)`")
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"] + [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", python_blocks(README), ids=lambda block: f"line {block.line}")
def test_program_prints_what_the_readme_shows(block: Block, tmp_path: Path) -> None:
    assert block.output is not None, "show the output of every program"
    (tmp_path / "program.py").write_text(block.text)
    done = run_python("program.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == block.output


def test_first_example_is_the_hello_of_the_examples() -> None:
    assert python_blocks(README)[0].text == read("examples/hello.py")


async def test_first_example_fills_failed_when_its_handler_raises() -> None:
    program = python_blocks(README)[0].text.replace("asyncio.run(main())", "")
    shown: dict[str, Any] = {}
    exec(compile(program, README, "exec"), shown)
    tries: list[Any] = []

    async def burn(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        tries.append(content)
        raise ValueError("burnt")

    async with Broker.create({"vhosts": {"/": shown["VHOST"]}}) as broker:
        (await broker.subscribe("kitchen", burn)).on("error", lambda error: None)
        await (await broker.publish("orders", {"pizza": 2}, "order.new"))
        async with asyncio.timeout(30.0):
            failed = await anext(aiter(await broker.subscribe("/failed")))
        message, content, ack_or_nack = failed
        await ack_or_nack()
    assert (tries, content, message.routing_key) == ([{"pizza": 2}] * 3, {"pizza": 2}, "order.new")


def test_first_example_needs_one_line_changed_for_rabbitmq() -> None:
    diff = next(block for block in blocks(README) if block.language == "diff")
    old, new = diff.text.splitlines()
    assert old[0] == "-"
    assert new[0] == "+"
    program = python_blocks(README)[0].text.splitlines()
    assert program.count(old[1:]) == 1
    assert '"amqp://' in new


def test_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", read("Makefile"), re.MULTILINE))
    text = "\n".join(line for line in read(README).splitlines() if "make" in line)
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_the_document_lead_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    broken = [link for link in LOCAL_LINK.findall(read(name)) if not (folder / link).exists()]
    assert not broken


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_the_document_names_are_there(name: str) -> None:
    missing = [file for file in NAMED_FILE.findall(read(name)) if not (ROOT / file).exists()]
    assert not missing
