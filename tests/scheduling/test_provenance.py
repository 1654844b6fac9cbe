"""What a submission writes down of the code it came from, whatever state that code is in."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.rendering.script import Plan
from fsdpkit.runs.provenance import Provenance, read_provenance
from fsdpkit.scheduling.provenance import write_provenance
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.worktree.git import GitError, git_in
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit
from tests.reporting.log_runs import make_run
from tests.scheduling.work_trees import git, work_tree

Made = Callable[..., Provenance]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return work_tree(tmp_path / "tree")


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    def made(tree: Path, *sets: str) -> Plan:
        monkeypatch.chdir(tree)
        return plan(SubmitRequest("train.py", cluster="local", sets=sets))[0]

    return made


@pytest.fixture
def made(plan_of: Callable[..., Plan], tmp_path: Path) -> Made:
    """The provenance of a script `train.py` that is submitted in its directory."""

    def make(tree: Path, *sets: str) -> Provenance:
        paths = make_run(tmp_path / "runs" / "t-20261121-101500-3f2a").paths
        decided = plan_of(tree, *sets)
        write_provenance(decided, paths, decided.job.entry, decided.work_dir)
        found = read_provenance(paths)
        assert found is not None
        return found

    return make


def test_commit_branch_and_difference_are_kept(made: Made, tree: Path, tmp_path: Path) -> None:
    found = made(tree)
    assert found.repository is not None
    assert found.repository.commit == git(tree, "rev-parse", "HEAD")
    assert (found.repository.branch, found.repository.clean) == ("main", False)
    assert found.repository.changed == ["helper.py"]
    assert found.repository.untracked == ["new.py"]
    assert found.problems == []
    # The commit and the difference together are what was submitted.
    diff = next((tmp_path / "runs").glob("*/source.diff"))
    assert stat.S_IMODE(diff.stat().st_mode) == 0o600
    git(tree, "worktree", "add", "-q", str(tmp_path / "again"), "HEAD")
    git(tmp_path / "again", "apply", str(diff))
    for name in ("train.py", "helper.py", "new.py"):
        assert (tmp_path / "again" / name).read_bytes() == (tree / name).read_bytes()


@pytest.mark.parametrize(
    "hostile",
    ["core.fsmonitor", "diff.external", "filter.f.clean", "filter.f.process", "diff.d.textconv"],
)
def test_a_repository_s_own_programs_are_not_started(
    made: Made, tree: Path, tmp_path: Path, hostile: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\ncat\n")
    program.chmod(0o755)
    git(tree, "config", hostile, str(program))
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "attributes").write_text("*.py filter=f diff=d\n")
    hook = tree / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(program.read_text())
    hook.chmod(0o755)
    found = made(tree)
    assert found.repository is not None
    assert found.repository.changed == ["helper.py"]
    assert not (tmp_path / "started").exists()


def test_a_repository_says_neither_what_is_run_nor_what_the_work_tree_is(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    git(tree, "config", "core.worktree", str(tmp_path))
    with pytest.raises(GitError, match=r"said to be .*, where there is no \.git"):
        _ = git_in(tree).top
    git(tree, "config", "--unset", "core.worktree")
    assert git_in(tree).top == tree
    (tree / ".git" / "config").chmod(0o666)
    with pytest.raises(GitError, match="is another user's"):
        git_in(tree)


@pytest.mark.local
def test_status_and_report_say_which_code_ran(fsdpkit: Fsdpkit, tree: Path) -> None:
    sets = ("--set", "environment.variables.COLOUR=blue")
    fsdpkit("submit", "train.py", "--cluster", "local", *COLD, "--wait", *sets, cwd=tree, status=0)
    (run,) = (tree / "runs").iterdir()
    commit = git(tree, "rev-parse", "HEAD")
    said = answer_of(fsdpkit("status", str(run), "--json", cwd=tree))["provenance"]
    assert (said["schema"], said["repository"]["commit"]) == ("fsdpkit.provenance/1", commit)
    assert said["repository"]["untracked"] == ["new.py"]  # and nothing of runs/
    assert commit[:12] in fsdpkit("status", str(run), cwd=tree).stdout
    page = fsdpkit("report", str(run), "-o", "-", cwd=tree).stdout
    assert commit in page
    assert "changed: helper.py" in page
    assert str(run / "source.diff") in page


def test_a_dry_run_asks_nothing(fsdpkit: Fsdpkit, tree: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    fsdpkit("submit", "train.py", "--cluster", "local", "--dry-run", cwd=tree, env=env, status=0)
    assert not (tmp_path / "asked").exists()
