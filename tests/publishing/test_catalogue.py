"""The catalogue as files: what is in it, what broken input does to it, and how it is replaced."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fsdpkit.cli.main import fsdpkit as command_line
from fsdpkit.config.profile import SiteProfile
from fsdpkit.errors import ConfigError, NotFoundError, StorageError, UsageError
from fsdpkit.publishing import replacing
from fsdpkit.publishing.catalogue import engine, runtime
from fsdpkit.publishing.catalogue.build import catalogue_files
from fsdpkit.publishing.catalogue.bundle import modules_zip
from fsdpkit.publishing.catalogue.engine import Engine, engine_of
from fsdpkit.publishing.catalogue.facts import coded, named, sections
from fsdpkit.publishing.catalogue.reading import read_catalogue
from fsdpkit.publishing.replacing import CATALOGUE
from tests.publishing import catalogue_pictures
from tests.publishing.made_centre import make_centre


def files_of(centre: Path) -> dict[str, bytes]:
    return catalogue_files(read_catalogue([centre]), "Zoo", {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A centre with nothing broken."""
    return make_centre(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def files(whole: Path) -> dict[str, bytes]:
    return files_of(whole)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`fsdpkit site build`, without the megabytes of the browser's Python."""
    monkeypatch.setattr(engine, "engine_of", lambda archives: Engine({"pyodide.js": b""}))

    def run(*words: str | Path) -> Result:
        typed = ["site", "build", "--runtime", "/", *map(str, words)]
        return CliRunner().invoke(command_line, typed, standalone_mode=False)

    return run


def listed(top: Path) -> dict[str, bytes]:
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for path in top.rglob("*")
        if path.is_file()
    }


def test_each_cluster_template_and_job_has_a_page(files: dict[str, bytes]) -> None:
    pages = {name for name in files if name.endswith(".html")}
    assert {
        *("index.html", "generator.html", "clusters/zoo-heron.html", "clusters/osc-cardinal.html"),
        *("templates/typed.html", "templates/torchrun.html", "jobs/own.html", "jobs/t5.html"),
    } <= pages
    heron = files["clusters/zoo-heron.html"].decode()
    for known in ("2026-09-30", "NVIDIA V100 16 GB", "12:00:00", "[a-z]{2}\\d{3}"):
        assert known in heron


def test_every_link_of_a_page_leads_to_a_file_of_the_catalogue(files: dict[str, bytes]) -> None:
    there = {*files, "engine/pyodide.js"}
    for name, content in files.items():
        if not name.endswith(".html"):
            continue
        for target in re.findall(r'(?:href|src)="([^"]*)"', content.decode()):
            if not target.startswith(("https://", "http://", "#")):
                path = os.path.normpath(Path(name).parent / target.partition("#")[0])
                assert path in there, f"{name} links {target}"


def test_the_same_folder_gives_the_same_bytes(whole: Path, files: dict[str, bytes]) -> None:
    assert files_of(whole) == files


