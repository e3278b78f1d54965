"""``python -m broker_client``: the command line."""

from broker_client.cli.main import app

if __name__ == "__main__":
    app(prog_name="broker-client")
