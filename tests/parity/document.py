"""docs/parity.md, written from the maps: ``python -m tests.parity.document`` writes it anew.

A row stands for one behaviour of rascal (R-, C-), of nsq (N-), of AMQP servers (S-), of the two
together (X-), or for a failure that users of such software ran into (A1 to G14).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs" / "parity.md"

HEAD = """# Parity

Which test holds which behaviour of the systems this one learns from.

| rows | stand for |
|---|---|
| `R-`, `C-` | rascal |
| `N-` | nsq |
| `S-` | AMQP servers, RabbitMQ above all |
| `X-` | the points where nsq and AMQP meet |
| `A` to `G` | failures that users of such software ran into |

Written from `tests/parity/*.toml` by `python -m tests.parity.document`; a test holds it to them.
"""


def maps() -> list[tuple[str, dict[str, dict[str, list[str] | str]]]]:
    """(title, map) of every map, in order of their names."""
    return [
        (path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
        for path in sorted(HERE.glob("*.toml"))
    ]


def text() -> str:
    """The document as it should be."""
    parts = [HEAD]
    for title, rows in maps():
        parts.append(f"\n## The {title.replace('_', ': ')}\n\n| row | held by |\n|---|---|\n")
        for row in sorted(rows["tests"], key=in_order):
            tests = [f"`{test.removeprefix('tests/')}`" for test in rows["tests"][row]]
            parts.append(f"| {row} | {'<br>'.join(tests)} |\n")
        if rows.get("elsewhere"):
            parts.append("\nWithout a test of their own:\n\n| row | why |\n|---|---|\n")
            parts += [
                f"| {row} | {rows['elsewhere'][row]} |\n"
                for row in sorted(rows["elsewhere"], key=in_order)
            ]
    return "".join(parts)


def in_order(row: str) -> tuple[str, list[int]]:
    """Rows by their letter, then by their numbers."""
    return row[0], [int(number) for number in re.findall(r"\d+", row)]


if __name__ == "__main__":
    DOCUMENT.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT.relative_to(ROOT)} written\n")