class _Elements(HTMLParser):
    """Every start tag with its attributes, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_markup_of_a_centres_files_stays_text(files: dict[str, bytes]) -> None:
    pages = {name: text.decode() for name, text in files.items() if name.endswith(".html")}
    for name, page in pages.items():
        elements = _Elements(page).found
        tags = [tag for tag, _ in elements]
        assert "style" not in tags, name
        assert tags.count("img") == 1, name  # the mark in the head
        for tag, attributes in elements:
            assert tag != "script" or (attributes["src"] or "").lstrip("./").startswith("static/")
            assert not any(key.startswith("on") or key == "style" for key in attributes), name
            for link in (attributes.get("href"), attributes.get("src")):
                assert not re.match(r"\s*(?!https?:)[a-z]+:", link or "", re.IGNORECASE), name
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    for name in ("clusters/zoo-hostile", "templates/hostile", "jobs/hostile", "generator", "index"):
        assert escaped in pages[f"{name}.html"], name


def test_each_page_forbids_all_but_its_own_files(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if name.endswith(".html"):
            (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', content.decode())
            assert "default-src &#39;none&#39;" in policy
            assert "unsafe-inline" not in policy
            assert "&#39;unsafe-eval" not in policy
            assert "http" not in policy


def test_a_field_that_the_schema_gains_is_shown_with_its_sentence() -> None:
    class Newer(SiteProfile, frozen=True, kw_only=True):
        moon: Annotated[str | None, msgspec.Meta(description="Phase of the moon.")] = None

    profile = Newer(schema="fsdpkit.site/1", title="T", moon="full")
    facts = [fact for section in sections(profile) for fact in section.facts]
    assert ("moon", "Phase of the moon.", "full") in [(f.name, f.meaning, f.words) for f in facts]


def test_code_and_units_are_written_as_people_write_them() -> None:
    assert coded("<b> `a<b` or `c`") == "&lt;b&gt; <code>a&lt;b</code> or <code>c</code>"
    keys = ("network_gbit_s", "write_gb_s", "hang_s")
    assert [named(key) for key in keys] == ["network Gbit/s", "write GB/s", "hang (s)"]


BROKEN = {
    "site/profiles/zoo/heron.toml": b'schema = "fsdp',  # half copied
    "site/profiles/zoo/vast.toml": b"\xff\xfe",
    "templates/many/template.toml": b"",
    "jobs/wide.toml": b'schema = "fsdpkit.job/1"\nname = "w"\nnoodles = 2\n',
}


def test_what_is_broken_is_named_and_the_rest_is_built(
    files: dict[str, bytes], tmp_path: Path, build: Callable[..., Result]
) -> None:
    centre = make_centre(tmp_path)
    for name, content in BROKEN.items():
        (centre / name).write_bytes(content)
    result = build(centre, "--output", tmp_path / "pages")
    assert result.return_value == ConfigError.exit_code
    told = re.findall(r"left out: (\w+) ", result.stderr)
    assert sorted(told) == sorted(name.partition("/")[0].rstrip("s") for name in BROKEN)
    built = listed(tmp_path / "pages")
    missing = {name for name in files if name.endswith(".html")} - built.keys()
    assert missing == {
        *("clusters/zoo-heron.html", "clusters/zoo-vast.html"),
        *("templates/many.html", "jobs/wide.html"),
    }
    assert b"4 of them could not be read" in built["index.html"]


def test_defaults_that_are_broken_leave_the_clusters(
    tmp_path: Path, build: Callable[..., Result]
) -> None:
    centre = make_centre(tmp_path)
    (centre / "defaults.toml").write_text("[resources")
    result = build(centre, "--output", tmp_path / "pages")
    assert result.return_value == ConfigError.exit_code
    built = listed(tmp_path / "pages")
    assert "clusters/zoo-heron.html" in built
    assert not any(name.startswith("jobs/") for name in built)


def test_a_centre_that_is_not_there_is_refused_and_nothing_is_written(
    tmp_path: Path, build: Callable[..., Result]
) -> None:
    result = build(tmp_path / "nowhere", "--output", tmp_path / "pages")
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "pages").exists()


def test_nothing_of_the_person_who_builds_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "site" / "profiles"
    own.mkdir(parents=True)
    (own / "secret.toml").write_text('schema = "fsdpkit.site/1"\ntitle = "Mine"\n')
    monkeypatch.setenv("FSDPKIT_CONFIG_DIR", str(tmp_path / "own"))
    files = files_of(make_centre(tmp_path))
    assert not any("secret" in name or b"Mine" in content for name, content in files.items())


def test_a_second_build_replaces_all_of_the_first(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    replacing.write(CATALOGUE, {"index.html": b"old", "clusters/zoo-vast.html": b"old"}, pages)
    replacing.write(CATALOGUE, {"index.html": b"new"}, pages)
    assert {*listed(pages)} == {"index.html", CATALOGUE.record}
    assert [*tmp_path.iterdir()] == [pages]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_build_that_fails_leaves_the_old_pages_whole(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = tmp_path / "pages"
    replacing.write(CATALOGUE, {"index.html": b"old"}, pages)
    before = listed(pages)
    if not exchanges:
        monkeypatch.setattr(replacing, "_exchange", lambda one, other: False)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            replacing.write(CATALOGUE, {"index.html": b"new"}, pages)
    assert listed(pages) == before
    assert [*tmp_path.iterdir()] == [pages]
    replacing.write(CATALOGUE, {"index.html": b"new"}, pages)
    assert listed(pages)["index.html"] == b"new"
    assert [*tmp_path.iterdir()] == [pages]


def test_a_directory_with_other_things_in_it_is_not_replaced(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    replacing.write(CATALOGUE, {"index.html": b"old"}, pages)
    (pages / ".git").mkdir()
    (pages / ".git" / "HEAD").write_text("ref")
    with pytest.raises(UsageError, match=r"holds '\.git/HEAD'"):
        replacing.write(CATALOGUE, {"index.html": b"new"}, pages)
    assert (pages / ".git" / "HEAD").exists()
    link = tmp_path / "link"
    link.symlink_to(pages)
    with pytest.raises(UsageError, match="symbolic link"):
        replacing.write(CATALOGUE, {"index.html": b"new"}, link)


def test_pages_can_be_read_by_a_web_server_of_another_user(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replacing.write(CATALOGUE, {"clusters/a.html": b""}, tmp_path / "pages")
    finally:
        os.umask(before)
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "pages" / "clusters" / "a.html").stat().st_mode & 0o777 == 0o644


def test_archives_that_are_missing_or_changed_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"needs pyodide-[\d.]+tgz and msgspec"):
        runtime.runtime_files(tmp_path)
    (tmp_path / runtime.PYODIDE.file).write_bytes(b"not it")
    with pytest.raises(ConfigError, match="remove the file"):
        runtime.runtime_files(tmp_path)


def shown_by(directory: Path, monkeypatch: pytest.MonkeyPatch, node: str | None) -> Engine:
    """What is served where `node` is the text of that program; None: there is none."""
    monkeypatch.setattr(engine, "runtime_files", lambda archives: {"python_stdlib.zip": b"whole"})
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin" if node else str(directory))
    if node:
        (directory / "node").write_text(f"#!/bin/sh\n{node}\n")
        (directory / "node").chmod(0o755)
    return engine_of(directory)


@pytest.mark.parametrize(
    ("node", "told"),
    [(None, "there is no node"), ("echo too old >&2; exit 1", "does: too old"), ("kill $$", "")],
    ids=["missing", "failing", "killed"],
)
def test_where_node_cannot_compile_the_sources_are_served_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str | None, told: str
) -> None:
    found = shown_by(tmp_path, monkeypatch, node)
    assert told in found.note != ""
    assert found.files == {"python_stdlib.zip": b"whole", "modules.zip": modules_zip()}


def test_what_node_compiled_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown_by(
        tmp_path, monkeypatch, 'for each in modules.zip msgspec.zip; do echo "$PWD" >$each; done'
    )
    assert found.note == ""
    assert found.files["python_stdlib.zip"] == b"whole"
    folder = Path(found.files["modules.zip"].decode().strip())
    assert not folder.exists()


def test_the_pictures_in_the_documentation_are_there_and_small() -> None:
    page = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text()
    shown = {*re.findall(r"pictures/(catalogue-[a-z-]+\.png)", page)}
    made = {path.name for path in catalogue_pictures.PICTURES.glob("catalogue-*")}
    assert shown <= made == {*catalogue_pictures.pictures()}
    assert {f"catalogue-form-{scheme}.png" for scheme in catalogue_pictures.SCHEMES} <= shown
    for name in made:
        content = (catalogue_pictures.PICTURES / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) <= catalogue_pictures.MOST_BYTES, name
