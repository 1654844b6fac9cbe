"""The report in a real browser: light and dark, at a desk and on a phone.

Needs Chromium and playwright. Where neither is there the tests are skipped; where
FSDPKIT_REQUIRE_SLURM=1 says that everything must be there, they fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operate_parts.report import synthetic
from fsdpkit.reporting import spent_shown
from fsdpkit.reporting.comparison import page as compared
from fsdpkit.reporting.comparison.compared import compare
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.spent import Gathered
from fsdpkit.runs.tally import tallies
from fsdpkit.scheduling.run import Run
from fsdpkit.sweeps import page as swept
from tests.reporting.made_run import (
    T0,
    breaks,
    ends,
    launches,
    made_run,
    starts,
    trains,
    write_lines,
)
from tests.sweeps.made_up import made_up_results, made_up_sweep

DESK, PHONE = 1280, 390


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A long run of several attempts on many nodes, a small one that failed, an array, and one
    whose loss exploded, with a single evaluation."""
    work = tmp_path_factory.mktemp("reports")
    long_run = Run.open(synthetic(work / "long-20260101-000000-0000", 6, 4, 600))
    failed = made_run(work / "failed-20260101-000000-0000", state="FAILED", exit_code=1)
    job = {"training": {"steps": 20}, "args": ["--set", "training.seed={array_task}"]}
    array = made_run(work / "array-20260101-000000-0000", array=[*range(12)], job=job)
    exploded = _exploded(work / "exploded-20260101-000000-0000")
    for task in (failed.paths.task(), *(array.paths.task(number) for number in range(10))):
        starts(task, 0, T0 + 20)
        launches(task, 0, T0 + 40)
        at_s = trains(task, 1, 12, T0 + 60, rank_compute_s=[0.2, 0.2, 0.2, 0.3])
        breaks(task, 0, at_s, 12, f"rank 1 on node1: ValueError: {'a' * 200}")
        ends(task, 0, at_s + 9, "crash", f"rank 1 on node1: ValueError: {'a' * 200}")
    for node in range(4):
        for k in range(5):
            bytes_ = dict.fromkeys(("memory_used_bytes", "network_sent_bytes"), 10**8 * k)
            sample = {"time_s": T0 + 20 + 10 * k, "cpu_percent": 9 * node + k, **bytes_}
            write_lines(failed.paths.task().attempt(0).node_samples(node), sample)
    written = {}
    for name, run in {
        "long": long_run,
        "failed": failed,
        "array": array,
        "exploded": exploded,
    }.items():
        written[name] = work / f"{name}.html"
        written[name].write_text(page(run), encoding="utf-8")
    written["usage"] = work / "usage.html"
    gathered = Gathered(now_s=T0 + 1e6)
    weeks, rows, total = tallies([*gathered.below(work)], [["week"], ["run", "gpu"], []])
    sections = [spent_shown.rows_section(rows, ["run", "gpu"])]
    text = spent_shown.page("Used", T0, weeks, total, sections, ["a note"])
    written["usage"].write_text(text, encoding="utf-8")
    paths, record = made_up_sweep(work, 12)
    texts = {
        "compare": compared.page(*compare([failed, exploded])),
        "sweep": swept.page(paths, record, made_up_results(record)),
    }
    for name, text in texts.items():
        written[name] = work / f"{name}.html"
        written[name].write_text(text, encoding="utf-8")
    return written


def _exploded(directory: Path) -> Run:
    run = made_run(directory)
    task = run.paths.task()
    starts(task, 0, T0 + 60)
    launches(task, 0, T0 + 70)
    at_s = trains(task, 1, 40, T0 + 80, grad_norm=1.0)
    told = {"step_time_s": 1.0, "grad_norm": float("inf")}
    for place, loss in enumerate([1e29, *[float("inf")] * 9, *[float("nan")] * 30, 3.0, 2.5]):
        write_lines(
            task.metrics, {"time_s": at_s + place, "step": 41 + place, "loss": loss, **told}
        )
    write_lines(task.metrics, {"time_s": at_s + 60, "step": 90, "eval_loss": 4.5})
    ends(task, 0, at_s + 70)
    return run


