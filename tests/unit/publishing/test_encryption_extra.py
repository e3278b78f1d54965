"""Without the package that encrypts, a configuration that needs it is refused at once."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from broker_client import Broker
from broker_client.codec import encryption
from broker_client.errors import UnsupportedError

PROFILE = {"key": "0" * 64, "algorithm": "aes-256-gcm", "iv_length": 12}


@pytest.mark.parametrize(
    "config",
    [
        {"encryption": {"p": PROFILE}},
        {"vhosts": {"/": {"queues": ["q"], "publications": {"q": {"queue": "q"}}}}},
    ],
    ids=["needed", "not needed"],
)
async def test_missing_package_is_noticed_at_the_start(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "find_spec", lambda name: None)
    config = {"vhosts": {"/": {}}, **config}
    if "encryption" in config:
        with pytest.raises(UnsupportedError, match=r"\[crypto\]"):
            await Broker.create(config)
    else:
        async with Broker.create(config):
            assert importlib.util.find_spec("cryptography") is not None
