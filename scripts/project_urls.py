"""The addresses in the package's metadata: those of the repository that it is built from.

hatchling calls `ProjectUrls` when it builds the sdist; a wheel takes its addresses from the sdist.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PAGES = {
    "github.com": {"Issues": "/issues", "Files": "/blob/HEAD"},
    "gitlab.com": {"Issues": "/-/issues", "Files": "/-/blob/HEAD"},
}
_FILES = {"Documentation": "/docs/index.md", "Changelog": "/CHANGELOG.md"}


class ProjectUrls(MetadataHookInterface):
    """Set `[project.urls]`, which `dynamic` names in `pyproject.toml`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses. Without a remote repository there are none."""
        metadata["urls"] = urls(_remote(self.root))


def urls(remote: str) -> dict[str, str]:
    """Return the addresses of the repository `remote`: of its web page, never with a password.

    A repository on this machine has none.
    """
    if "://" not in remote:  # git@host:owner/name.git, or a path
        host, _, path = remote.partition(":")
        remote = f"ssh://{host}/{path}" if path and "/" not in host else ""
    parts = urlsplit(remote)
    host, path = parts.hostname or "", parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("https", "http", "ssh", "git") or "." not in host or not path:
        return {}
    if parts.scheme in ("https", "http") and parts.port:
        host += f":{parts.port}"
    source = f"https://{host}/{path}"
    pages = _PAGES.get(host)
    if pages is None:
        return {"Source": source}
    files = {label: f"{source}{pages['Files']}{path}" for label, path in _FILES.items()}
    return {"Source": source, "Issues": source + pages["Issues"], **files}


def _remote(root: str) -> str:
    """Return the URL of `origin` of the repository at `root`; an empty one where there is none."""
    if not os.path.exists(os.path.join(root, ".git")):
        return ""
    command = ["git", "-C", root, "remote", "get-url", "origin"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # git is not installed
        return ""
    return done.stdout.strip()