@dataclass
class Shown:
    """An open page, and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def show(browser: Any, reports: dict[str, Path]) -> Iterator[Any]:
    contexts = []

    def open_report(name: str, width: int = DESK, scheme: str = "light") -> Shown:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, locale="en-GB"
        )
        context.set_default_timeout(120_000)
        contexts.append(context)
        shown = Shown(context.new_page())
        shown.page.on("console", lambda message: shown.said.append(message.text))
        shown.page.on("pageerror", lambda error: shown.said.append(str(error)))
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto(reports[name].as_uri())
        shown.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        return shown

    yield open_report
    for context in contexts:
        context.close()


PAGES = pytest.mark.parametrize(
    "name", ["long", "failed", "array", "exploded", "usage", "compare", "sweep"]
)


def test_the_words_of_a_table_stay_words_on_a_phone(show: Any) -> None:
    heights = "[...document.querySelectorAll('.scroll tr')].map((row) => row.offsetHeight)"
    assert max(show("array", PHONE).page.evaluate(heights)) < 60


LUMINANCE = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (element) => {
  const disc = element.matches?.(".fault text") && element.parentNode.querySelector("circle");
  if (disc) return channels(getComputedStyle(disc).fill);
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
"""
CONTRASTS = (
    LUMINANCE
    + """
[...document.querySelectorAll("body *")].filter((element) =>
  !element.closest("script, title, desc") && element.getClientRects().length &&
  [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
).map((element) => {
  const style = getComputedStyle(element);
  const text = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
  const [a, b] = [luminance(channels(text)), luminance(behind(element))].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), `${element.className.baseVal ?? element.className} ` +
    `${element.tagName} ${element.textContent.trim().slice(0, 40)}`];
})
"""
)


HIDDEN_SCROLLS = """
[...document.querySelectorAll("body *")].filter((one) => one.scrollWidth > one.clientWidth + 1 &&
  /auto|scroll/.test(getComputedStyle(one).overflowX)
).filter((one) => one.tabIndex < 0 || !one.ariaLabel ||
  !getComputedStyle(one).backgroundImage.includes("gradient")
).map((one) => one.outerHTML.slice(0, 90))
"""
FOCUS = """
(() => { const at = document.activeElement, style = getComputedStyle(at);
  return [at.outerHTML.slice(0, 90), style.outlineStyle !== "none"]; })()
"""


