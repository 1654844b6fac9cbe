"""The lint: each rule finds what it is for, and nothing in a good script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError
from fsdpkit.rendering import script as script_module
from fsdpkit.rendering.lint import LONG_OPTIONS, LintFinding, lint
from tests.programs import ran

RenderScript = Callable[..., str]
GOOD = """#!/bin/bash
# A comment, and a blank line:

#SBATCH --job-name=x --nodes=2
#SBATCH -A account
#SBATCH --gres=pfsdir:scratch
#SBATCH --gpus-per-node=4

set -euo pipefail    # don't stop
echo "pkill is a word here" 'and killall; pkill x' # pkill
srun --ntasks-per-node=1 bash -s <<'TASK' &
pkill_count=0
exec torchrun --rdzv-id="$SLURM_JOB_ID" train.py --stop 'a || echo localhost' pkill
TASK
status=0
wait $! || status=$?
exit "$status"
"""


def errors(script: str) -> list[LintFinding]:
    return [f for f in lint(script) if f.severity == "error"]


def test_a_good_script_has_no_findings() -> None:
    assert lint(GOOD) == []


BAD = {
    # what is put in place of what -> the line found, and what is said
    "no shebang": ("#!/bin/bash\n", "\n", 1, "no shebang"),
    "CRLF": ("--nodes=2\n", "--nodes=2\r\n", 4, "carriage return"),
    "NUL": ("--nodes=2", "--nodes=2\0", 4, "NUL"),
    "dead directive": ("set -euo", "true\n#SBATCH --time=3\nset -euo", 10, "does not read it"),
    "#SLURM": ("#SBATCH -A", "#SLURM -A", 5, "#SLURM"),
    "unknown option": (
        "--job-name",
        "--jobname",
        4,
        "Did you mean 'job-name'?",
    ),
    "option twice": ("--nodes=2", "--nodes=2 --nodes=3", 4, "--nodes again: only the last counts"),
    "unmatched quote": ("--nodes=2", '--nodes="2', 4, "sbatch cannot read this line: unmatched"),
    "two GPU forms": (
        "pfsdir:scratch",
        "gpu:a100:4",
        7,
        "two forms: --gres=gpu and --",
    ),
    "two GPU forms, mixed": ("pfsdir:scratch", "x,gpu:4", 7, "two forms"),
    "GPUs per task": (
        "gpus-per-node=4",
        "gpus-per-task=1",
        7,
        "gives the one task",
    ),
    "GPUs per task in srun": ("srun ", "srun --gpus-per-task=1 ", 11, "--gpus-per-task binds"),
    "launch node": ("status=0", "m=$SLURM_LAUNCH_NODE_IPADDR\nstatus=0", 15, "head node's address"),
    "echo localhost": ("status=0", "m=$(x || echo localhost)\nstatus=0", 15, "back to localhost"),
    "default localhost": ("status=0", 'm="${M:-localhost}"\nstatus=0', 15, "back to localhost"),
    "default 127": ("status=0", "m=${M-127.0.0.1}\nstatus=0", 15, "back to localhost"),
    "pkill": ("status=0", "pkill -f torchrun\nstatus=0", 15, "kills by name"),
    "killall in a list": ("status=0", "true; sudo killall python\nstatus=0", 15, "kills by name"),
    "pkill in a trap": ("status=0", "if x; then /usr/bin/pkill y; fi\nstatus=0", 15, "kills by"),
    "random id": ('"$SLURM_JOB_ID"', "$RANDOM", 13, "RANDOM differs on every node"),
    "conda init": ("status=0", "conda init bash\nstatus=0", 15, "conda init"),
    "open heredoc": ("<<'TASK'", "<<TASK", 11, "the here-document is not quoted"),
    "echo at the end": ('exit "$status"\n', "echo done\n", 17, "this command decides"),
    "exit 0": ('exit "$status"\n', "exit 0\n", 17, "this command decides"),
    "exit with another": ('exit "$status"\n', 'exit "$other"\n', 17, "this command decides"),
    "nothing waits": (GOOD[GOOD.index("status=0") :], "", 11, "nothing waits"),
    "failure dropped": ("<<'TASK' &", "<<'TASK' || true", 11, "thrown away"),
}


@pytest.mark.parametrize(("old", "new", "line", "why"), BAD.values(), ids=BAD.keys())
def test_a_bad_script_is_found_out(old: str, new: str, line: int, why: str) -> None:
    assert old in GOOD
    found = errors(GOOD.replace(old, new, 1))
    assert [(f.line, why in f.message) for f in found] == [(line, True)], found


GOOD_ENDS = [
    "srun x\n",
    "srun x\nexit $?\n",
    "set -o pipefail\nsrun x | tee log\n",
    "exec srun x\n",
    "srun x \\\n  --y\n",
]


@pytest.mark.parametrize("end", GOOD_ENDS)
def test_a20_ends_that_keep_the_status(end: str) -> None:
    assert errors(f"#!/bin/bash\n{end}") == []


@pytest.mark.parametrize(
    "end", ["srun x | tee log\n", "srun x\necho done\nexit $?\n", "srun x; true\necho\n"]
)
def test_a20_a21_ends_that_lose_the_status(end: str) -> None:
    assert errors(f"#!/bin/bash\n{end}")


def test_what_only_a_person_can_judge_is_a_warning() -> None:
    (variable,) = lint(GOOD.replace("job-name=x", "job-name=$USER"))
    assert (variable.line, variable.severity) == (4, "warning")
    assert "nothing is expanded in a directive" in variable.message
    (large,) = lint(GOOD.replace("# A comment", "# " + "x" * 70_000))
    assert (large.severity, "Open OnDemand" in large.message) == ("warning", True)


def test_a_script_beyond_slurms_limit_is_an_error() -> None:
    assert (
        "max_script_size" in errors(GOOD.replace("# A comment", "# " + "x" * 4_000_000))[0].message
    )


def test_options_of_a_sites_plugins_can_be_named() -> None:
    with_image = GOOD.replace("--job-name=x", "--image=nersc/pytorch")
    assert lint(with_image, plugin_options=["image"]) == []
    assert "no option --image" in errors(with_image)[0].message


@pytest.mark.skipif(which("man") is None or which("sbatch") is None, reason="needs sbatch's manual")
def test_the_options_are_those_of_the_manual() -> None:
    done = ran(["man", "sbatch"])
    named = set(re.findall(r"^ +(?:-\w, )?--([a-z][a-z-]+)(?=[=\[ ]|$)", done.stdout, re.MULTILINE))
    if not named:
        pytest.skip("sbatch's manual is not installed")
    assert named - LONG_OPTIONS == set()


def test_a_template_that_makes_a_bad_script_is_refused(
    write_template: Callable[..., Template],
    render_script: RenderScript,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = write_template("#!/bin/bash\nsrun x\necho done\n")
    real = script_module.trace_template
    monkeypatch.setattr(
        script_module, "trace_template", lambda _, context, __: real(template, context)
    )
    with pytest.raises(RenderError, match=r"(?s)must not be submitted:.*line 3: this command"):
        render_script()


_PRINTABLE = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), max_size=40)
_NASTY = st.sampled_from(
    [
        "pkill x",
        "; killall y",
        "|| echo localhost",
        "<<EOF",
        "$(x)",
        "#SBATCH",
        "srun",
        "exit 0",
        "'",
    ]
)


@given(st.lists(_PRINTABLE | _NASTY, max_size=6))
@settings(max_examples=25, suppress_health_check=[*HealthCheck])
def test_no_value_of_a_person_sets_off_the_lint(
    render_script: RenderScript, values: list[str]
) -> None:
    render_script(args=values, run_dir=Path("/home/alex/runs/" + "".join(values).replace("\\", "")))
