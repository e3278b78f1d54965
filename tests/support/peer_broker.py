"""A broker on the usual ports while a command runs, for the test suites of other clients.

``scripts/peer-suites`` runs it in a network namespace of its own: 5672 and, with the suite's
certificates or new ones, 5671. The module ``testcontainers``, by which some suites start a broker,
is replaced by one that returns this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # it is run as a file, hence E402

from tests.support.certificates import Authority  # noqa: E402
from tests.support.own_server import OwnServer  # noqa: E402
from tests.support.rabbitmq import RabbitMQ  # noqa: E402
from tests.support.served import Served  # noqa: E402

_CONTAINER = """
class DockerContainer:
    def __init__(self, *_arguments, **_options): ...
    def with_exposed_ports(self, *_ports): return self
    def start(self): return self
    def stop(self): ...
    def __enter__(self): return self.start()
    def __exit__(self, *_error): ...
    def get_container_host_ip(self): return "localhost"
    def get_exposed_port(self, port): return port
"""

THEIRS = (
    ("tests/certs", "server.pem", "server.key", "ca.pem"),
    ("t/certs", "server_certificate.pem", "server_key.pem", "ca_certificate.pem"),
)
"""Where suites keep certificates, and the names of the server's, its key and the authority's."""


def certificates(folder: Path) -> dict[str, Path]:
    """The certificates of the suite in the working directory, which its clients expect, or new
    ones."""
    for where, *names in THEIRS:
        theirs = Path(where).absolute()
        if theirs.is_dir():
            keys = ("certfile", "keyfile", "cafile")
            return {key: theirs / name for key, name in zip(keys, names, strict=True)}
    authority = Authority(folder, "authority")
    files = authority.sign("localhost", "localhost")
    return {"certfile": files.certificate, "keyfile": files.key, "cafile": authority.file}


def broker(which: str, folder: Path) -> OwnServer:
    """``serve``, or the RabbitMQ of that version, which is not started yet."""
    files = certificates(folder)
    if which == "serve":
        config = folder / "server.yaml"
        lines = [f"    {key}: {file}\n" for key, file in files.items()]
        lines.append("    client_certificates: optional\n")
        config.write_text("server:\n  tls:\n" + "".join(lines))
        listen = ("amqp://127.0.0.1:5672", "amqp://[::1]:5672", "amqps://127.0.0.1:5671")
        return Served("--config", str(config), listen=listen)
    os.environ["RABBITMQ"] = which
    settings = ["listeners.tcp.2 = 127.0.0.1:5672", "listeners.tcp.3 = ::1:5672"]
    settings += [
        f"ssl_options.{key.replace('cafile', 'cacertfile')} = {file}" for key, file in files.items()
    ]
    settings += ["listeners.ssl.1 = 127.0.0.1:5671", "ssl_options.verify = verify_peer"]
    settings.append("ssl_options.fail_if_no_peer_cert = false")
    return RabbitMQ(settings=settings)


def main(which: str, *command: str) -> int:
    """Run `command` while the broker runs; returns its exit status."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="peer-modules-") as folder:
        core = Path(folder) / "testcontainers" / "core"
        core.mkdir(parents=True)
        for package in (core.parent, core):
            (package / "__init__.py").touch()
        (core / "container.py").write_text(_CONTAINER)
        environment = {**os.environ, "PYTHONPATH": folder}
        with broker(which, Path(folder)):
            return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