@PAGES
def test_every_page_can_be_read_and_reached(show: Any, name: str) -> None:
    """Light and dark, at a desk, at twice the size, on a phone, and by the keyboard alone."""
    shown = show(name)
    page = shown.page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        channels = [int(part) for part in back.removeprefix("rgb(").removesuffix(")").split(",")]
        assert (min(channels) > 230) if scheme == "light" else (max(channels) < 40)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 50
        assert [(round(ratio, 2), what) for ratio, what in contrasts if ratio < 4.5] == []
    for width in (DESK, DESK // 2, PHONE):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate(HIDDEN_SCROLLS) == []
    for _ in range(page.locator("summary, .scroll").count()):
        page.keyboard.press("Tab")
        where, seen = page.evaluate(FOCUS)
        assert seen, where
    assert shown.said == []
    assert [url for url in shown.requests if not url.startswith("data:")] == [page.url]


DRAWN = """
[...document.querySelectorAll("svg.chart")].map((svg) => ({
  title: svg.querySelector("title").textContent,
  width: svg.getBoundingClientRect().width,
  length: Math.max(0, ...[...svg.querySelectorAll("path.line")].map((p) => p.getTotalLength())),
  strokes: [...svg.querySelectorAll("path.line")].map((p) => getComputedStyle(p).stroke),
  shapes: svg.querySelectorAll("path, rect, circle").length,
}))
"""


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_every_plot_is_there_and_not_empty(show: Any, width: int) -> None:
    plots = {plot["title"]: plot for plot in show("long", width).page.evaluate(DRAWN)}
    assert plots.keys() >= {
        *("Loss over steps", "Tokens per second over steps", "MFU over steps"),
        *("Time of a step over steps", "Peak memory of rank 0 over steps"),
        "Computing time by rank over steps",
        *("GPU utilisation by node over time", "GPU power of a node by node over time"),
        *("CPU by node over time", "Network, sent by node over time"),
        *("Timeline", "What became of the GPU-hours"),
    }
    for title, plot in plots.items():
        assert plot["width"] > 200, title
        assert plot["shapes"] > 0, title
        assert "none" not in plot["strokes"], title
        if " over " in title:
            assert plot["length"] > 50, title


CUT_OFF = """
[...document.querySelectorAll("svg.chart text")].map((text) => [text, text.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.left < 0 || box.right > innerWidth))
  .map(([text]) => text.textContent)
"""
OVERLAPPING = """
[...document.querySelectorAll("svg.chart")].flatMap((svg) => {
  const labels = [...svg.querySelectorAll("text.x")].filter((t) => t.getBoundingClientRect().width)
    .sort((a, b) => a.getAttribute("y") - b.getAttribute("y"));
  return labels.slice(1).filter((label, i) =>
    label.getAttribute("y") === labels[i].getAttribute("y") &&
    label.getBoundingClientRect().left < labels[i].getBoundingClientRect().right + 2
  ).map((label) => `${svg.querySelector("title").textContent}: ${label.textContent}`);
})
"""


@pytest.mark.parametrize("name", ["long", "failed"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_no_label_is_cut_off_or_over_another(show: Any, name: str, width: int) -> None:
    shown = show(name, width)
    assert shown.page.evaluate(CUT_OFF) == []
    assert shown.page.evaluate(OVERLAPPING) == []


@PAGES
def test_whoever_hears_the_page_finds_landmarks_headings_and_words_for_pictures(
    show: Any, name: str
) -> None:
    shown = show(name).page
    assert shown.evaluate("document.documentElement.lang") == "en"
    for landmark in ("header", "main", "footer", "h1", "title"):
        assert (
            shown.locator(
                f"body > {landmark}, body > header > {landmark}, head > {landmark}"
            ).count()
            == 1
        )
    levels = shown.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    nameless = """[...document.querySelectorAll("svg[role=img]")].filter((svg) =>
      !(svg.ariaLabel || svg.getAttribute("aria-labelledby").split(" ")
        .every((id) => document.getElementById(id)?.textContent.trim()))).length"""
    assert shown.evaluate(nameless) == 0
    outside = "svg.chart:not([role=img]), img, table:not(:has(th[scope=col]))"
    assert shown.locator(outside).count() == 0
    doubled = """(() => { const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
      return ids.filter((id, i) => ids.indexOf(id) < i); })()"""
    assert shown.evaluate(doubled) == []


def test_the_numbers_under_the_pointer_are_told(show: Any) -> None:
    shown = show("long")
    plot = shown.page.locator("svg.chart[data-x]").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = plot.locator("xpath=..").locator("output").inner_text()
    assert told.startswith("step 30"), told
    assert "training 2." in told or "training 1." in told, told
    assert "evaluation" in told, told
    shown.page.mouse.move(0, 0)
    assert plot.locator("xpath=..").locator("output").inner_text() == ""
    assert shown.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_keyboard_reaches_all_that_answers_and_one_sees_where_it_is(
    show: Any, scheme: str
) -> None:
    page = show("failed", scheme=scheme).page
    answers = "summary, .scroll, svg.chart[data-x]"
    seen = []
    for _ in range(page.locator(answers).count()):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(f"""(() => {{ const at = document.activeElement;
          const style = getComputedStyle(at);
          return [at.matches("{answers}"), style.outlineStyle, parseFloat(style.outlineWidth)];
        }})()""")
        )
    assert seen
    assert all(one == [True, "solid", 2] for one in seen), seen
    page.locator("svg.chart[data-x]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("figure:has(svg[data-x]) output").first.inner_text().startswith("step 1 ")


def test_the_browser_is_forbidden_to_load_anything_and_to_run_what_was_put_in(show: Any) -> None:
    shown = show("failed")
    before = len(shown.requests)
    shown.page.evaluate(
        """() => {
          document.body.insertAdjacentHTML("beforeend", '<img src="http://example.org/a.png">');
          document.body.insertAdjacentHTML("beforeend", '<b onclick="window.ran = true">x</b>');
          document.body.lastChild.click();
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
        }"""
    )
    for _ in range(600):
        if sum("Content Security Policy" in said for said in shown.said) >= 3:
            break
        shown.page.wait_for_timeout(100)
    else:
        pytest.fail(f"not all three were forbidden: {shown.said}")
    assert shown.page.evaluate("window.ran") is None
    assert shown.requests[before:] in ([], ["http://example.org/a.png"]), "blocked, if tried at all"
