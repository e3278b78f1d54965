"""The installed RabbitMQs: the machine's package, and the Debian roots of `scripts/rabbitmq-root`.

``RABBITMQ=4.3`` in the environment picks a series. Without it the machine's own package is taken,
or else the newest root.

A root's programs run by `chroot` in a mount namespace of their own, where /dev, /proc and /tmp are
the machine's: mounts disappear with the process, also when it is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path("usr/lib/rabbitmq")
"""Debian's, below a root. The wrappers in /usr/sbin insist on the user `rabbitmq`."""

_ENTER = """
root=$1; shift
mount --rbind /dev "$root/dev" && mount --bind /proc "$root/proc" && mount --bind /tmp "$root/tmp"
exec chroot "$root" "$@"
"""


class NoSuchRabbitMQError(Exception):
    """The series that RABBITMQ names is not on this machine."""


@dataclass(frozen=True, slots=True)
class Installed:
    """One RabbitMQ.

    Attributes:
        version: as (4, 3, 6).
        programs: the folder of rabbitmq-server and rabbitmqctl, as seen from inside `root`.
        root: where its Debian lives, None for the machine's own.
    """

    version: tuple[int, ...]
    programs: Path
    root: Path | None = None

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that starts one of its programs; its process becomes the program itself."""
        words = [str(self.programs / program), *arguments]
        if self.root is None:
            return words
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _ENTER, "sh"]
        return [*enter, str(self.root), *words]

    def name_server(self, port: int) -> list[str]:
        """The command that starts its epmd in the foreground. The process id of a daemon started by
        a node would be unknown.
        """
        arguments = ("-port", str(port), "-address", "127.0.0.1")
        if self.root is None:
            return [shutil.which("epmd") or "epmd", *arguments]
        return Installed(self.version, Path("/usr/bin"), self.root).command("epmd", *arguments)

    def is_of(self, series: str) -> bool:
        """True if it is of this series: 4.3.6 is of 4.3, and of 4."""
        return f"{self}.".startswith(f"{series}.")


@cache
def installed() -> tuple[Installed, ...]:
    """All of them, oldest first. A root can be entered by the superuser alone."""
    found = []
    own = _own()
    if own is not None:
        found.append(own)
    if os.geteuid() == 0:
        for root in _cache_folder().glob("rabbitmq-*"):
            found += [Installed(v, Path("/") / PACKAGE / "bin", root) for v in _versions_in(root)]
    return tuple(sorted(found, key=lambda each: each.version))


def chosen(series: str | None = None) -> Installed | None:
    """The RabbitMQ to start, or None if none is installed.

    Args:
        series: such as 4.3; by default what RABBITMQ names.

    Raises:
        NoSuchRabbitMQError: that one is not there.
    """
    series = series or os.environ.get("RABBITMQ")
    if not series:
        every = installed()
        return next((each for each in every if each.root is None), every[-1] if every else None)
    of_series = [each for each in installed() if each.is_of(series)]
    if not of_series:
        there = ", ".join(map(str, installed())) or "none"
        raise NoSuchRabbitMQError(
            f"RABBITMQ={series}, and on this machine there is {there}: "
            f"run RABBITMQ={series} scripts/install-servers (Debian, as root)"
        )
    return of_series[-1]


def _own() -> Installed | None:
    """The machine's own: Debian's package, or what the path finds."""
    for version in _versions_in(Path("/")):
        return Installed(version, Path("/") / PACKAGE / "bin")
    script = shutil.which("rabbitmq-server")
    if script is None:
        return None
    command = [str(Path(script).with_name("rabbitmqctl")), "version"]
    text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    return Installed(_parsed(text.strip().rpartition("\n")[2]), Path(script).parent)


def _versions_in(root: Path) -> list[tuple[int, ...]]:
    servers = (root / PACKAGE / "lib").glob("rabbitmq_server-*")
    return [_parsed(server.name.rpartition("-")[2]) for server in servers]


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _cache_folder() -> Path:
    own = os.environ.get("BROKER_CLIENT_CACHE")
    if own:
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "broker_client"
