"""`[steps]`, `environment.prepend` and `[slurm]` in the script: when a person's own files run, and
what becomes of their status."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.errors import ConfigError, NotFoundError, RenderError
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.script import Plan, render
from tests.programs import until
from tests.rendering.bash_stubs import Bash, RenderScript

NOTES = 'echo "{0} $SLURMD_NODENAME ${{FSDPKIT_STATUS-}}" >>"$RECORD/steps"\n'


def steps(shell: Bash, **more: str) -> dict[str, Any]:
    """Options of a job whose three files note that they ran, and do `more`."""
    options = {}
    for key in ("before", "each_node", "after"):
        file = shell.root / f"{key} it's.sh"
        file.write_text(NOTES.format(key) + more.get(key, ""))
        options[f"steps.{key}"] = str(file)
    return options


def ran(shell: Bash) -> list[str]:
    return (shell.record / "steps").read_text().splitlines()


@pytest.fixture
def own(shell: Bash) -> Bash:
    shell.stubs["date"] = 'exec /usr/bin/date "$@"'
    return shell


def test_each_runs_at_its_time_and_the_last_has_the_status(own: Bash) -> None:
    own.environment["SRUN_STATUS"] = "42"
    done = own.ran(options=steps(own, after="exit 9"))
    assert ran(own) == ["before node1 ", "each_node node1 ", "each_node node2 ", "after node1 42"]
    assert done.returncode == 42  # the training's
    assert "steps.after ended with status 9" in done.stderr


def test_no_rank_starts_behind_a_first_step_that_failed(own: Bash) -> None:
    done = own.ran(options=steps(own, before="exit 3"), status=79)
    assert ran(own) == ["before node1 ", "after node1 79"]
    assert "node1: steps.before ended with status 3: bash " in done.stderr


def test_a_step_that_failed_on_a_node_is_on_record_as_the_first_failure(
    own: Bash, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    own.environment["SRUN_STATUS"] = "79"
    options = steps(own, each_node="[[ $SLURMD_NODENAME == node1 ]]")
    own.ran(options=options, status=79)
    (record,) = (run / "attempt-0" / "failures").iterdir()
    assert record.name.endswith("-node-1")
    assert record.read_text().startswith("own-step 79 node2 steps.each_node ended with status 1: ")


def test_the_warning_before_the_end_is_heard_while_the_first_step_runs(
    own: Bash, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    wait = 'touch "$RECORD/began"; until [[ -e $RECORD/go ]]; do /usr/bin/sleep 0.05; done'
    options = steps(own, before=wait)
    process = own.start(own.script(options=options))
    until((own.record / "began").exists)
    process.send_signal(signal.SIGUSR1)
    until((run / "stop-requested").exists)
    (own.record / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_job_that_is_queued_again_has_not_ended(own: Bash) -> None:
    own.environment.update(SRUN_STATUS="137", REQUEUE="1")
    own.verdict(cause="node-failure", status=71, message="", lost=["node2"])
    own.ran(options=steps(own))
    assert "requeue 12345" in (own.record / "scontrol").read_text()
    assert not any(line.startswith("after") for line in ran(own))


def test_steps_run_outside_the_container(own: Bash) -> None:
    own.stubs["apptainer"] = 'shift "$(( $# - 8 ))"; exec "$@"'
    options = {**steps(own), "environment.container": "/images/torch.sif"}
    profile = {"container": {"engine": "apptainer"}}
    script = own.script(options=options, profile=profile)
    for line in script.splitlines():
        if "_step[@]" in line:
            assert '"${FSDPKIT_CONTAINER[@]}" "${node_step' not in line
    own.run(script)
    assert [line.split()[0] for line in ran(own)][:3] == ["before", "each_node", "each_node"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("more", [{}, {"notify.command": ["/nowhere/tell"]}])
def test_shellcheck_finds_nothing(more: dict[str, Any], own: Bash, render_script: Any) -> None:
    options = {**steps(own), "environment.prepend": {"PATH": "/x"}, **more}
    script = render_script(options=options)
    done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"echo", ["bash"]),
        (b"#!/bin/sh\n", ["/bin/sh"]),
        (b"#! /usr/bin/env -S python3 -u \nx", ["/usr/bin/env", "-S python3 -u"]),
        (b"#!\n", ["bash"]),
        (b"\x7fELF\x02", []),
        (b"", ["bash"]),
    ],
)
def test_a_step_is_run_by_its_first_line(content: bytes, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "step"
    file.write_bytes(content)
    job = load_job("t5", options={"steps": {"before": str(file)}})
    assert [*job.steps["before"]] == [*words, str(file)]


def test_a_step_that_cannot_run_is_refused_before_anything_is_queued(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"steps\.after \(--set\): there is no file 'gone'"):
        load_job("t5", sets=["steps.after=gone"])
    dos = tmp_path / "dos.sh"
    dos.write_bytes(b"#!/bin/bash\r\necho\r\n")
    with pytest.raises(ConfigError, match=r"steps\.before: .*DOS line breaks"):
        load_job("t5", sets=[f"steps.before={dos}"])


# ---- What is put before a variable


@pytest.mark.parametrize(("had", "becomes"), [("/old", "/x lib:/old"), ("", "/x lib")])
def test_text_is_put_before_what_the_node_has(had: str, becomes: str, shell: Bash) -> None:
    shell.environment["LD_LIBRARY_PATH"] = had
    prepend = {"LD_LIBRARY_PATH": "/x lib", "NEW": "a", "BOTH": "b"}
    options = {"environment.prepend": prepend, "environment.variables": {"BOTH": "c"}}
    shell.ran(options=options)
    seen = shell.seen(1)
    assert (seen["LD_LIBRARY_PATH"], seen["NEW"], seen["BOTH"]) == (becomes, "a", "c")


@pytest.mark.parametrize("value", ["/x:$LD_LIBRARY_PATH", "/x:${LD_LIBRARY_PATH}"])
def test_a_variable_that_nothing_replaces_is_refused_with_the_key_to_use(value: str) -> None:
    way = r'environment\.prepend = \{ LD_LIBRARY_PATH = "/x" \}'
    with pytest.raises(ConfigError, match=way):
        load_job("t5", options={"environment": {"variables": {"LD_LIBRARY_PATH": value}}})
    with pytest.raises(ConfigError, match="is not replaced"):
        load_job("t5", options={"environment": {"prepend": {"PATH": "$HOME/bin"}}})
    for text in ("$(id)", "a$", "$1", "US$5"):
        load_job("t5", options={"environment.variables": {"X": text}})


# ---- Any option of sbatch


def asked(script: str) -> dict[str, str | None]:
    return dict(read_directives(script))


def test_any_option_of_sbatch_is_written_as_a_directive(render_script: RenderScript) -> None:
    given = {"licenses": 'a "b" $(id) #', "hold": True, "switches": 1, "nice": "", "tmp": False}
    every = asked(render_script(options={"slurm.options": given}))
    assert every["licenses"] == 'a "b" $(id) #'
    assert (every["hold"], every["switches"], every["nice"]) == (None, "1", None)
    assert "tmp" not in every


def test_all_memory_of_a_node_is_asked_for_as_slurm_spells_it(render_script: RenderScript) -> None:
    for value in (0, "0"):
        assert asked(render_script(options={"resources.memory": value}))["mem"] == "0"


# ---- Templates of others


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps.after", "/etc/hostname"), ("environment.prepend", {"PATH": "/x"})],
)
def test_a_template_that_would_leave_it_out_is_refused(
    key: str, value: Any, write_template: Any, tmp_path: Path
) -> None:
    template = write_template("#!/bin/bash\nsrun true\n")
    job = load_job("t5", options={key: value})
    site = load_site("generic")
    plan = Plan(job, site, template, place(job.spec.resources, site), tmp_path)
    with pytest.raises(RenderError, match=rf"does not pass on {key}, which the job has"):
        render(plan, tmp_path / "run")
