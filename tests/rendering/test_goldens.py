"""What each site gets of the packaged template: as committed, syntactically right, and as the cases
demand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from fsdpkit.config.template import load_template
from fsdpkit.publishing import template_goldens
from fsdpkit.publishing.template_cases import HOME, RUN_DIR, SHAPES, Shape
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.lint import lint
from tests.rendering.all_scripts import (
    DIGESTS,
    STAGED,
    STAGED_CONTAINER,
    STEPS,
    WAITING,
    digests,
    scripts,
)

SHOWN = {"generic", "generic.one-node", "osc-cardinal"}


def test_every_script_is_as_committed() -> None:
    """`python -m tests.rendering.all_scripts` writes their digests."""
    assert digests().splitlines() == DIGESTS.read_text("utf-8").splitlines()


def test_the_scripts_that_are_shown_are_current() -> None:
    template = load_template("torchrun")
    assert {*template_goldens.present(template)} == SHOWN
    for name in SHOWN:
        why = template_goldens.problem_of(name, template)
        assert why is None, f"fsdpkit template test torchrun --no-run --update: {why}"


def test_a_script_holds_no_path_of_this_machine() -> None:
    known = (f"{HOME}", "/home/alex/", "/images/", "/opt/", "/bin/bash", "/etc/profile.d/")
    known += ("/usr/sbin", "/sbin", "/submitit", str(RUN_DIR))
    known += ("/usr/bin/python3", "/tmp", "/jobs/")  # of each node, for [stage]
    known += (
        "/proc/sys/",
        "/proc/net/",
        "/sys/class/net/",
        "/dev/null",
        "/dev/urandom",
        "/dev/shm",
        "/dev/fd/",
    )
    for case, script in scripts():
        absolute = re.findall(r"(?<![\w$}/*\")])/\w[\w./-]*", script)
        assert [path for path in absolute if not path.startswith(known)] == [], str(case)


# `template test` reads all others (tests/publishing/test_template_test.py).
_READ = [SHAPES[0], STEPS, WAITING, STAGED, STAGED_CONTAINER]


@pytest.mark.parametrize("shape", _READ, ids=lambda shape: str(shape.name))
def test_bash_and_shellcheck_find_nothing(shape: Shape) -> None:
    golden = next(script for case, script in reversed(scripts()) if case.shape is shape)
    assert subprocess.run(["bash", "-n"], input=golden, text=True, check=False).returncode == 0
    if which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")

    done = subprocess.run(
        ["shellcheck", "-"], input=golden, text=True, capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)
    # Remarks only where a dynamic file is read in, where nothing but a trap calls a function, and
    # where a node's variables are named.
    functions = ("read_in", "let_go", "warned", "last_step", "stage_over")
    remarkable = sum(golden.count(f"\n{name}() {{") for name in functions) + golden.count(
        "\nSTAGE=("
    )
    assert golden.count("shellcheck") == remarkable


def test_lint_finds_nothing() -> None:
    assert {str(case): found for case, golden in scripts() if (found := lint(golden))} == {}


def test_a38_a39_gpus_are_asked_for_once_per_node_with_one_task() -> None:
    for case, golden in scripts():
        options = dict(read_directives(golden))
        assert len(options) == len(read_directives(golden)), f"{case}: no option twice"
        forms = [option for option in options if option.startswith("gpus") or option == "gres"]
        form = case.site.profile.gpu_request.form or "gpus-per-node"
        assert forms == ([] if form == "none" else [form]), str(case)
        assert options["ntasks-per-node"] == "1", str(case)
        assert int(options["cpus-per-task"] or 0) >= 1, str(case)
        assert "gpus-per-task" not in golden, str(case)


def test_a05_a12_a13_a15_what_differs_between_nodes_is_expanded_in_the_task() -> None:
    meeting = (
        "if (( SLURM_NODEID == 0 )); then is_host=1; fi",
        '--rdzv-conf="is_host=$is_host,',
        '--rdzv-id="${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}"',
        '--rdzv-backend=c10d --rdzv-endpoint="$RDZV_HOST:$RDZV_PORT"',
    )
    for case, golden in scripts():
        before, task = golden.split("<<'TASK' &\n")
        task, after = task.split("\nTASK\n")
        assert "SLURM_NODEID" not in before + after, str(case)
        assert "SLURM_PROCID" not in golden, str(case)
        assert golden.count("\nsrun ") == 1, str(case)
        assert "--standalone" in task or all(words in task for words in meeting), str(case)
        assert "--node-rank" not in task, str(case)


def test_a28_a29_a31_a34_a49_the_warning_goes_to_the_batch_shell_in_time() -> None:
    wanted = {"signal": "B:USR1@120", "open-mode": "append", "time": "04:00:00"}
    for case, golden in scripts():
        assert wanted.items() <= dict(read_directives(golden)).items(), str(case)


def test_every_script_ends_with_the_status_and_names_nothing_that_may_differ() -> None:
    """A09, A18: no fixed port and no master; A20; A48: no wckey; A58: a container's engine only for
    a job in one."""
    for case, golden in scripts():
        assert golden.endswith('\nexit "$status"\n'), str(case)
        assert not re.search(r"29[45]00|MASTER_|localhost|wckey", golden), str(case)
        engine = re.search("apptainer|singularity", golden)
        assert bool(engine) == ("/images/torch.sif" in golden), str(case)


def test_a_node_that_still_copies_results_back_is_not_ended_with_the_first_one() -> None:
    waits = {
        case.shape is STAGED_CONTAINER: re.findall(r"--wait=(\d+)", script)
        for case, script in scripts()
        if case.shape in (SHAPES[0], STAGED_CONTAINER)
    }
    assert waits == {True: ["0"], False: ["60"]}


@pytest.mark.parametrize(("decided", "status"), [(True, 0), (False, 3)])
def test_nor_with_the_first_one_that_fails_once_the_agents_have_their_verdict(
    tmp_path: Path, decided: bool, status: int
) -> None:
    script = next(script for case, script in scripts() if case.shape is STAGED_CONTAINER)
    end = re.search(r"\nfor \(\( try = 0; try < 10 &&.*?\nexit [^\n]*", script, re.DOTALL)
    assert end is not None
    if decided:
        (tmp_path / "verdict.json").touch()
    shell = f"set -euo pipefail; FSDPKIT_ATTEMPT_DIR={tmp_path} status=3; sleep() {{ :; }}"
    assert subprocess.run(["bash", "-c", shell + end[0]], check=False).returncode == status


def test_an_array_waits_for_the_run_before_it() -> None:
    (script,) = (script for case, script in scripts() if case.shape is WAITING)
    options = dict(read_directives(script))
    assert options["array"] == "0-3%2"
    assert options["dependency"] == "afterok:1234"
    assert options["kill-on-invalid-dep"] == "yes"
    assert (options["output"] or "").endswith("/slurm-%A_%a.log")
