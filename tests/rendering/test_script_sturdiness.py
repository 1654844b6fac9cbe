"""The rendered script where people's settings and site files would trip it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.programs import ran, until
from tests.rendering.bash_stubs import Bash, RenderScript


def test_a_posix_minded_environment_does_not_lose_the_status(shell: Bash) -> None:
    """A20: in POSIX mode bash forgets a child it has reaped, and says 127 of it."""
    shell.environment["POSIXLY_CORRECT"] = "1"
    done = shell.ran()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_during_start_up_is_heard(shell: Bash, tmp_path: Path) -> None:
    """A29: the node list takes its time, the warning comes meanwhile; nothing dies of it."""
    slowly = f"touch {tmp_path}/asked; until [[ -e {tmp_path}/go ]]; do /usr/bin/sleep 0.05; done; "
    shell.stubs["scontrol"] = slowly + shell.stubs["scontrol"]
    process = shell.start(shell.script())
    until((tmp_path / "asked").exists)
    os.kill(process.pid, signal.SIGUSR1)
    (tmp_path / "go").touch()
    assert process.wait(timeout=300) == 0
    assert (tmp_path / "run" / "stop-requested").exists()


def test_a_warning_on_a_full_disk_leaves_no_empty_request_to_stop(
    shell: Bash, tmp_path: Path
) -> None:
    """An empty one would say: and do not come back."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    (tmp_path / "run").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path / "run")]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    shell.environment["HOLD"] = "1"
    shell.stubs["rm"] = f'[[ $2 != */stop-requested ]] || echo >>{tmp_path}/rm; exec /bin/rm "$@"'
    try:
        process = shell.start(shell.script())
        until((shell.record / "args.1").exists)
        with contextlib.suppress(OSError), (tmp_path / "run" / "filler").open("wb", 0) as file:
            while file.write(b"x"):
                pass
        (tmp_path / "rm").unlink(missing_ok=True)  # of its beginning
        os.kill(process.pid, signal.SIGUSR1)
        until((tmp_path / "rm").exists)
        (shell.record / "go").touch()
        process.communicate(timeout=300)
        assert not (tmp_path / "run" / "stop-requested").exists()
    finally:
        subprocess.run(["umount", str(tmp_path / "run")], check=True)


LOST_HEAD = r"""
echo "$*" >>"$RECORD/scontrol"
case "$1 $2" in
    "show job")
        state=RUNNING; [[ ! -e $RECORD/over ]] || state=CANCELLED
        echo "JobId=12345 Requeue=1 Restarts=0 JobState=$state Reason=None NodeList=left" ;;
    "show hostnames")
        [[ $3 != left ]] || NODES=("${NODES[@]:1}")
        printf "%s\n" "${NODES[@]}" ;;
    requeue\ *) [[ -z ${REQUEUE_FAILS:-} ]] || exit 1; touch "$RECORD/over" ;;
esac
"""


@pytest.mark.parametrize(
    ("on_node_failure", "allowed", "asked"),
    [
        ("requeue", True, ["requeue 12345"]),
        ("requeue", False, [*["requeue 12345"] * 3, "scancel 12345"]),
        ("stop", True, ["scancel 12345"]),
    ],
)
def test_who_loses_the_head_node_of_a_job_with_spares_does_as_retry_says(
    shell: Bash,
    on_node_failure: str,
    allowed: bool,
    asked: list[str],
) -> None:
    """Slurm itself would leave the job running, with nothing in it, until its time limit."""
    shell.nodes = (*shell.nodes, "node3")
    if not allowed:
        shell.environment["REQUEUE_FAILS"] = "1"
    shell.stubs |= {
        "scontrol": LOST_HEAD,
        "scancel": 'echo "scancel $*" >>"$RECORD/scontrol"; touch "$RECORD/over"',
        "python": "exit 71",
        "grep": 'exec /bin/grep "$@"',
    }
    options = {"resources.spare": 1, "retry.on_node_failure": on_node_failure}
    shell.ran(options=options)
    told = (shell.record / "scontrol").read_text().splitlines()
    assert [line for line in told if line.startswith(("requeue", "scancel"))][: len(asked)] == asked


@pytest.mark.parametrize("nodes", [3, 64, 1024, 16384])
def test_together_the_nodes_without_their_head_ask_slurm_four_times_a_second_at_most(
    render_script: RenderScript, nodes: int
) -> None:
    script = render_script(options={"resources.spare": 1})
    loop = script[script.index("refused=0 pause=") : script.index("exit 71\n")]
    pretended = f"""
        exec 3>&2; timeout() {{ shift; "$@"; }}
        scontrol() {{ echo asked >&3; echo " JobState=RUNNING "; }}
        sleep() {{ SECONDS=$(( SECONDS + $1 )); }}
        job=1 FSDPKIT_ATTEMPT_DIR=/none SLURM_JOB_NUM_NODES={nodes} SLURM_NODEID={nodes - 1}
    """
    command = ["bash", "-c", f"{pretended}{loop}echo $SECONDS"]
    done = ran(command, status=0)
    asked = done.stderr.count("asked\n") * nodes / int(done.stdout)
    assert 0 < asked < 4.1


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2"])
def test_a_signal_to_the_step_is_the_agents_to_answer(shell: Bash, spare: int, name: str) -> None:
    """Slurm ends a step when its task is gone: with spare nodes, a shell around the agent."""
    shell.nodes = (*shell.nodes, "node3")[: 2 + spare]
    shell.stubs["python"] += (
        f"if [[ $SLURM_NODEID == 1 ]]; then\n"
        f"    trap 'touch \"$RECORD/answered\"; exit 42' {name}\n"
        f"    (( {spare} == 0 )) || kill -{name} $PPID\n"
        f"    kill -{name} $$\n"
        "fi\n"
    )
    shell.ran(options={"resources.spare": spare})
    assert (shell.record / "answered").exists()
    assert (shell.record / "status.1").read_text() == "42\n"


def test_an_exported_name_of_ours_is_no_status(shell: Bash) -> None:
    shell.environment.update(SRUN_STATUS="42", first="3")
    shell.ran(status=42)


def test_an_interface_without_a_cable_is_passed_over(shell: Bash) -> None:
    """A08: `up` says what an admin wants, the carrier whether a cable is there."""
    listed = 'echo "2: ibdead inet 10.1.0.1/24 scope global ibdead"'
    shell.stubs["ip"] = shell.stubs["ip"].replace(
        '"-4 -o addr show up scope global") ', f'"-4 -o addr show up scope global") {listed}; '
    )
    shell.stubs["cat"] = 'case ${1:-} in */ibdead/carrier) echo 0;; *) exec /bin/cat "$@";; esac'
    script = shell.script().replace("-e /sys/class/net/$name/carrier", "-n $name")
    done = shell.run(script, status=0)
    assert "sockets on eth1" in done.stdout


@pytest.mark.parametrize(
    ("hard", "soft"), [("4096", "4096"), ("unlimited", "1048576"), ("1073741816", "1048576")]
)
def test_open_files_are_raised_to_the_hard_limit_and_to_a_million_at_most(
    render_script: RenderScript, hard: str, soft: str
) -> None:
    _, begin, rest = render_script().partition("most_files=")
    lines = begin + rest.partition("\nulimit -S -u")[0]
    asked = f'ulimit() {{ if [[ $1 = -H ]]; then echo {hard}; else echo "$@"; fi; }}\n{lines}'
    done = ran(["bash", "-c", asked], status=0)
    assert done.stdout == f"-S -n {soft}\n"
