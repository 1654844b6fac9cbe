"""One file of a centre that is wrong breaks nobody else, and is never silently replaced."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.loading import read_toml
from fsdpkit.config.site import choose_site
from fsdpkit.errors import ConfigError
from tests.json_answers import checked
from tests.publishing.centres import JOB, typed

GOOD = 'schema = "fsdpkit.site/1"\ntitle = "Good"\n[identify]\nenv = {CLUSTER_NAME = "good"}\n'
HERE = f'hostname = "{socket.gethostname()}"\n'
THERE = 'hostname = "another-machine[0-9]+"\n'
HEAD = 'schema = "fsdpkit.site/1"\ntitle = "Broken"\n'


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of a centre, on a machine that has an sbatch."""
    folder = tmp_path / "centre" / "site" / "profiles"
    folder.mkdir(parents=True)
    (folder / "good.toml").write_text(GOOD)
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(tmp_path / "centre"))
    monkeypatch.chdir(tmp_path)
    return folder


BROKEN = {
    "no TOML after it": HEAD + "[identify]\n{}[policy]\nrequeue = yes\n",
    "no TOML before it": HEAD + "[policy]\nrequeue = yes\n[identify]\n{}",
    "no TOML within it": HEAD + "[identify]\nenv = {{A = \n{}",
    "a key that there is not": HEAD + "[identify]\n{}[polizy]\nrequeue = true\n",
    "a value that cannot be": HEAD + "[identify]\n{}[policy]\nwarning_s = 1\n",
    "a dotted key": HEAD + "identify.{}[policy]\nrequeue = yes\n",
    "a secret": HEAD + '[identify]\n{}[environment.variables]\nHF_TOKEN = "hf_abcdefghijklmnop"\n',
    "nothing but it": "[identify]\n{}",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_profile_of_another_machine_is_skipped_and_said_once(
    profiles: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "broken.toml").write_text(text.format(THERE))
    monkeypatch.setenv("CLUSTER_NAME", "good")
    done = typed("submit", "--dry-run")
    assert done.status == 0, done.err
    assert "site good" in done.out
    assert done.err.count("broken.toml") == 1
    done = typed("sites")
    assert done.status == 0
    assert "good " in done.out
    assert "broken" not in done.out
    assert done.err.count("broken.toml") == 1
    done = typed("sites", "--check")
    assert done.status == 65
    assert "centre site broken: " in done.out
    assert typed("sites", "broken").status == 65
    assert typed("sites", "good").status == 0


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("other", ["good", ""])
def test_a_broken_profile_of_this_machine_is_not_replaced_by_another_or_by_generic(
    profiles: Path, text: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "broken.toml").write_text(text.format(HERE))
    monkeypatch.setenv("CLUSTER_NAME", other)
    if "A =" in text and other:  # what it is for cannot be read, and another profile is this one's
        assert choose_site(None)[0].id == "good"
        return
    done = typed("submit", "--dry-run")
    assert done.status == 65
    assert done.out == ""
    assert "broken" in done.err
    assert "--cluster" in done.err
    assert typed("submit", "--dry-run", "--cluster", "generic").status == 0


def test_where_a_broken_profile_does_not_say_whose_it_is_no_machine_becomes_generic(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a file that was copied halfway."""
    whole = HEAD + "[identify]\n" + HERE + "[policy]\nrequeue = true\n"
    for size in range(len(whole)):
        (profiles / "cut.toml").write_text(whole[:size])
        try:
            site = choose_site(None)[0].id
        except ConfigError as error:
            site = str(error)
        # Or it is complete so far, and says of no machine that it is for it.
        text = whole[:size].strip()
        says_nothing = text.startswith(HEAD.strip()) and "hostname" not in text
        assert "cut" in site or (site == "generic" and says_nothing), text
    monkeypatch.setenv("CLUSTER_NAME", "good")
    (profiles / "cut.toml").write_text(whole[: len(HEAD) - 5])
    assert choose_site(None)[0].id == "good"


def test_a_layer_that_is_broken_is_not_left_out_of_its_profile(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packaged profile alone would have other limits than the centre meant."""
    (profiles / "osc").mkdir()
    (profiles / "osc" / "ascend.toml").write_text("[policy\n")
    monkeypatch.setenv("CLUSTER", "ascend")
    with pytest.raises(ConfigError, match=r"ascend\.toml.*\n.*this machine's profile"):
        choose_site(None)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make",
    [
        _pipe,
        _loop,
        Path.mkdir,
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_bytes(b"a = " + b"[" * 100_000),
        lambda path: path.write_bytes(b"#" * 2_000_000),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_what_is_no_file_at_all_is_skipped_too(
    profiles: Path, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(profiles / "odd.toml")
    monkeypatch.setenv("CLUSTER_NAME", "good")
    assert choose_site(None)[0].id == "good"
    assert typed("sites").status == 0
    monkeypatch.setenv("CLUSTER_NAME", "none")
    with pytest.raises(ConfigError, match=r"odd\.toml"):
        choose_site(None)


def test_two_files_of_one_name_break_that_name_alone(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "a").mkdir()
    for name in ("a-b.toml", "a/b.toml"):
        (profiles / name).write_text(HEAD + "[identify]\n" + THERE)
    assert choose_site(None)[0].id == "generic"
    done = typed("sites")
    assert done.status == 0
    assert done.err.count("are both the profile 'a-b'; keep one") == 1
    assert typed("sites", "--check").status == 65
    (profiles / "a" / "b.toml").write_text(HEAD + "[identify]\n" + HERE)
    with pytest.raises(ConfigError, match="are both the profile"):
        choose_site(None)


def test_a_broken_template_and_a_broken_job_are_skipped_and_named(profiles: Path) -> None:
    centre = profiles.parent.parent
    (centre / "templates" / "bad").mkdir(parents=True)
    (centre / "templates" / "bad" / "template.toml").write_text("version = 1\n")
    (centre / "templates" / "torchrun").mkdir()
    (centre / "templates" / "torchrun" / "template.toml").write_text("version = \n")
    (centre / "jobs").mkdir()
    (centre / "jobs" / "bad.toml").write_text("nodes\n")
    (centre / "jobs" / "lost.toml").write_text(JOB.format(template="torchrun"))
    for command, names in (("templates", ("bad", "torchrun")), ("jobs", ("bad", "lost"))):
        done = typed(command)
        assert done.status == 0
        for name in names:
            assert f"\n{name} " not in done.out
        assert len(done.err.splitlines()) == len(names)
        answer = json.loads(typed(command, "--json").out)
        assert not {one["name"] for one in answer[command]} & {*names}
        assert typed(command, "--check").status == 65
        answer = checked(typed(command, "--check", "--json").out)
        assert {(p["name"], p["layer"]) for p in answer["problems"]} == {
            (name, "centre") for name in names
        }
    # A template that is broken is not replaced by the packaged one of its name.
    assert typed("submit", "--dry-run", "--cluster", "generic").status == 65


def test_check_finds_nothing_wrong_with_what_comes_with_fsdpkit(profiles: Path) -> None:
    for command in ("sites", "templates", "jobs"):
        done = typed(command, "--check")
        assert done.status == 0, done.out
        assert "all can be used" in done.out


def test_check_names_the_centres_rules_and_defaults(profiles: Path) -> None:
    centre = profiles.parent.parent
    (centre / "trust.toml").write_text("nope = 1\n")
    assert "trust.toml" in typed("jobs", "--check").out
    (centre / "trust.toml").unlink()
    (centre / "defaults.toml").write_text("nope\n")
    done = typed("jobs", "--check")
    assert done.status == 65
    assert "defaults.toml" in done.out
    assert typed("jobs").status == 65, "values beneath every job are not left out"


@pytest.mark.parametrize("text", ["[{}]\n", "{} = 1\n", "x = {{{} = 1}}\n"])
def test_keys_of_very_many_parts_are_refused_before_they_are_read(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text.format(".".join(["a"] * 100_000)))
    with pytest.raises(ConfigError, match="too many parts"):
        read_toml(path)


def test_a_text_full_of_dots_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'x = "{"." * 4000}"\n')
    assert read_toml(path)["x"] == "." * 4000
