"""An SVG image as a PNG (extra ``png``)."""

from __future__ import annotations

from math import sqrt
from xml.etree import ElementTree

from broker_client.errors import UnsupportedError, UsageError, install_extra

_SCALE = 2.0  # pixels for one of the SVG's
_PIXELS = 64e6  # at most; larger images are drawn at a smaller scale
_FAMILIES = (
    "Arial",
    "Liberation Sans",
    "DejaVu Sans",
    "Noto Sans",
    "Helvetica",
    "FreeSans",
    "Cantarell",
)
"""Fonts without serifs, one of which most systems have; resvg looks for the first only."""
_A_LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text x="2" y="16" font-family="sans-serif">{}</text></svg>'
)


def png_of(svg: str) -> bytes:
    """Render `svg`, which has a width and a height.

    Raises:
        UnsupportedError: the package for it is not installed.
        UsageError: there is no font to write with.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise UnsupportedError("a PNG", install_extra("png")) from error

    def rendered(text: str, family: str, zoom: float) -> bytes:
        image = resvg_py.svg_to_bytes(
            svg_string=text, background="#fff", zoom=zoom, sans_serif_family=family
        )
        return bytes(image)

    nothing = rendered(_A_LETTER.format(""), _FAMILIES[0], 1.0)
    for family in _FAMILIES:
        if rendered(_A_LETTER.format("x"), family, 1.0) != nothing:
            return rendered(svg, family, _zoom(svg))
    raise UsageError(
        "a PNG needs a font to write with, and there is none: install one, such as Debian's "
        "fonts-dejavu-core, or write an SVG"
    )


def _zoom(svg: str) -> float:
    size = ElementTree.fromstring(svg).attrib  # noqa: S314 - it is our own
    return min(_SCALE, sqrt(_PIXELS / (float(size["width"]) * float(size["height"]))))
