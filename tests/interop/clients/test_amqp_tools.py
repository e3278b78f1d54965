"""Debian's amqp-tools (rabbitmq-c), unchanged, on the built-in broker's port."""

from __future__ import annotations

import subprocess

from tests.support.left_out import installed_program


def run(tool: str, url: str, *arguments: str, body: bytes | None = None) -> bytes:
    done = subprocess.run(
        [tool, f"--url={url}", *arguments], input=body, capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_message_goes_in_and_out(url: str) -> None:
    installed_program("amqp-publish")
    assert run("amqp-declare-queue", url, "-d", "-q", "tools").strip() == b"tools"
    for number in range(3):
        run("amqp-publish", url, "-p", "-r", "tools", "-C", "text/plain", body=b"%d" % number)
    assert run("amqp-get", url, "-q", "tools") == b"0"
    assert run("amqp-consume", url, "-q", "tools", "-c", "2", "cat") == b"12"
    assert run("amqp-delete-queue", url, "-q", "tools").strip() == b"0"
