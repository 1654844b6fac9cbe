"""`submit --snapshot`: what is copied, what is refused before anything is queued, and that the job
runs in the copy, now and when it is resumed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from fsdpkit.errors import UsageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.provenance import read_provenance
from fsdpkit.scheduling.snapshot import copy_tree, editable_dirs, in_copy, read_tree
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.worktree.files import Limit, WorkTreeFiles, files_of
from tests.conftest import COLD
from tests.programs import Fsdpkit
from tests.scheduling.work_trees import git, work_tree

MB = 1_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return work_tree(tmp_path / "tree")


def read(root: Path) -> WorkTreeFiles:
    return files_of(root, Limit(MB, 100, "raise it"), root / "runs")


def test_git_s_files_and_what_it_does_not_ignore(tree: Path) -> None:
    (tree / "runs" / "r").mkdir(parents=True)
    (tree / "runs" / "r" / "job.json").write_text("{}")
    git(tree, "rm", "-q", "--cached", "helper.py")  # no longer tracked, still there
    assert set(read(tree).sizes) == {".gitignore", "train.py", "helper.py", "new.py"}


def test_without_git_all_but_environments_and_caches(tmp_path: Path) -> None:
    for name in ("src/a.py", "venv/pyvenv.cfg", "venv/x.py", "src/__pycache__/a.pyc", "runs/r/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    assert set(read(tmp_path).sizes) == {"src/a.py"}


def test_the_copy_is_its_owner_s_and_links_stay_links(tree: Path, tmp_path: Path) -> None:
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o777)
    (tree / "sub dir").mkdir()
    (tree / "sub dir" / "däta.py").write_text("é")
    (tree / "near").symlink_to("train.py")
    (tree / "corpus").symlink_to("data")
    (tree / "gone").symlink_to("../nowhere")
    (tmp_path / "run").mkdir(mode=0o700)
    made = copy_tree(read(tree), tmp_path / "run" / "copy")
    copy = tmp_path / "run" / "copy"
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((copy / "train.py").stat().st_mode) == 0o600
    assert (copy / "sub dir" / "däta.py").read_text() == "é"
    assert os.readlink(copy / "corpus") == "data"
    assert made.dangling == ["corpus"]
    assert made.files == 9
    # The same tree has the same digest, another one has another.
    assert copy_tree(read(tree), tmp_path / "second").sha256 == made.sha256
    (tree / "run.sh").chmod(0o600)
    assert copy_tree(read(tree), tmp_path / "third").sha256 != made.sha256


def test_a_script_from_elsewhere_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far.py").write_text("")
    monkeypatch.chdir(tree)
    decided, _ = plan(SubmitRequest("../far.py", cluster="local"))
    with pytest.raises(UsageError, match="--snapshot"):
        read_tree(decided, tree / "runs")


def test_what_stays_behind_is_named_by_its_whole_path(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import venv

    venv.create(tree / "data" / "venv", with_pip=False)
    site = next((tree / "data" / "venv" / "lib").glob("python3*/site-packages"))
    (site / "mine-1.dist-info").mkdir()
    (site / "mine-1.dist-info" / "direct_url.json").write_text(
        f'{{"url": "file://{tree}", "dir_info": {{"editable": true}}}}'
    )
    (tree / "lib").mkdir()
    (tree / "lib" / "mine.py").write_text("")
    (tree / "data" / "rows.jsonl").write_text('{"text": "a b"}\n' * 9)
    (tree / "here.jsonl").write_text('{"text": "a b"}\n' * 9)
    monkeypatch.chdir(tree)
    monkeypatch.setenv("PYTHONPATH", f"{tree}/lib")
    sets = ["environment.venv=data/venv", "training.data.source=data/rows.jsonl"]
    sets += ["training.data.held_out_source=here.jsonl", "training.data.task=span-corruption"]
    sets += ["training.data.source_field=text", "launch.check=false"]
    (tree / "train.py").write_text("from fsdpkit.training.command_line import read_settings\n")
    decided, _ = plan(SubmitRequest("train.py", cluster="local", snapshot=True, sets=sets))
    copy = tmp_path / "copy"
    moved = in_copy(decided, read(tree), copy)
    assert (moved.work_dir, moved.job.entry.path) == (copy, copy / "train.py")
    assert moved.job.spec.environment.venv == str(tree / "data" / "venv")
    assert moved.job.spec.environment.variables["PYTHONPATH"] == f"{copy}/lib:{copy}"
    training = moved.job.spec.training
    assert training
    assert training.data.source == str(tree / "data" / "rows.jsonl")
    assert training.data.held_out_source == "here.jsonl"


@pytest.mark.parametrize(
    ("url", "editable", "counts"),
    [("file://", True, True), ("file://", False, False), ("https://x", True, False)],
)
def test_only_what_pip_left_in_its_place_is_imported_from_there(
    tmp_path: Path, url: str, editable: bool, counts: bool
) -> None:
    about = tmp_path / "env/lib/python3.11/site-packages/mine-1.dist-info"
    about.mkdir(parents=True)
    said = {"url": f"{url}{tmp_path}/mine", "dir_info": {"editable": editable}}
    (about / "direct_url.json").write_text(json.dumps(said))
    found = editable_dirs([tmp_path / "env"], tmp_path)
    assert found == ([tmp_path / "mine"] if counts else [])


@pytest.mark.local
def test_the_job_runs_in_the_copy_and_is_resumed_there(fsdpkit: Fsdpkit, tree: Path) -> None:
    """The tree is edited between the two; the job is submitted from a directory inside it."""
    (tree / "sub").mkdir()
    (tree / "sub" / "go.py").write_text(
        "import os, sys\nsys.path.insert(0, '..')\nimport helper\n"
        "print(helper.WORD, os.getcwd(), sys.argv[1:])\n"
    )
    (tree / "sub" / "job.toml").write_text(
        'schema = "fsdpkit.job/1"\nname = "go"\nentry = "go.py"\n[source]\nsnapshot = true\n'
        '[resources]\nnodes = 1\ngpus = 1\ntime = "00:10:00"\n'
    )
    at = {"cwd": tree / "sub"}
    fsdpkit("submit", "job.toml", "--cluster", "local", *COLD, "--wait", **at, status=0)
    (run,) = (tree / "sub" / "runs").iterdir()
    assert f"edited {run}/snapshot/sub []" in fsdpkit("logs", str(run), **at).stdout
    (tree / "helper.py").write_text("raise SystemExit('the tree, not the copy')\n")
    (tree / "sub" / "go.py").unlink()
    fsdpkit("resume", str(run), "--set", 'args=["more"]', "--wait", **at, status=0)
    assert f"edited {run}/snapshot/sub ['more']" in fsdpkit("logs", str(run), **at).stdout
    now = read_provenance(RunPaths(run))
    assert now is not None
    assert now.snapshot is not None
    assert now.repository is not None
    assert now.snapshot.source == str(tree)
    assert now.repository.top == str(tree)
    assert now.command[1] == "resume"
    assert {one.key: one.value for one in now.settings}["args"] == ["more"]
    assert list(run.glob("provenance.*.json"))
