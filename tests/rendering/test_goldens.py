"""What each site gets, as committed: current, syntactically right, and as the cases demand."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from fsdpkit.config import assets
from fsdpkit.config.site import load_site
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.goldens import (
    GOLDENS,
    golden_dir,
    golden_script,
    write_all,
)
from fsdpkit.rendering.lint import lint


@pytest.fixture(params=GOLDENS)
def golden(request: pytest.FixtureRequest) -> str:
    """The text of each golden script in turn."""
    return _script(request.param)


_script = functools.cache(golden_script)


def test_the_golden_script_in_the_repository_is_current(tmp_path: Path) -> None:
    """`python -m fsdpkit.rendering.goldens` writes them, and leaves no other."""
    (tmp_path / "old.sbatch").write_text("")
    write_all(tmp_path)
    made, kept = (
        {path.name: path.read_text("utf-8").splitlines() for path in directory.iterdir()}
        for directory in (tmp_path, golden_dir())
    )
    assert made == kept


def test_every_profile_has_a_golden_script_of_its_own_name() -> None:
    sites = [name for name, places in assets.available("site").items() if places]
    assert [name for name in sites if name not in GOLDENS or GOLDENS[name].site != name] == []


def test_a_golden_holds_no_path_of_this_machine(golden: str) -> None:
    absolute = re.findall(r"(?<![\w$}/*\")])/\w[\w./-]*", golden)
    known = ("/home/alex/", "/images/", "/bin/bash", "/etc/profile.d/", "/usr/sbin", "/sbin")
    known += ("/proc/sys/", "/sys/class/net/", "/dev/null", "/dev/urandom", "/submitit")
    assert not [path for path in absolute if not path.startswith(known)]


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


def test_lint_finds_nothing(golden: str) -> None:
    assert lint(golden) == []


def test_a38_a39_gpus_are_asked_for_once_per_node_with_one_task(golden: str) -> None:
    options = dict(read_directives(golden))
    assert len(options) == len(read_directives(golden)), "no option twice"
    forms = [name for name in options if name.startswith("gpus") or name == "gres"]
    (site,) = re.findall(r"\), site (\S+) \(", golden.splitlines()[2])
    form = load_site(site).profile.gpu_request.form or "gpus-per-node"
    assert forms == ([] if form == "none" else [form])
    assert options["ntasks-per-node"] == "1"
    assert int(options["cpus-per-task"] or 0) >= 1
    assert "gpus-per-task" not in golden


def test_a05_a12_a13_a15_what_differs_between_nodes_is_expanded_in_the_task(golden: str) -> None:
    before, task = golden.split("<<'TASK' &\n")
    task, after = task.split("\nTASK\n")
    assert "SLURM_NODEID" not in before + after
    assert "SLURM_PROCID" not in golden
    assert golden.count("\nsrun ") == 1
    if "--standalone" not in task:
        assert "if (( SLURM_NODEID == 0 )); then is_host=1; fi" in task
        assert '--rdzv-conf="is_host=$is_host,' in task
        assert '--rdzv-id="${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}"' in task
        assert '--rdzv-backend=c10d --rdzv-endpoint="$RDZV_HOST:$RDZV_PORT"' in task
    assert "--node-rank" not in task


def test_a20_the_last_line_is_the_status(golden: str) -> None:
    assert golden.endswith('\nexit "$status"\n')


def test_a28_a29_a31_a34_a49_the_warning_goes_to_the_batch_shell_in_time(golden: str) -> None:
    options = dict(read_directives(golden))
    assert options["signal"] == "B:USR1@120"
    assert options["open-mode"] == "append"
    assert options["time"] == "01:00:00"


def test_a48_no_wckey(golden: str) -> None:
    assert "wckey" not in golden


def test_a58_only_a_container_job_needs_a_container_engine(golden: str) -> None:
    assert ("apptainer" in golden) == ("/images/torch.sif" in golden)


def test_a09_a18_nothing_names_a_fixed_port_or_a_master(golden: str) -> None:
    assert not re.search(r"29[45]00|MASTER_|localhost", golden)


def test_an_array_waits_for_the_run_before_it() -> None:
    options = dict(read_directives(golden_script("array-after")))
    assert options["array"] == "0-3%2"
    assert options["dependency"] == "afterok:1234"
    assert options["kill-on-invalid-dep"] == "yes"
    assert (options["output"] or "").endswith("/slurm-%A_%a.log")


def test_the_header_says_what_came_from_where() -> None:
    head = golden_script("osc-ascend").splitlines()
    assert "fsdpkit 0.0.0" in head[1]
    assert head[2].startswith("# template torchrun ")
    assert "#   nodes = 2 (command line)" in head
    assert "#   partition quad (site: the first that fits)" in head
