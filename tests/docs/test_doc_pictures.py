"""The drawings of docs/ say what they show, and a run is shown in the light and in the dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.docs import run_pictures
from tests.docs.documents import read
from tests.packaging.installation import ROOT

DRAWN = [ROOT / "docs" / "pictures" / name for name in ("submission.svg", "fault.svg")]


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
