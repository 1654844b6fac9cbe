"""The drawings of docs/ can be read on a phone, in the dark, and by who hears them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contrast import contrast
from tests.docs import run_pictures
from tests.docs.documents import read
from tests.packaging.installation import ROOT

PHONE_PX = 390
LEAST_PX = 12.0
LEAST_CONTRAST = 4.5
"""Of text, by WCAG 2.2, criterion 1.4.3."""
DRAWN = [ROOT / "docs" / "pictures" / name for name in ("submission.svg", "fault.svg")]
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n  \}", re.DOTALL)


def rules(style: str) -> dict[str, str]:
    """By selector its fill."""
    found = {}
    for selectors, body in _RULE.findall(style):
        if fill := re.search(r"fill: (#\w{6})", body):
            found[selectors.strip()] = fill[1]
    return found


def schemes(picture: Path) -> Iterator[dict[str, str]]:
    style = read(str(picture.relative_to(ROOT)))
    (dark,) = _DARK.findall(style)
    light = rules(_DARK.sub("", style).partition("<style>")[2].partition("</style>")[0])
    yield light
    yield {**light, **rules(dark)}


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.name)
def test_text_is_text_and_large_enough_on_a_phone(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    texts = [one for one in root.iter() if one.tag.endswith("}text")]
    assert len(texts) >= 10
    width = float(root.get("viewBox", "").split()[2])
    (size,) = re.findall(r"font: (\d+)px", read(str(picture.relative_to(ROOT))))
    assert float(size) * min(1.0, PHONE_PX / width) >= LEAST_PX


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.name)
def test_text_stands_out_in_the_light_and_in_the_dark(picture: Path) -> None:
    for fills in schemes(picture):
        for text in ("text", ".note"):
            for behind in (".page", ".box", ".end"):
                assert contrast(fills[text], fills[behind]) >= LEAST_CONTRAST, (text, behind)


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.name)
def test_it_says_what_it_shows_and_loads_nothing(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    named = {one.tag.partition("}")[2]: one.text for one in root}
    assert named["title"]
    assert named["desc"]
    assert not re.search(r"href|url\(|<script|<image", read(str(picture.relative_to(ROOT))))
    assert f"](pictures/{picture.name})" in read("docs/how-it-works.md")


@pytest.mark.parametrize("document", ["README.md", "docs/watching.md"])
def test_a_run_is_shown_in_the_light_and_in_the_dark(document: str) -> None:
    """As `python -m tests.docs.run_pictures` has taken it, on a phone's width."""
    text = read(document).replace("\n", " ")
    for name in run_pictures.pictures():
        assert name in text
        assert (run_pictures.PICTURES / name).stat().st_size <= run_pictures.MOST_BYTES
    light = re.findall(r'<img [^>]*src="[^"]*-light\.png"', text)
    assert all('width="390"' in one and 'alt="' in one for one in light)
    dark = r'media="\(prefers-color-scheme: dark\)" srcset="[^"]*-dark\.png"'
    assert len(re.findall(dark, text)) == len(light) == len(run_pictures.pictures()) / 2
