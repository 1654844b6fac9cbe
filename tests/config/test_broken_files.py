"""One file of a centre that is wrong breaks nobody else, and is never silently replaced."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fsdpkit.config.site import choose_site
from tests.conftest import Command
from tests.publishing.centres import typed

GOOD = 'schema = "fsdpkit.site/1"\ntitle = "Good"\n[identify]\nenv = {CLUSTER_NAME = "good"}\n'
HERE = f'hostname = "{socket.gethostname()}"\n'
THERE = 'hostname = "another-machine[0-9]+"\n'
HEAD = 'schema = "fsdpkit.site/1"\ntitle = "Broken"\n'


@pytest.fixture
def profiles(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of a centre, on a machine that has an sbatch."""
    folder = tmp_path / "centre" / "site" / "profiles"
    folder.mkdir(parents=True)
    (folder / "good.toml").write_text(GOOD)
    command("sbatch", "echo 4711")
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
    no_toml = "requeue = yes" in text or "A =" in text
    if no_toml and other:  # what it is for cannot be read, and another profile is this machine's
        assert choose_site(None)[0].id == "good"
        return
    done = typed("submit", "--dry-run")
    assert done.status == 65
    assert done.out == ""
    assert "broken" in done.err
    assert "--cluster" in done.err
    assert typed("submit", "--dry-run", "--cluster", "generic").status == 0
