"""`fsdpkit template new`: a folder that passes as it is, and never in place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.config.template import load_template
from fsdpkit.errors import ConfigError, StorageError, UsageError
from fsdpkit.publishing.template_named import open_template
from fsdpkit.publishing.template_new import PLACEHOLDERS, new_template
from tests.publishing.called import Call, answer


def test_what_it_writes_passes_lint_but_for_what_its_author_has_to_say(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without shellcheck, which reads the same script for test_goldens.py."""
    monkeypatch.setattr("fsdpkit.publishing.template_shell.has_shellcheck", lambda: False)
    call("template", "new", "ours", status=0)
    linted = answer(call("template", "lint", "ours", "--json"))
    problems = [f for f in linted["findings"] if f["outcome"] == "problem"]
    assert [f["check"] for f in problems] == ["manifest", "README"], problems
    assert [Path(f["where"]).name for f in problems] == ["template.toml:4", "README.md:3"]
    for file in ("template.toml", "README.md"):
        path = tmp_path / "ours" / file
        text = path.read_text()
        for placeholder in PLACEHOLDERS:
            text = text.replace(placeholder, "it asks for twice the memory")
        path.write_text(text)
    linted = answer(call("template", "lint", "ours", "--json"))
    assert linted["ok"], [f for f in linted["findings"] if f["outcome"] == "problem"]


def test_what_is_there_is_never_overwritten(call: Call, tmp_path: Path) -> None:
    for made in (tmp_path / "a", tmp_path / "b"):
        made.mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    (tmp_path / "c").write_text("mine")
    (tmp_path / "d").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    for name in "abcd":
        call("template", "new", name, status=StorageError.exit_code)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["Ours", "../x", "a b", "-x", "", "é", "x" * 50, "a\nb", "$(id)"])
def test_a_name_that_no_template_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no template's name"):
        new_template(name, load_template("torchrun"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("fsdpkit.publishing.template_goldens.golden_script", stop)
    with pytest.raises(KeyboardInterrupt):
        new_template("ours", load_template("torchrun"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_from_another_folder_it_takes_what_that_folder_has(
    call: Call, small, tmp_path: Path
) -> None:
    manifest = (
        'schema = "fsdpkit.template/1"\nname = "small"\nversion = "7.1.0"\n'
        'description = "It says \\"hello\\" \\\\ — é."\n[parameters.word]\ntype = "str"\n'
        'pattern = \'[a-z"\\\\]+\'\nhelp = "A | word with a bar."\n'
        '# Seconds.\n[parameters.mode]\ntype = "str"\nchoices = ["a", "b"]\n'
        'default = "a"\nhelp = "One of two."\n'
    )
    folder = small(manifest=manifest)
    call("template", "new", "mine", "--from", str(folder), status=0)
    made, source = open_template(str(tmp_path / "mine")), open_template(str(folder))
    assert made.manifest.parameters == source.manifest.parameters
    # Its own sentence is for whoever changes it: the source's would be wrong.
    said = "Made from small 7.1.0; say here what it does differently."
    assert made.manifest.description == said
    assert source.manifest.description not in (tmp_path / "mine" / "README.md").read_text()
    assert made.manifest.version == "1.0.0"
    assert "# Seconds" in (tmp_path / "mine" / "template.toml").read_text()
    assert made.parts == source.parts
    assert "`word`" in (tmp_path / "mine" / "README.md").read_text()


def test_of_a_manifest_that_cannot_be_changed_by_line_nothing_is_made(
    call: Call, small, tmp_path: Path
) -> None:
    manifest = (
        'schema = "fsdpkit.template/1"\nname = "small"\nversion = "7.1.0"\n'
        '"description" = "It says hello."\n'
    )
    folder = str(small(manifest=manifest))
    made = call("template", "new", "mine", "--from", folder, status=ConfigError.exit_code)
    assert "must each begin a line" in str(made.exception)
    assert not (tmp_path / "mine").exists()
