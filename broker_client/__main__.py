"""``python -m broker_client``: the command line."""

from broker_client_command import main

if __name__ == "__main__":
    main()
