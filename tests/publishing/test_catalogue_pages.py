"""The catalogue as people meet it: by keyboard, by ear, on a phone, in the dark, without
JavaScript, from a link that a stranger sent, opened as a file.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing.catalogue.runtime import Archive, fetch
from tests.publishing.catalogue_pages import CACHE, LANE, READY_MS, SETTLED, Shown, opened
from tests.publishing.made_centre import HOSTILE

pytestmark = LANE
AXE = Archive(
    "axe-core-4.14.1.tgz",
    "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
    ["npm", "pack", "--silent", "axe-core@4.14.1"],
)
LOOKED_AT = (
    *("index.html", "clusters/hrc-heron.html", "clusters/zoo-hostile.html"),
    *("templates/torchrun.html", "templates/many.html", "jobs/pretrain.html"),
)
PHONE, SMALLEST, DESK = 390, 320, 1280


# ---- Every page


@dataclass(frozen=True)
class Seen:
    """What a page did when it was opened."""

    too_wide: dict[int, list[str]]
    """At each width of a screen what reaches beyond it."""
    said: list[str]
    requests: list[str]


BEYOND = """() => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    if (document.documentElement.scrollWidth <= innerWidth) return [];
    return [...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 5).map((one) => one.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def every_page(browser: Any, address: str, pages: Path) -> dict[str, Seen]:
    seen = {}
    with opened(browser, f"{address}/index.html") as shown:
        for path in sorted(pages.rglob("*.html")):
            name = path.relative_to(pages).as_posix()
            if name == "generator.html":
                continue  # the tests of the form open it, and its Python takes seconds
            shown.said.clear()
            shown.requests.clear()
            too_wide = {}
            shown.page.goto(f"{address}/{name}", timeout=READY_MS)
            for width in (SMALLEST, PHONE) if name in LOOKED_AT else (SMALLEST,):
                shown.page.set_viewport_size({"width": width, "height": 800})
                too_wide[width] = shown.page.evaluate(BEYOND)
            seen[name] = Seen(too_wide, [*shown.said], [*shown.requests])
    assert len(seen) > 40
    return seen


def test_nothing_reaches_beyond_the_screen_of_a_phone(
    every_page: dict[str, Seen], form: Shown
) -> None:
    found = {name: seen.too_wide for name, seen in every_page.items()}
    found["generator.html"] = {}
    for width in (PHONE, SMALLEST):
        form.page.set_viewport_size({"width": width, "height": 800})
        found["generator.html"][width] = form.page.evaluate(BEYOND)
    form.page.set_viewport_size({"width": DESK, "height": 900})
    assert {name: wide for name, wide in found.items() if any(wide.values())} == {}


def test_no_page_breaks_its_own_policy_or_asks_another_machine(
    every_page: dict[str, Seen], form: Shown, address: str
) -> None:
    every = {**every_page, "generator.html": Seen({}, form.said, form.requests)}
    assert {name: seen.said for name, seen in every.items() if seen.said} == {}
    strange = {
        name: [url for url in seen.requests if not url.startswith((f"{address}/", "blob:"))]
        for name, seen in every.items()
    }
    assert not any(strange.values())


def test_markup_that_got_into_a_page_would_not_run(browser: Any, address: str) -> None:
    """The policy is in force: what escaping forgot, it stops."""
    with opened(browser, f"{address}/index.html") as shown:
        broken = shown.page.evaluate(
            """async () => {
                const broken = [];
                addEventListener("securitypolicyviolation",
                    (event) => broken.push(event.effectiveDirective));
                document.body.insertAdjacentHTML("beforeend",
                    "<img src=nothing onerror='window.ran = 1'><p style='color: red'>x</p>"
                    + "<form action='https://elsewhere.example'></form>");
                const script = document.createElement("script");
                script.textContent = "window.ran = 2";
                document.body.append(script);
                setTimeout(() => eval("window.ran = 3"));
                fetch("https://elsewhere.example/").catch(() => {});
                document.forms[0].submit();
                for (let left = 300; left && new Set(broken).size < 6; left--) {
                    await new Promise((resolve) => setTimeout(resolve, 100));
                }
                return [broken, window.ran ?? null];
            }"""
        )
    directives, ran = broken
    assert ran is None
    assert {"script-src-attr", "script-src-elem", "style-src-attr", "connect-src"} <= {*directives}
    assert {"script-src", "form-action"} <= {*directives}


# ---- For everybody


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's rules of accessibility, as text."""
    try:
        archive = fetch(CACHE, [AXE]) / AXE.file
    except FsdpkitError as error:
        pytest.skip(f"missing: {error}")
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def violations(page: Any, axe: str, scheme: str) -> list[str]:
    """Of the page at rest, with everything unfolded; in the dark only what colours change."""
    page.evaluate(f"() => {{ if (!window.axe) {{ {axe} }} }}")
    found = page.evaluate(
        """async (rules) => {
            for (const fold of document.querySelectorAll("details")) fold.open = true;
            const runOnly = rules && { runOnly: rules };
            const { violations } = await axe.run(document, { preload: false, ...runOnly });
            return violations.flatMap(({ id, nodes }) =>
                nodes.slice(0, 4).map((node) => `${id}: ${node.html.slice(0, 160)}`));
        }""",
        ["color-contrast"] if scheme == "dark" else None,
    )
    return list(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_of_page_passes_the_rules_of_accessibility(
    browser: Any, address: str, axe: str, scheme: str
) -> None:
    with opened(browser, f"{address}/index.html", color_scheme=scheme) as shown:
        found = {}
        for name in LOOKED_AT:
            shown.page.goto(f"{address}/{name}", timeout=READY_MS)
            found[name] = violations(shown.page, axe, scheme)
        shown.page.set_viewport_size({"width": PHONE, "height": 800})
        found["on a phone"] = violations(shown.page, axe, scheme)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


SCRIPT_OF = {"cluster": "hrc-heron", "job": "pretrain", "account": "hrc0042"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_passes_them_with_a_script_and_with_a_refusal(
    form: Shown, axe: str, scheme: str
) -> None:
    form.page.emulate_media(color_scheme=scheme)
    fill(form, {**SCRIPT_OF, "nodes": "2"})
    found = violations(form.page, axe, scheme)
    fill(form, {**SCRIPT_OF, "nodes": "90"})
    found += violations(form.page, axe, scheme)
    form.page.emulate_media(color_scheme="light")
    assert found == []


def fill(form: Shown, values: dict[str, str]) -> None:
    """As a link does, and until the answer to it is there."""
    fill_by(form, urlencode(values))


def fill_by(form: Shown, fragment: str) -> None:
    form.page.evaluate(
        """(text) => new Promise((done) => {
            addEventListener("hashchange", () => setTimeout(done), { once: true });
            setTimeout(done, 2000); // where that is what the address says already
            location.hash = text;
        })""",
        f"#{fragment}",
    )
    settle(form.page)


def settle(page: Any) -> None:
    page.wait_for_function(
        """() => document.getElementById("script").dataset.answers
            === document.getElementById("command").textContent""",
        timeout=READY_MS,
    )


def test_the_keyboard_alone_leads_to_a_copied_script(form: Shown) -> None:
    fill(form, {"cluster": "hrc-heron", "job": "pretrain"})
    page = form.page
    page.evaluate("() => { document.activeElement?.blur(); scrollTo(0, 0); }")
    reached: list[str] = []

    def go_to(wanted: str) -> None:
        while not reached or reached[-1] != wanted:
            page.keyboard.press("Tab")
            where, ring = page.evaluate(
                """() => {
                    const one = document.activeElement;
                    const style = getComputedStyle(one);
                    return [one.id || one.textContent.trim().slice(0, 30),
                        style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
                }"""
            )
            assert ring, f"{where} does not show that it has the focus"
            reached.append(where)
            assert len(reached) < 80, reached

    go_to("nodes")
    page.keyboard.type("2")
    go_to("account")
    page.keyboard.type("hrc0042")
    go_to("work-dir")
    page.keyboard.type("/scratch/hrc0042")
    settle(page)
    go_to("copy-script")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('copied').textContent !== ''")
    assert page.locator("#copied").inner_text() == "Script copied."
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == page.locator("#script").evaluate("(script) => script.textContent")
    assert "#SBATCH --nodes=2\n" in copied
    assert "#SBATCH --chdir=/scratch/hrc0042\n" in copied
    assert reached[0] == "Skip to the content"
    assert reached.index("cluster") < reached.index("job") < reached.index("nodes")


def test_a_screen_reader_finds_landmarks_names_and_what_changed(form: Shown) -> None:
    fill(form, {**SCRIPT_OF, "nodes": "90"})
    page = form.page
    for role, name in (
        *(("navigation", "Catalogue"), ("form", "What to submit"), ("region", "Result")),
        *(("combobox", "Cluster"), ("spinbutton", "Nodes"), ("textbox", "Account")),
        *(("button", "Copy link to this form"), ("region", "Script"), ("region", "Command line")),
    ):
        assert page.get_by_role(role, name=name, exact=True).count() >= 1, (role, name)
    assert page.get_by_role("main").count() == 1
    (status,) = (
        one for one in page.get_by_role("status").all() if one.get_attribute("id") == "state"
    )
    assert "would refuse this" in status.inner_text()
    assert page.locator("#refused[aria-live=polite]").is_visible()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("[aria-describedby]")].filter(
            (one) => !document.getElementById(one.getAttribute("aria-describedby")))
            .map((one) => one.id)"""
    )
    assert unnamed == []


# ---- Links


def field_values(form: Shown) -> dict[str, str]:
    return dict(
        form.page.evaluate(
            """() => Object.fromEntries([...document.getElementById("form").elements]
                .filter((one) => one.name)
                .map((one) => [one.name, one.type === "checkbox" ? one.checked : one.value]))"""
        )
    )


def test_a_link_carries_a_filled_form(form: Shown, browser: Any, address: str) -> None:
    fill(form, {**SCRIPT_OF, "template": "torchrun@4.0.0", "p.torchrun@4.0.0.scratch_gb": "70"})
    page = form.page
    page.fill("#args", "--out\nit's $HOME\n--text=a b&c=<d>")
    page.check("#expedites")
    settle(page)
    page.click("#copy-link")
    page.wait_for_function("() => document.getElementById('copied').textContent !== ''")
    link = page.evaluate("() => navigator.clipboard.readText()")
    with opened(browser, link) as other:
        assert field_values(other) == field_values(form)
        command = other.page.locator("#command").inner_text()
        assert command == page.locator("#command").inner_text()
    assert "template=torchrun@4.0.0 --set parameters.scratch_gb=70" in command
    assert "SCRIPT" not in command
    assert "SCRATCH_GB=70\n" in page.locator("#script").evaluate("(s) => s.textContent")


HOSTILE_LINKS = {
    "a script": f"account={quote('<script>window.ran=1</script>')}&nodes=3",
    "an image": f"work-dir={quote('/x<img src=x onerror=window.ran=1>')}&nodes=3",
    "ten thousand characters": f"account={'a' * 10_001}&nodes=3",
    "a million characters": f"account={'a' * 1_000_000}",
    "keys that there are not": "nodez=3&constructor=1&toString=2&nodes=3",
    "names of prototypes": "__proto__=1&__proto__.polluted=1&prototype=1&hasOwnProperty=1&nodes=3",
    "another type": "nodes=two&gpus=1e3&expedites=yes&cluster=none&job=../../etc&nodes=3",
    "a number with a line break": "nodes=1%0A2&account=a%0Ab",
    "a name that a page may not show": f"{quote(HOSTILE)}=1&nodes=3",
    "what is no text": "%FF%FE=%C0%80&nodes=%ZZ",
    "the same key twice": "nodes=3&nodes=4",
    "text that runs backwards": f"account={quote(chr(0x202E) + 'evil')}&nodes=3",
    "a version that was withdrawn": "template=torchrun@3.3.1&nodes=3",
}
TAKEN_AS_TEXT = ("a script", "an image")


@pytest.mark.parametrize("what", HOSTILE_LINKS)
def test_a_strangers_link_ends_in_a_message_and_runs_nothing(form: Shown, what: str) -> None:
    fill_by(form, HOSTILE_LINKS[what])
    page = form.page
    note = page.locator("#note")
    if what in TAKEN_AS_TEXT:
        # A person could type it, too: it stays a text, and fsdpkit says what is wrong with it.
        assert note.is_hidden()
        assert (
            page.locator("#error").inner_text() != ""
            or "<img" in page.locator("#script").inner_text()
        )
    else:
        assert "This link said more than the form takes" in note.inner_text()
        assert len(note.inner_text()) < 600
    ran = page.evaluate("() => [window.ran, ({}).polluted, document.images.length].map(String)")
    assert ran == ["undefined", "undefined", "1"]  # the one image is the centre's mark
    values = field_values(form)
    assert values["nodes"] in ("", "3")
    assert all(len(str(value)) <= 10_000 for value in values.values())
    assert [text for text in form.said if "ran" in text or "rror" in text] == []


# ---- What the form says


def test_what_would_fit_is_one_click_away(form: Shown) -> None:
    fill(form, {**SCRIPT_OF, "nodes": "90"})
    assert "90 nodes asked, at most 32 allowed" in form.page.locator("#error").inner_text()
    form.page.get_by_role("button", name="Take 32 × 4 GPUs on gpu").click()
    settle(form.page)
    assert "#SBATCH --nodes=32\n" in form.page.locator("#script").evaluate("(s) => s.textContent")


# ---- Where less is there


@pytest.fixture
def plain(browser: Any, address: str) -> Iterator[Callable[[str], Any]]:
    """Opens a page in a browser without JavaScript."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()

        def go(name: str) -> Any:
            page.goto(f"{address}/{name}", timeout=READY_MS)
            return page

        yield go


def test_without_javascript_the_form_is_plain_and_the_commands_are_there(
    plain: Callable[[str], Any],
) -> None:
    page = plain("generator.html")
    said = page.locator("noscript").inner_text()
    assert "fsdpkit submit pretrain --cluster hrc-heron --account hrc0042 --dry-run" in said
    page.get_by_label("Nodes", exact=True).fill("3")
    page.get_by_label("Cluster", exact=True).select_option(label="Heron")
    page.get_by_label("Account", exact=True).fill("hrc0042")
    parameters = page.locator("details.parameters:not([hidden])")  # of the job that it begins with
    parameters.locator("summary").click()
    assert parameters.locator("label").first.is_visible()
    assert page.locator("#result").is_hidden()


def test_opened_as_a_file_the_form_says_what_to_do(browser: Any, pages: Path) -> None:
    with opened(browser, (pages / "generator.html").as_uri()) as shown:
        page = shown.page
        page.wait_for_selector("#refused:not([hidden])", timeout=READY_MS)
        page.fill("#nodes", "3")
        assert "--nodes 3" in page.locator("#command").inner_text()
        assert "python3 -m http.server" in page.locator("#error").inner_text()
        page.goto((pages / "index.html").as_uri())
        assert page.get_by_role("heading", name="Clusters").is_visible()
        assert page.evaluate("() => getComputedStyle(document.body).maxWidth") != "none"


def test_a_server_without_the_engine_leaves_a_command_and_a_message(
    browser: Any, address: str
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.route("**/engine/pyodide.js", lambda route: route.fulfill(status=404))
        page.goto(f"{address}/generator.html#account=hrc0042", timeout=READY_MS)
        page.wait_for_selector("#refused:not([hidden])", timeout=READY_MS)
        assert "needs a web server that serves engine/" in page.locator("#error").inner_text()
        assert "--account hrc0042" in page.locator("#command").inner_text()
        assert page.locator(SETTLED).inner_text() != ""
