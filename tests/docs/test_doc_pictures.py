"""The drawings of docs/ can be read on a phone, in the dark, and by who hears them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contrast import contrast
from tests.docs import plan_picture, run_pictures
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
def test_no_text_leaves_the_picture(picture: Path) -> None:
    """By a generous width of a letter; what a browser makes of it is seen in no test."""
    root = ElementTree.parse(picture).getroot()
    for one in root.iter():
        if one.tag.endswith("}text"):
            right = float(one.get("x", "0")) + 7.2 * len(one.text or "")
            assert right <= PHONE_PX, one.text


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


MEMORY = ROOT / "docs" / "pictures" / "memory.svg"
_FONT_WIDTH = 7.2
"""Of a letter of 13 pixels, generously, as above."""


def test_the_plan_s_picture_is_legible_on_a_phone() -> None:
    root = ElementTree.parse(MEMORY).getroot()
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert (width, root.get("width"), root.get("height")) == (PHONE_PX, "390", f"{height:g}")
    (size,) = re.findall(r"font: (\d+)px", read("docs/pictures/memory.svg"))
    assert float(size) >= LEAST_PX
    texts = [one for one in root.iter() if one.tag.endswith("}text")]
    assert {"activations", "optimizer state", "backward"} <= {one.text for one in texts}
    for one in texts:
        x, long = float(one.get("x", "0")), _FONT_WIDTH * len(one.text or "")
        left = x - long if one.get("text-anchor") == "end" else x
        assert left >= 0, one.text
        assert left + long <= width, one.text
        assert float(one.get("y", "0")) < height


def test_the_plan_s_picture_is_what_the_shown_command_draws_now() -> None:
    """By what does not depend on the plan: the style, in both schemes, and the size."""
    from fsdpkit.planning import picture

    assert f"<style>{picture._STYLE}</style>" in read("docs/pictures/memory.svg")
    assert plan_picture.shown()[-2:] == ["--picture", MEMORY.name]


@pytest.mark.parametrize("document", ["README.md", "docs/watching.md"])
def test_a_run_is_shown_in_the_light_and_in_the_dark(document: str) -> None:
    """As `python -m tests.docs.run_pictures` has taken it, on a phone's width."""
    text = read(document)
    for name in run_pictures.pictures():
        assert name in text, document
    light = re.findall(r'<img [^>]*src="[^"]*-light\.png"', text.replace("\n", " "))
    assert all('width="390"' in one and 'alt="' in one for one in light)
    dark = re.findall(
        r'media="\(prefers-color-scheme: dark\)" srcset="[^"]*-dark\.png"', text.replace("\n", " ")
    )
    assert len(dark) == len(light) == len(run_pictures.pictures()) / 2


@pytest.mark.parametrize("name", run_pictures.pictures())
def test_a_run_s_pictures_are_there_and_small(name: str) -> None:
    content = (run_pictures.PICTURES / name).read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    size = [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)]
    wanted = (run_pictures.WIDTH_PX, run_pictures.HEIGHT_PX)
    assert size == [run_pictures.SCALE * one for one in wanted]
    assert len(content) <= run_pictures.MOST_BYTES


def test_no_letter_of_watch_is_too_small_on_a_phone() -> None:
    assert run_pictures.FONT_PX >= LEAST_PX
    assert run_pictures.WIDTH_PX == PHONE_PX
    assert 2 * run_pictures.PADDING_PX + run_pictures.COLUMNS * 0.602 * run_pictures.FONT_PX <= 390
