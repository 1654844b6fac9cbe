"""Which code and packages a run was made of, from repositories in every state."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.job import load_job
from fsdpkit.config.site import load_site
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.provenance import Provenance, in_words, read_provenance
from fsdpkit.scheduling import provenance as module
from fsdpkit.scheduling.provenance import MOST_DIFF_BYTES, provenance_of, write_provenance

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """git in a repository of its own, whose script is `train.py`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_DIR", "/somewhere/else")  # as a hook that submits would have it
    (tmp_path / "project" / "code").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    own = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")

    def call(*words: str) -> str:
        env = {k: v for k, v in os.environ.items() if k != "GIT_DIR"}
        done = subprocess.run(
            ["git", *own, *words], env=env, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    call("init", ".")
    (tmp_path / "project" / "code" / "train.py").write_text("print(1)\n")
    return call


def made(*sets: str) -> tuple[Provenance, bytes]:
    return provenance_of(load_job("code/train.py", sets=sets), load_site("local"))


def committed(git: Git) -> str:
    git("add", ".")
    git("commit", "-m", "first")
    return git("rev-parse", "HEAD")


def test_a_clean_commit_is_named_with_its_branch(git: Git) -> None:
    commit = committed(git)
    found, diff = made()
    assert found.commit is not None
    assert (found.commit.id, found.commit.branch) == (commit, "main")
    assert (found.commit.changed, found.commit.untracked, diff) == (0, 0, b"")
    assert in_words(found) == f"commit {commit[:12]} of main"
    assert found.unknown == []


def test_what_was_changed_is_kept_and_what_git_ignores_is_not(git: Git) -> None:
    Path(".gitignore").write_text("data\n")
    committed(git)
    Path("data").write_text("large")
    Path("code/train.py").write_text("print(2)\n")
    Path("code/new ü.py").write_text("")
    found, diff = made()
    assert found.commit is not None
    assert (found.commit.changed, found.commit.untracked) == (1, 1)
    assert b"+print(2)" in diff
    assert "1 file changed" in in_words(found)


def test_before_the_first_commit_and_off_any_branch(git: Git) -> None:
    found, diff = made()
    assert found.commit is not None
    assert (found.commit.id, found.commit.branch, diff) == ("", "main", b"")
    assert not found.commit.script_tracked
    commit = committed(git)
    git("checkout", "--detach")
    found, _ = made()
    assert found.commit is not None
    assert (found.commit.id, found.commit.branch) == (commit, None)


def test_in_the_middle_of_a_merge(git: Git) -> None:
    committed(git)
    git("checkout", "-b", "other")
    Path("code/train.py").write_text("print('theirs')\n")
    committed(git)
    git("checkout", "main")
    Path("code/train.py").write_text("print('ours')\n")
    committed(git)
    git("merge", "other")
    found, diff = made("launch.check=false")
    assert found.commit is not None
    assert found.commit.changed == 1
    assert b"<<<<<<<" in diff


def test_of_a_large_difference_the_start_is_kept(git: Git) -> None:
    committed(git)
    Path("code/train.py").write_text("x = 1\n" * 400_000)
    found, diff = made()
    assert found.commit is not None
    assert len(diff) == MOST_DIFF_BYTES < found.commit.diff_bytes


@pytest.mark.parametrize("key", ["core.fsmonitor", "diff.external", "core.pager", "core.hooksPath"])
def test_a_repository_runs_no_program_of_its_own(git: Git, tmp_path: Path, key: str) -> None:
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    Path(".gitattributes").write_text("*.py diff=mine\n")
    committed(git)
    git("config", key, str(program))
    git("config", "diff.mine.textconv", str(program))
    git("config", "diff.mine.command", str(program))
    Path("code/train.py").write_text("print(3)\n")
    assert b"print(3)" in made()[1]
    assert not (tmp_path / "ran").exists()


def test_without_git_the_script_s_digest_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    found, diff = made()
    assert (found.commit, diff) == (None, b"")
    assert in_words(found).startswith("SHA-256 e3b0c44298fc")


@pytest.mark.parametrize("answer", ["exit 128", "sleep 60", "echo $((1/0)) >&2; exit 3"])
def test_a_git_that_does_not_answer_stops_nobody(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/bash\n{answer}\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_GIT_S", 0.3)
    found, _ = made()
    assert found.commit is None
    assert "git" in found.unknown[0]


def test_packages_settings_and_command_are_there(git: Git) -> None:
    found, _ = made("resources.nodes=3")
    assert found.packages["click"]
    assert found.python == sys.executable
    nodes = found.settings["resources.nodes"]
    assert (nodes.value, nodes.origin) == (3, "--set")
    assert found.settings["resources.gpus"].origin == "built in"
    assert found.command == sys.argv
    of_nodes, _ = made("environment.container=x.sif")
    assert (of_nodes.packages, of_nodes.python) == ({}, None)
    assert of_nodes.unknown


def test_it_is_written_whole_and_the_difference_for_its_owner_alone(
    git: Git, tmp_path: Path
) -> None:
    committed(git)
    Path("code/train.py").write_text("print('secret')\n")
    run = RunPaths(tmp_path / "run")
    run.dir.mkdir(mode=0o750)
    job, site = load_job("code/train.py"), load_site("local")
    write_provenance(run, job, site)
    found = read_provenance(run.provenance)
    assert found is not None
    assert found == provenance_of(job, site)[0]
    assert stat.S_IMODE(run.source_diff.stat().st_mode) == 0o600
    committed(git)
    write_provenance(run, job, site)
    assert not run.source_diff.exists(), "of an earlier job"
    run.provenance.write_text('{"schema": 3')
    assert read_provenance(run.provenance) is None
    write_provenance(RunPaths(tmp_path / "missing"), job, site)
