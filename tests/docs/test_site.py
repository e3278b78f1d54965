"""The documents as a site: built strictly, complete, and without external resources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)),
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_document_is_a_page_and_in_the_navigation(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {each for each in documents if not (site / each.with_suffix(".html")).exists()} == set()
    start = (site / "index.html").read_text()
    missing = {each for each in documents if f'href="{each.with_suffix(".html")}"' not in start}
    assert {str(each) for each in missing} <= {"index.md"}


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*//|@import"
    wrong = [path.name for path in site.rglob("*.html") if re.search(loaded, path.read_text())]
    assert wrong == []
    assert (site / "search" / "search_index.json").exists()


def test_reference_has_the_api_with_its_docstrings(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text()
    for name in ("Broker.publish", "Broker.handle", "Subscription.pause", "Message.touch"):
        assert f'id="broker_client.{name.split(".")[0].lower()}.{name}"' in page
