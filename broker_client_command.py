"""Entry point of the command ``broker-client``.

It stands beside the package, whose import takes a while: Ctrl-C in that while ends the command as
quietly as it ends any other program.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command line and run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from broker_client.cli.main import app

    signal.signal(signal.SIGINT, handler)
    app(prog_name="broker-client")


if __name__ == "__main__":
    main()
