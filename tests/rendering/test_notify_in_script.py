"""`[notify]` in the script: directives for Slurm's mail, and when the shell calls the command."""

from __future__ import annotations

import contextlib
import shutil
import signal

import psutil
import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.errors import ConfigError
from fsdpkit.rendering.directives import read_directives
from tests.programs import ran, until
from tests.rendering.bash_stubs import Bash, RenderScript

COMMAND = {"notify.command": ["/nowhere/tell", "$HOME; `x`"]}
# What the shell calls, in order; the job's own command is none of the shell's business.
CALLS = 'if [[ "$*" == *notifying* ]]; then echo "${*:4}" >>"$RECORD/calls"; exit; fi\n'


@pytest.fixture
def calling(shell: Bash) -> Bash:
    shell.stubs["python"] = CALLS + shell.stubs["python"]
    shell.stubs["sleep"] = "[[ $1 == 600 ]] || exec /usr/bin/sleep $1"
    return shell


def calls(shell: Bash) -> list[str]:
    path = shell.record / "calls"
    return path.read_text().splitlines() if path.exists() else []


def failed(shell: Bash, **environment: str) -> None:
    """The agents leave the verdict that a node was lost, and srun 137."""
    shell.environment.update(SRUN_STATUS="137", **environment)
    shell.verdict(cause="node-failure", status=71, message="node2: gone", lost=["node2"])


# ---- Mail


def asked(script: str) -> dict[str, str | None]:
    return dict(read_directives(script))


def test_slurm_sends_mail_for_what_was_asked(render_script: RenderScript) -> None:
    every = asked(render_script(options={"notify.mail": "alex@example.org"}))
    assert (every["mail-user"], every["mail-type"]) == ("alex@example.org", "END,FAIL,REQUEUE")
    options = {"notify.mail": "o'neil#1@x.org", "notify.on": ["failure", "failure"]}
    some = asked(render_script(options=options))
    assert (some["mail-user"], some["mail-type"]) == ("o'neil#1@x.org", "FAIL")
    assert not {"mail-user", "mail-type"} & asked(render_script()).keys()


@pytest.mark.parametrize("address", ["", "a b@x.org", "-a", "a@x.org\n", "a\x07@x.org", "a\u2028b"])
def test_what_mail_would_misread_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"notify\.mail"):
        load_job("t5", options={"notify.mail": address})


def test_an_event_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"notify\.on"):
        load_job("t5", sets=['notify.on=["begin"]'])


# ---- The command


def test_a_job_without_a_command_gets_the_script_without_it(render_script: RenderScript) -> None:
    assert "notify" not in render_script(options={"notify.mail": "alex@example.org"})


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_and_the_command_is_not_in_the_script(
    render_script: RenderScript,
) -> None:
    options = {**COMMAND, "environment.container": "/images/torch.sif"}
    profile = {"container": {"engine": "apptainer"}}
    script = render_script(options=options, profile=profile)
    done = ran(["shellcheck", "-"], input=script)
    assert (done.stdout, done.returncode) == ("", 0)
    assert "/nowhere/tell" not in script


@pytest.mark.parametrize("status", [0, 42])
def test_it_is_called_once_at_the_end_with_the_jobs_status(status: int, calling: Bash) -> None:
    calling.environment["SRUN_STATUS"] = str(status)
    calling.ran(options=COMMAND, status=status)
    assert calls(calling) == [f"end {status}"]


def test_a_requeue_is_told_once_and_only_after_slurm_has_done_it(calling: Bash) -> None:
    failed(calling, REQUEUE="1")
    calling.stubs["scontrol"] += '[[ $1 == show ]] || echo "scontrol $1" >>"$RECORD/calls"\n'
    calling.ran(options=COMMAND)
    assert calls(calling) == ["scontrol requeue", "requeued 71"]


def test_a_requeue_by_slurm_itself_is_told_as_one(calling: Bash) -> None:
    failed(calling, REQUEUE="1")
    calling.stubs["scontrol"] = calling.stubs["scontrol"].replace("Restarts=0", "Restarts=1")
    done = calling.ran(options=COMMAND)
    assert calls(calling) == ["requeued 71"]
    assert "queues the job again" in done.stderr


def test_a_check_that_fails_before_any_rank_is_told(calling: Bash) -> None:
    """An exported name of ours is no word of Slurm's."""
    calling.environment["action"] = "requeued"
    del calling.stubs["torchrun"]
    calling.ran(options=COMMAND, status=78)
    assert calls(calling) == ["end 78"]


def test_a_python_that_hangs_is_given_up_and_the_status_stays(calling: Bash) -> None:
    hang = "exec /usr/bin/sleep 600"
    calling.stubs["python"] = calling.stubs["python"].replace("exit;", f"{hang};", 1)
    calling.stubs["sleep"] = "[[ $1 != 5 ]] || exec /usr/bin/sleep 5"  # the shell's nap is over
    calling.environment["SRUN_STATUS"] = "5"
    done = calling.ran(options=COMMAND, status=5)
    assert "could not be called" in done.stderr


def test_slurms_sigterm_after_a_requeue_does_not_end_the_command(calling: Bash) -> None:
    failed(calling, REQUEUE="1")
    wait = (
        'echo began >>"$RECORD/calls"; while [[ ! -e $RECORD/go ]]; do /usr/bin/sleep 0.1; done; '
    )
    calling.stubs["python"] = calling.stubs["python"].replace("echo", wait + "echo", 1)
    process = calling.start(calling.script(options=COMMAND))
    until(lambda: calls(calling) == ["began"])
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a stand-in's nap is over
            one.send_signal(signal.SIGTERM)
    (calling.record / "go").touch()
    assert process.wait(timeout=300) == 71
    assert calls(calling) == ["began", "requeued 71"]
