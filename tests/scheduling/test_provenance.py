"""What a submission writes down of the code it came from, whatever state that code is in."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.rendering.script import Plan
from fsdpkit.reporting.report import about
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.provenance import Provenance, in_words, read_provenance
from fsdpkit.scheduling.provenance import write_provenance
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.worktree import git as asking_git
from fsdpkit.worktree.git import GitError, git_in
from tests.conftest import COLD, Completed, answer_of
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


def test_a_clean_tree_has_no_difference(made: Made, tree: Path, tmp_path: Path) -> None:
    git(tree, "checkout", "-q", "helper.py")
    (tree / "new.py").unlink()
    found = made(tree)
    assert found.repository is not None
    assert found.repository.clean
    assert found.diff is None
    assert list((tmp_path / "runs").glob("*/source.diff")) == []


def test_a_tree_in_the_middle_of_a_merge(made: Made, tree: Path) -> None:
    git(tree, "commit", "-qam", "mine")
    git(tree, "checkout", "-q", "-b", "other", "HEAD~1")
    (tree / "helper.py").write_text("WORD = 'theirs'\n")
    git(tree, "commit", "-qam", "theirs")
    git(tree, "merge", "-q", "main")
    found = made(tree, "launch.check=false")  # what git left in the helper does not compile
    assert found.repository is not None
    assert (found.repository.under_way, found.repository.changed) == ("merge", ["helper.py"])
    assert "in the middle of a merge" in in_words(found)


def test_before_the_first_commit(made: Made, tmp_path: Path) -> None:
    tree = tmp_path / "young"
    tree.mkdir()
    git(tree, "init", "-q")
    (tree / "train.py").write_text("pass\n")
    found = made(tree)
    assert found.repository is not None
    assert found.repository.commit is None
    assert found.diff is not None
    assert "no commit yet" in in_words(found)


def test_without_git_the_script_itself_is_kept(made: Made, tmp_path: Path) -> None:
    tree = tmp_path / "plain"
    tree.mkdir()
    (tree / "train.py").write_text("print('here')\n")
    found = made(tree)
    assert found.repository is None
    assert found.script.sha256 is not None
    assert "+print('here')" in next((tmp_path / "runs").glob("*/source.diff")).read_text()
    assert [text for text in found.problems if text.startswith("git:")]


def test_settings_have_their_origin_and_packages_their_release(made: Made, tree: Path) -> None:
    found = made(tree, "resources.nodes=2")
    origins = {one.key: (one.value, one.origin) for one in found.settings}
    assert origins["resources.nodes"] == (2, "--set")
    assert origins["retry.restarts"][1] == "default"
    assert found.packages is not None
    import msgspec

    assert f"msgspec=={msgspec.__version__}" in found.packages.pip


def test_another_environment_lists_its_own_packages(made: Made, tree: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tree / "data/v")], check=True
    )
    found = made(tree, "environment.venv=data/v")
    assert found.packages is not None
    assert found.packages.environment == str(tree / "data/v")
    assert found.packages.pip == []
    assert found.packages.python is not None


def test_conda_s_packages_are_read_from_its_own_list(made: Made, tree: Path) -> None:
    meta = tree / "data" / "env" / "conda-meta"
    meta.mkdir(parents=True)
    (meta / "numpy-2.4.6-py311h64a7726_0.json").write_text("{}")
    (meta / "history").write_text("")
    found = made(tree, f"environment.conda={meta.parent}")
    assert found.packages is not None
    assert found.packages.conda == ["numpy=2.4.6=py311h64a7726_0"]
    assert any("does not list its packages" in text for text in found.problems)  # no python there


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


def test_the_environment_does_not_lead_git_elsewhere(
    made: Made, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = work_tree(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    found = made(tree)
    assert found.repository is not None
    assert found.repository.top == str(tree)


def test_a_long_difference_is_cut(
    made: Made, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdpkit.scheduling.provenance._MOST_DIFF_BYTES", 2000)
    (tree / "helper.py").write_text("WORD = 1\n" * 10_000)
    found = made(tree)
    assert found.diff is not None
    assert found.diff.cut
    assert (
        found.diff.bytes == next((tmp_path / "runs").glob("*/source.diff")).stat().st_size == 2000
    )


def test_git_that_takes_long_is_given_up(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    monkeypatch.setattr(asking_git, "_LIMIT_S", 0.2)
    with pytest.raises(GitError, match="took more than"):
        git_in(tree)


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


def test_an_old_git_is_not_asked(
    made: Made, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho git version 1.8.3.1\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    found = made(tree)
    assert found.repository is None
    assert any("too old" in text for text in found.problems)
    assert set((tmp_path / "asked").read_text().split()) == {"version"}


def test_a_damaged_record_hurts_nobody(tmp_path: Path) -> None:
    run = make_run(tmp_path / "t-20261121-101500-3f2a")
    RunPaths(run.dir).provenance.write_text("[" * 100_000)
    assert about.provenance_of(run) is None
    RunPaths(run.dir).provenance.unlink()
    assert read_provenance(run.paths) is None


def test_status_and_report_say_which_code_ran(
    fsdpkit: Callable[..., Completed], tree: Path
) -> None:
    sets = ("--set", "environment.variables.COLOUR=blue")
    done = fsdpkit("submit", "train.py", "--cluster", "local", *COLD, "--wait", *sets, cwd=tree)
    assert done.returncode == 0, done.stderr
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


def test_a_dry_run_asks_nothing(
    fsdpkit: Callable[..., Completed], tree: Path, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    done = fsdpkit("submit", "train.py", "--cluster", "local", "--dry-run", cwd=tree, env=env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "asked").exists()
