"""The pictures of docs/sweeps.md are of the committed runs, and can be read anywhere."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
import tomllib

from benchmarks.study_pictures import PICTURES, RESULTS, SWEEP, sweep_picture
from tests.contrast import contrast
from tests.packaging.installation import ROOT

MEASURED = json.loads(RESULTS.read_text(encoding="utf-8"))


def text_of(name: str) -> str:
    return (PICTURES / name).read_text(encoding="utf-8")


def test_the_sweep_is_drawn_from_the_committed_runs() -> None:
    drawn = sweep_picture(MEASURED["sweep"])
    assert text_of("sweep.svg") == drawn, "run python -m benchmarks.study_pictures draw"
    assert "pictures/sweep.svg" in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_the_runs_are_those_of_the_page() -> None:
    page = (ROOT / "docs/sweeps.md").read_text(encoding="utf-8")
    files = re.findall(r"```toml\n(schema.*?)```", page, re.DOTALL)
    run = tomllib.loads(SWEEP)
    del run["limit"]
    assert run in [tomllib.loads(file) for file in files]
    trials = MEASURED["sweep"]["trials"]
    assert len(trials) == run["trials"]
    assert sum(one["rung"] == 1 for one in trials) == 6
    best = next(one for one in trials if one["trial"] == MEASURED["sweep"]["best"])
    assert best["value"] == min(one["value"] for one in trials if one["rung"] == 1)
    # Each line is a trial that has a value, and the thick one is the best.
    drawn = re.findall(r'class="line (\w+)[^>]*><title>trial (\d+):', text_of("sweep.svg"))
    valued = {one["trial"] for one in trials if one["value"] is not None}
    assert {int(number) for _, number in drawn} == valued
    assert [int(number) for tone, number in drawn if tone == "b"] == [best["trial"]]


def test_every_size_was_measured_both_ways() -> None:
    sizes = [one for found in MEASURED["sizes"].values() for one in found]
    assert [(one["mode"], one["nodes"]) for one in sizes] == [
        (mode, nodes) for mode in ("weak", "strong") for nodes in (1, 2, 4)
    ]
    assert all(one["state"] == "COMPLETED" and one["tokens_per_s"] for one in sizes)
    assert "pictures/scale.svg" in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_a_picture_keeps_its_text_on_a_phone_and_inside_itself() -> None:
    root = ElementTree.fromstring(text_of("sweep.svg"))
    width = float(root.attrib["width"])
    # At 360 points, a narrow phone, the text has at least 10 of them.
    (size,) = {int(n) for n in re.findall(r"font: (\d+)px", text_of("sweep.svg"))}
    assert size * min(1, 360 / width) >= 10
    assert root.attrib["viewBox"] == f"0 0 {width:.0f} {root.attrib['height']}"
    for one in root.iterfind("{http://www.w3.org/2000/svg}text"):
        at, length = float(one.attrib["x"]), 0.56 * size * len(one.text or "")
        left = {"end": at - length, "middle": at - length / 2}.get(
            one.attrib.get("text-anchor", ""), at
        )
        assert left >= -1, one.text
        assert left + length <= width + 1, one.text
    assert not re.search(r'(href|src)="', text_of("sweep.svg"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_picture_has_contrast_on_light_and_dark_paper(dark: bool) -> None:
    """WCAG 2.2: 4.5 for text, 3 for what is drawn to be read."""
    style = re.search(r"<style>(.*?)</style>", text_of("sweep.svg"), re.DOTALL)
    assert style is not None
    light, _, night = style[1].partition("@media (prefers-color-scheme: dark)")
    colours = dict(_colours(light)) | (dict(_colours(night)) if dark else {})
    paper = colours[".paper"]
    for of_text in ("text", ".tick"):
        assert contrast(colours[of_text], paper) >= 4.5, of_text
    for drawn in (".a", ".b", ".fill-a", ".fill-b", ".axis"):
        assert contrast(colours[drawn], paper) >= 3, drawn
    known = {each.removeprefix(".") for each in colours} | {"line", "dashed", "title", "even"}
    used = set(re.findall(r'class="([^"]+)"', text_of("sweep.svg")))
    assert {each for words in used for each in words.split()} - known <= {"chart", "data", "faint"}


def _colours(style: str) -> list[tuple[str, str]]:
    found = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
        if colour := re.search(r"(?:fill|stroke): (#[0-9a-f]{6})", body):
            found += [(each.strip(), colour[1]) for each in selectors.split(",")]
    return found
