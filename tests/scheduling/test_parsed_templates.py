"""A template is parsed once, and nothing but the template decides what is rendered."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.surroundings import of_this_process, stand_in
from fsdpkit.config.template import Template, load_template
from fsdpkit.errors import RenderError
from fsdpkit.rendering.environment import parsed
from fsdpkit.rendering.language import parse
from fsdpkit.scheduling import parsed_templates
from fsdpkit.scheduling.parsed_templates import Statements, parsed_template
from tests.conftest import Completed
from tests.rendering.test_template_places import RIGHT

DRY_RUN = ("submit", "--nodes", "2", "--gpus", "4", "--dry-run", "--cluster", "generic")


@pytest.fixture
def template() -> Template:
    return load_template("torchrun")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fsdpkit" / "templates"


def parses(monkeypatch: pytest.MonkeyPatch) -> list[Template]:
    """The templates that are parsed from here on."""
    found: list[Template] = []

    def noting(template: Template) -> Statements:
        found.append(template)
        return parsed(template)

    monkeypatch.setattr(parsed_templates, "parsed", noting)
    return found


def the_file(kept: Path) -> Path:
    (path,) = kept.iterdir()
    return path


def test_the_second_time_it_is_not_parsed(
    template: Template, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing = parses(monkeypatch)
    first = parsed_template(template)
    assert parsed_template(template) == first == parsed(template)
    assert parsing == [template]
    assert the_file(kept).stat().st_mode & 0o777 == 0o600


def test_a_dry_run_then_does_without_jinja(fsdpkit: Callable[..., Completed], kept: Path) -> None:
    first = fsdpkit(*DRY_RUN)
    again = fsdpkit(*DRY_RUN, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert first.returncode == again.returncode == 0
    assert first.stdout == again.stdout
    assert "fsdpkit.rendering.statements" in again.stderr
    assert "jinja2" not in again.stderr


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_kept_says_the_same(name: str) -> None:
    statements = parse({"a": RIGHT[name].encode()}, "a")
    content = msgspec.msgpack.encode(statements)
    assert msgspec.msgpack.decode(content, type=Statements) == statements


def test_every_expression_is_kept_as_it_is() -> None:
    text = (
        "echo\n{% set a = [1, 2.5, 'x', true, none] %}{% set b = (a[0] + 2 - 1) * 3 // 2 % 5 %}"
        "{% set c = -b if a | length > 1 >= b and not b in a or b is eq(3) else a.b | default(1) %}"
        "{% for k, v in t | dictsort if v is defined %}\n{{ range(1, 3) | length }}\n"
        "{% else %}\n{{ refuse('none' ~ b) }}{% endfor %}"
        "{% set n = 99999999999999999999999 %}{% set i = 1e999 %}"
    )
    statements = parse({"a": text.encode()}, "a")
    small = statements[:-2]  # no file holds these numbers
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(small), type=Statements) == small


def test_what_cannot_be_kept_is_parsed_each_time(
    write: Callable[[str], Template], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = write("#!/bin/bash\n{% set n = 99999999999999999999999 %}\necho\n")
    parsing = parses(monkeypatch)
    assert parsed_template(huge) == parsed_template(huge)
    assert len(parsing) == 2
    assert not kept.exists()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Template]:
    def written(text: str) -> Template:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        manifest = 'schema = "fsdpkit.template/1"\nname = "mine"\nversion = "0.0.1"\n'
        (folder / "template.toml").write_text(f'{manifest}description = "A test\'s."\n')
        (folder / "job.sbatch.j2").write_text(text)
        return load_template(str(folder))

    return written


def test_a_changed_template_is_another(
    write: Callable[[str], Template], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing = parses(monkeypatch)
    one = parsed_template(write("#!/bin/bash\necho one\n"))
    assert parsed_template(write("#!/bin/bash\necho two\n")) != one
    assert len(parsing) == len(list(kept.iterdir())) == 2


def test_so_is_one_that_changed_code_would_read(
    template: Template, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_template(template)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "language.py").touch()
    monkeypatch.setattr(parsed_templates, "_RENDERING", tmp_path / "code")
    parsing = parses(monkeypatch)
    parsed_template(template)
    assert parsing


def test_a_template_with_an_error_is_refused_each_time(
    write: Callable[[str], Template], kept: Path
) -> None:
    wrong = write("#!/bin/bash\necho {{ text }\n")
    for _ in range(2):
        with pytest.raises(RenderError, match=r"mine.*line 2"):
            parsed_template(wrong)
    assert not kept.exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _other(path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode([["text", ["a", 1]]]))


def _link(path: Path) -> None:
    os.replace(path, path.with_suffix(".there"))
    path.symlink_to(path.with_suffix(".there"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": _cut,
    "no statements": _other,
    "noise": lambda path: path.write_bytes(os.urandom(4096)),
    "deep": lambda path: path.write_bytes(b"\x91" * 100_000),
    "others may write it": lambda path: path.chmod(0o666),
    "others may replace it": lambda path: path.parent.chmod(0o777),
    "a link": _link,
    "a pipe": _pipe,
    "another user's": lambda path: os.chown(path, 12_345, -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_kept_one_that_cannot_be_trusted_is_as_good_as_none(
    damage: str, template: Template, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    want = parsed_template(template)
    DAMAGES[damage](the_file(kept))
    parsing = parses(monkeypatch)
    assert parsed_template(template) == want
    assert parsing == [template]


def test_without_a_place_to_keep_it_all_goes_on(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file"), "/proc/nowhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        assert parsed_template(template) == parsed(template)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _nobody)
    assert parsed_template(template) == parsed(template)


def _nobody() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_only_some_are_kept(
    write: Callable[[str], Template], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsed_templates, "_MOST_KEPT", 3)
    for number in range(6):
        parsed_template(write(f"#!/bin/bash\necho {number}\n"))
    assert len(list(kept.iterdir())) == 3
    parsing = parses(monkeypatch)
    parsed_template(write("#!/bin/bash\necho 5\n"))
    assert parsing == []


def test_a_page_takes_what_its_catalogue_carries_and_parses_the_rest(
    template: Template, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = parsed_templates.to_carry([template, template])
    monkeypatch.setattr(parsed_templates, "_carried", {})
    parsed_templates.carry(carried)
    parsing = parses(monkeypatch)
    with stand_in(of_this_process()):
        assert parsed_template(template) == parsed(template)
        assert parsing == []
        part = template.parts["job.sbatch.j2"]
        longer = replace(template, parts={"job.sbatch.j2": part + b"true\n"})
        assert parsed_template(longer) == parsed(longer) != parsed(template)
        assert parsing == [longer]
    assert not kept.exists()


def test_a_template_that_cannot_be_parsed_is_not_carried(template: Template) -> None:
    broken = replace(template, parts={"job.sbatch.j2": b"{% if %}"})
    assert [*parsed_templates.to_carry([broken, template])] == [
        *parsed_templates.to_carry([template])
    ]
