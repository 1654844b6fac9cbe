"""What each site gets, as committed: current, syntactically right, and as the cases demand."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from fsdpkit.config.site import load_site
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.goldens import (
    GOLDENS,
    golden_dir,
    golden_script,
    write_all,
)
from fsdpkit.rendering.lint import lint

_script = functools.cache(golden_script)


def each() -> Iterator[tuple[str, str]]:
    """Each golden script's name and text."""
    return ((name, _script(name)) for name in GOLDENS)


def test_the_golden_script_in_the_repository_is_current(tmp_path: Path) -> None:
    """`python -m fsdpkit.rendering.goldens` writes them, and leaves no other."""
    (tmp_path / "old.sbatch").write_text("")
    write_all(tmp_path)
    made, kept = (
        {path.name: path.read_text("utf-8").splitlines() for path in directory.iterdir()}
        for directory in (tmp_path, golden_dir())
    )
    assert made == kept


def test_a_golden_holds_no_path_of_this_machine() -> None:
    known = ("/home/alex/", "/images/", "/bin/bash", "/etc/profile.d/", "/usr/sbin", "/sbin")
    known += ("/proc/sys/", "/sys/class/net/", "/dev/null", "/dev/urandom", "/submitit")
    for name, golden in each():
        absolute = re.findall(r"(?<![\w$}/*\")])/\w[\w./-]*", golden)
        assert [path for path in absolute if not path.startswith(known)] == [], name


# `template test` reads those of every profile (tests/publishing/test_template_test.py).
@pytest.mark.parametrize(
    "name", ["generic", *(name for name, of in GOLDENS.items() if name != of.site)]
)
def test_bash_and_shellcheck_find_nothing(name: str) -> None:
    golden = _script(name)
    assert subprocess.run(["bash", "-n"], input=golden, text=True, check=False).returncode == 0
    if which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")

    done = subprocess.run(
        ["shellcheck", "-"], input=golden, text=True, capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)
    # Remarks only where a dynamic file is read in, and where nothing but a trap calls a function.
    functions = ("read_in", "let_go", "warned", "last_step")
    remarkable = sum(golden.count(f"\n{name}() {{") for name in functions)
    assert golden.count("shellcheck") == remarkable


def test_lint_finds_nothing() -> None:
    assert {name: found for name, golden in each() if (found := lint(golden))} == {}


def test_a38_a39_gpus_are_asked_for_once_per_node_with_one_task() -> None:
    for name, golden in each():
        options = dict(read_directives(golden))
        assert len(options) == len(read_directives(golden)), f"{name}: no option twice"
        forms = [option for option in options if option.startswith("gpus") or option == "gres"]
        form = load_site(GOLDENS[name].site).profile.gpu_request.form or "gpus-per-node"
        assert forms == ([] if form == "none" else [form]), name
        assert options["ntasks-per-node"] == "1", name
        assert int(options["cpus-per-task"] or 0) >= 1, name
        assert "gpus-per-task" not in golden, name


def test_a05_a12_a13_a15_what_differs_between_nodes_is_expanded_in_the_task() -> None:
    meeting = (
        "if (( SLURM_NODEID == 0 )); then is_host=1; fi",
        '--rdzv-conf="is_host=$is_host,',
        '--rdzv-id="${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}"',
        '--rdzv-backend=c10d --rdzv-endpoint="$RDZV_HOST:$RDZV_PORT"',
    )
    for name, golden in each():
        before, task = golden.split("<<'TASK' &\n")
        task, after = task.split("\nTASK\n")
        assert "SLURM_NODEID" not in before + after, name
        assert "SLURM_PROCID" not in golden, name
        assert golden.count("\nsrun ") == 1, name
        assert "--standalone" in task or all(words in task for words in meeting), name
        assert "--node-rank" not in task, name


def test_a28_a29_a31_a34_a49_the_warning_goes_to_the_batch_shell_in_time() -> None:
    wanted = {"signal": "B:USR1@120", "open-mode": "append", "time": "01:00:00"}
    for name, golden in each():
        assert wanted.items() <= dict(read_directives(golden)).items(), name


def test_every_script_ends_with_the_status_and_names_nothing_that_may_differ() -> None:
    """A09, A18: no fixed port and no master; A20; A48: no wckey; A58: a container's engine only for
    a job in one."""
    for name, golden in each():
        assert golden.endswith('\nexit "$status"\n'), name
        assert not re.search(r"29[45]00|MASTER_|localhost|wckey", golden), name
        assert ("apptainer" in golden) == ("/images/torch.sif" in golden), name


def test_an_array_waits_for_the_run_before_it() -> None:
    options = dict(read_directives(golden_script("array-after")))
    assert options["array"] == "0-3%2"
    assert options["dependency"] == "afterok:1234"
    assert options["kill-on-invalid-dep"] == "yes"
    assert (options["output"] or "").endswith("/slurm-%A_%a.log")
