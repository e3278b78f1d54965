"""Hooks of mkdocs: documents beside docs/ become pages; links lead within the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "README.md": "readme.md",
}
"""Documents at the top, and their names in the site."""

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents at the top."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Have links lead to pages; what is no page is named, without a link."""
    source = page.file.src_uri
    at_top = {page: name for name, page in PAGES.items()}.get(source)
    here = posixpath.dirname("docs/" + source) if at_top is None else ""

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path, hash_, anchor = target.partition("#")
        if not path:
            return found[0]
        path = posixpath.normpath(posixpath.join(here, path))
        to = PAGES.get(path) or path.removeprefix("docs/")
        if path not in PAGES and (not path.startswith("docs/") or files.src_uris.get(to) is None):
            return f"{text} (`{path}`)" if path not in text else text
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(source) or '.')}{hash_}{anchor})"

    return _LINK.sub(link, markdown)
