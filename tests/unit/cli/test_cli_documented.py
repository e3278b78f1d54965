"""docs/cli.md has a section for every command."""

from __future__ import annotations

import re
from pathlib import Path

from broker_client.cli.main import every_command

PLACE = ("--url", "--config", "--vhost")
"""Options that are described once for all commands."""
DOCUMENT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_command_has_a_section() -> None:
    sections = set(re.findall(r"^## ([\w-]+)$", DOCUMENT, flags=re.MULTILINE))
    assert every_command()
    assert every_command().keys() <= sections


def test_every_option_of_a_command_is_named() -> None:
    for name, command in every_command().items():
        section = DOCUMENT.split(f"\n## {name}\n")[1].split("\n## ")[0]
        own = {option for parameter in command.params for option in parameter.opts}
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                if option in PLACE and "--url" in own:
                    continue
                assert option in section, f"{name}: {option} is not in docs/cli.md"
