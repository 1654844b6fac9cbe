"""The rendered script, run by bash with stand-ins for srun, scontrol, ip, getent and python.

No Slurm, no torch: what is proved here is the script's own decisions. Each stand-in writes what it
was given to a file. Cases A01… are those of the launch reference.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs.exclusions import SINFO_FORMAT
from tests.programs import until
from tests.rendering.bash_stubs import IP, Bash, RenderScript


def test_the_whole_script_ends_with_status_0_and_starts_torchrun_on_each_node(shell: Bash) -> None:
    done = shell.ran(args=["--lr", "1 e$x", "it's"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "fsdpkit: 2 nodes (node1 node2), head node1 at 10.0.0.1:" in done.stdout
    for node in (0, 1):
        words = shell.arguments(node)
        start = words.index("fsdpkit.launching.agent")
        assert words[:2] == ["-u", "-c"]
        assert words[start + 1 : start + 3] == ["--", "torchrun"]
        assert words[-4:] == ["/home/alex/train.py", "--lr", "1 e$x", "it's"]
        assert "--nnodes=2" in words
        assert "--nproc-per-node=4" in words
        assert "--rdzv-backend=c10d" in words


@pytest.mark.parametrize(
    ("task", "own"), [("0", ["--lr", "1 $e"]), ("1", []), ("10", ["it's", "2", "10", "`id`"])]
)
def test_an_array_task_gets_its_own_arguments_behind_those_of_all(
    task: str, own: list[str], shell: Bash
) -> None:
    shell.environment.update(SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_JOB_ID="70")
    words = {"array_args": {"0": ["--lr", "1 $e"], "10": ["it's", "2", "10", "`id`"]}}
    done = shell.ran(args=["all"], options=words, array="0-10")
    assert (done.returncode, done.stderr) == (0, "")
    given = shell.arguments(0)
    assert given[given.index("/home/alex/train.py") + 1 :] == ["all", *own]


@pytest.mark.parametrize("task", [0, 1, 10])
def test_an_array_task_gets_its_own_variables_over_those_of_all(task: int, shell: Bash) -> None:
    nasty = 'it\'s a "run" $(id) `id` \\ 100%'
    own = {"0": {"OF_ALL": nasty, "NEW": "0"}, "10": {"NEW": "2"}}
    options = {
        "environment.variables": {"OF_ALL": "a", "LAST": "z"},
        "array_settings": {k: {"environment": {"variables": v}} for k, v in own.items()},
    }
    shell.environment.update(SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_JOB_ID="70")
    done = shell.ran(options=options, array="0-10")
    assert (done.returncode, done.stderr) == (0, "")
    seen = (shell.record / "env.0").read_text().splitlines()
    wanted = {0: [nasty, "0", "z"], 1: ["a", "", "z"], 10: ["a", "2", "z"]}
    for name, value in zip(("OF_ALL", "NEW", "LAST"), wanted[task], strict=True):
        assert [line for line in seen if line.startswith(f"{name}=")] == (
            [f"{name}={value}"] if value else []
        )


def test_a_variable_that_is_to_be_handed_on_and_did_not_arrive_ends_the_job(shell: Bash) -> None:
    options = {"environment.pass": ["HF_TOKEN", "OTHER"]}
    shell.environment.update(HF_TOKEN="", OTHER="x")
    script = shell.script(options=options)
    shell.run(script, status=0)
    del shell.environment["HF_TOKEN"]
    done = shell.run(script)
    assert (done.returncode, "$HF_TOKEN of environment.pass did not reach" in done.stderr) == (
        78,
        True,
    )


@pytest.mark.parametrize(("group", "mode"), [(False, 0o600), (True, 0o640)])
def test_what_the_script_makes_is_its_owners(
    group: bool, mode: int, shell: Bash, tmp_path: Path
) -> None:
    shell.stubs["srun"] = 'echo >"$FSDPKIT_ATTEMPT_DIR/made"'
    shell.ran(options={"files.group": group})
    assert (tmp_path / "run/attempt-0/made").stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_a_directory_that_another_user_put_in_the_place_of_the_run_s_is_left_alone(
    shell: Bash, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").touch()
    attempt = tmp_path / "run" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "failures").symlink_to(tmp_path / "thesis")
    os.chown(tmp_path / "run", 12345, 12345)
    done = shell.ran(status=78)
    assert f"the run directory {tmp_path}/run is not the one that was submitted" in done.stderr
    with (tmp_path / "thesis" / "chapter1").open("ab", 0) as chapter:  # as Slurm, by a link
        chapter.write(b"words")
        script = shell.script()
        assert shell.start(script, stdout=chapter).wait(timeout=300) == 78
    assert (tmp_path / "thesis" / "chapter1").read_text() == "words"
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter1"]
    assert not (shell.record / "srun").exists()


def test_no_link_of_a_run_leads_to_what_is_removed_or_overwritten(
    shell: Bash, tmp_path: Path
) -> None:
    """As it begins, and when it is exchanged while it runs."""
    thesis, run = tmp_path / "thesis", tmp_path / "run"
    thesis.mkdir()
    (thesis / "chapter1").touch()
    (run / "attempt-0").mkdir(parents=True)
    (run / "attempt-0" / "failures").symlink_to(thesis)
    shell.environment["HOLD"] = "1"
    process = shell.start(shell.script())
    until((shell.record / "args.1").exists)
    assert [path.name for path in thesis.iterdir()] == ["chapter1"]
    run.rename(tmp_path / "real")
    run.symlink_to(thesis)
    os.kill(process.pid, signal.SIGUSR1)
    until((tmp_path / "real" / "stop-requested").exists)
    assert [path.name for path in thesis.iterdir()] == ["chapter1"]
    run.unlink()
    (tmp_path / "real").rename(run)
    (shell.record / "go").touch()
    assert process.wait(timeout=300) == 0


@pytest.mark.parametrize(("group", "mode"), [(False, 0o600), (True, 0o640)])
def test_the_log_that_slurm_has_opened_is_no_more_open_than_the_run(
    group: bool, mode: int, shell: Bash, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    log.chmod(0o666)
    with log.open("ab") as opened:
        script = shell.script(options={"files.group": group})
        assert shell.start(script, stdout=opened).wait(timeout=300) == 0
    assert log.stat().st_mode & 0o777 == mode


# ---- The job's status


@pytest.mark.parametrize("status", [0, 1, 42, 75, 137, 255])
def test_a20_the_status_of_srun_is_the_last_word(status: int, shell: Bash) -> None:
    shell.environment["SRUN_STATUS"] = str(status)
    shell.ran(status=status)


@pytest.mark.parametrize("status", [0, 42])
def test_a20_a29_a31_two_warnings_leave_a_file_and_the_status_alone(
    status: int, shell: Bash, tmp_path: Path
) -> None:
    shell.environment.update(SRUN_STATUS=str(status), HOLD="1")
    process = shell.start(shell.script())
    until((shell.record / "args.1").exists)
    for _ in range(2):
        os.kill(process.pid, signal.SIGUSR1)  # the batch shell alone, as with --signal=B:
        until((tmp_path / "run" / "stop-requested").exists)
    (shell.record / "go").touch()
    assert process.wait(timeout=300) == status
    assert (tmp_path / "run" / "stop-requested").read_text() == "warning\n"


def test_a29_an_old_request_to_stop_does_not_stop_the_next_attempt(
    shell: Bash, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stop-requested").touch()
    shell.ran()
    assert not (tmp_path / "run" / "stop-requested").exists()


def test_a_request_to_cancel_holds_for_the_next_attempt_too(shell: Bash, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stop-requested").write_text("cancel\n")
    shell.ran()
    assert (tmp_path / "run" / "stop-requested").read_text() == "cancel\n"


LOST = {"cause": "node-failure", "status": 78, "message": "node2: gone", "lost": ["node2", "a;b"]}


SEND_BACK = {"SRUN_STATUS": "137", "REQUEUE": "1"}
THREE = "node1 node2 node3"


def test_a32_a55_a_lost_node_sends_the_job_back_without_it(shell: Bash, tmp_path: Path) -> None:
    """What is no node's name does not reach scontrol."""
    shell.environment.update(SEND_BACK, SINFO_NODES=THREE)
    shell.verdict(**(LOST | {"lost": ["a;b", "node2"]}))
    done = shell.ran()
    asked = (shell.record / "scontrol").read_text().splitlines()
    assert asked[-2:] == ["requeue 12345", "update JobId=12345 ExcNodeList=node2"]
    assert "node2: gone; queued again without node2" in done.stderr
    assert json.loads((tmp_path / "run/attempt-0/ending.json").read_text())["action"] == "requeue"
    (about_nodes,) = (shell.record / "sinfo").read_text().splitlines()
    assert about_nodes == f"-hNo {SINFO_FORMAT} -p main"


def test_a_lost_node_that_the_job_cannot_do_without_stays(shell: Bash) -> None:
    shell.environment.update(SEND_BACK)
    shell.verdict(**LOST)
    done = shell.ran()
    assert (shell.record / "scontrol").read_text().splitlines()[-1] == "requeue 12345"
    assert done.stderr.endswith("node2: gone; queued again\n")


def test_what_was_left_out_before_is_left_out_no_more_when_others_are(
    shell: Bash, tmp_path: Path
) -> None:
    """And nothing, when nothing is to be avoided any more."""
    (tmp_path / "run" / "attempt-0").mkdir(parents=True)
    past = {"action": "requeue", "status": 71, "cause": "node-failure", "why": "x"}
    left = json.dumps(past | {"avoid": ["node3"], "left_out": ["node3"]})
    (tmp_path / "run" / "attempt-0" / "ending.json").write_text(left)
    shell.environment.update(
        SEND_BACK, SINFO_NODES=THREE, EXCLUDED="node3", SLURM_RESTART_COUNT="1"
    )
    script, srun = shell.script(), shell.stubs["srun"]
    shell.verdict(**LOST)
    shell.run(script)
    shell.stubs["srun"] = srun
    shell.verdict(**(LOST | {"lost": []}))
    shell.run(script)
    asked = (shell.record / "scontrol").read_text().splitlines()
    changes = [line for line in asked if line.startswith("update")]
    assert changes == [f"update JobId=12345 ExcNodeList={names}" for names in ("node2", "")]


@pytest.mark.parametrize("options", [{}, {"array": "0-3"}])
def test_outside_slurm_the_script_says_so_and_touches_nothing(
    options: dict[str, Any], shell: Bash, tmp_path: Path
) -> None:
    names = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK")
    shell.environment.update(dict.fromkeys(names, ""))
    ending = tmp_path / "run" / "attempt-0" / "ending.json"
    ending.parent.mkdir(parents=True)
    ending.touch()
    done = shell.ran(**options)
    assert (done.returncode, done.stdout) == (78, "")
    said, record = done.stderr.splitlines()
    assert "Slurm has not started this script ($SLURM_JOB_ID is not set)" in said
    assert record.startswith("fsdpkit: failed: settings 78 ")
    assert ending.exists()


def test_a32_an_array_task_goes_back_alone(shell: Bash, tmp_path: Path) -> None:
    ids = {"SLURM_ARRAY_JOB_ID": "900", "SLURM_ARRAY_TASK_ID": "7"}
    shell.environment.update(SRUN_STATUS="75", REQUEUE="1", **ids)
    (tmp_path / "run").mkdir()
    shell.verdict(**LOST)
    shell.ran(array="0-9")
    assert "requeue 900_7" in (shell.record / "scontrol").read_text().splitlines()


def test_a_job_that_somebody_cancels_meanwhile_is_not_queued_again(shell: Bash) -> None:
    shell.environment.update(SRUN_STATUS="75", REQUEUE="1")
    shell.stubs["scontrol"] = (
        shell.stubs["scontrol"].replace(
            "JobState=RUNNING",
            "JobState=$( [[ -e $RECORD/asked ]] && echo COMPLETING || echo RUNNING )",
        )
        + 'if [[ "$1 ${2:-}" == "show job" ]]; then : >"$RECORD/asked"; fi\n'
    )
    shell.verdict(**LOST)
    done = shell.ran()
    assert "somebody ended the job meanwhile" in done.stderr
    assert "requeue 12345" not in (shell.record / "scontrol").read_text()


@pytest.mark.parametrize(
    ("answer", "cancelled"),
    [
        ("end 1 8,9_4", ["--state=PENDING 8", "--state=PENDING 9_4"]),
        ("end 1 7,8", ["--state=PENDING 8"]),  # 7 is another's
        ("end 1", []),
        ("end 1 8;9", []),
        ("requeued 1 8", []),
    ],
)
def test_what_waits_for_the_job_is_cancelled_where_the_answer_says_so(
    shell: Bash, answer: str, cancelled: list[str]
) -> None:
    record = 'echo "$*" >>"$RECORD/scancel"'
    shell.stubs["scancel"] = record
    comment = "Comment=fsdpkit:${FSDPKIT_RUN_DIR##*/}"
    other = '[[ $* != "show job -o 7" ]] || { echo "JobId=7 Comment=x"; exit; }\n'
    ours = shell.stubs["scontrol"].replace("Reason=None", f"Reason=None {comment}")
    shell.stubs["scontrol"] = other + ours
    # It reads what Slurm says of the job to the end, as the real one does, before it answers.
    read = f'cat >"$RECORD/facts"; echo "{answer}"; exit'
    told = f'if [[ "$*" == *launching.ending* ]]; then {read}; fi\n'
    shell.stubs["python"] = told + shell.stubs["python"]
    shell.ran(status=1)
    asked = shell.record / "scancel"
    assert (asked.read_text().splitlines() if asked.exists() else []) == cancelled


UNSTARTED = "srun: error: Application launch failed: Socket timed out on send/recv operation"
FIRST = f"""
if [[ $* == *" true" ]]; then echo ready >>"$RECORD/srun"; exit 0; fi
if [[ ! -e $RECORD/tried ]]; then
    touch "$RECORD/tried"; cat >/dev/null; echo "{UNSTARTED}" >&2; exit 140
fi
"""


@pytest.mark.parametrize("decided", [False, True])
def test_a_node_whose_prolog_took_longer_than_srun_waits_gets_a_second_start(
    shell: Bash, decided: bool, tmp_path: Path
) -> None:
    """The job's log is this shell's standard output, in which srun's words are looked for."""
    for tool in ("stat", "tail", "grep"):
        shell.stubs[tool] = f'exec /usr/bin/{tool} "$@"'
    shell.stubs["srun"] = FIRST + shell.stubs["srun"]
    if decided:
        shell.verdict(cause="crash", status=3, message="rank 0 on node1: exit status 3")
    with (tmp_path / "log").open("wb") as log:
        status = shell.start(shell.script(), stdout=log).wait(timeout=180)
    record = shell.record / "srun"
    calls = record.read_text().splitlines() if record.exists() else []
    assert ("ready" in calls, len(calls)) == ((False, 0) if decided else (True, 2))
    assert status == (3 if decided else 0)


REFUSED = "srun: error: Unable to create step for job 12345: Invalid generic resource (gres)"


def test_a_step_that_slurm_cannot_make_sends_the_job_back(shell: Bash, tmp_path: Path) -> None:
    """A node of the attempt before may still hang on to its GPUs."""
    shell.environment.update(SRUN_STATUS="1", REQUEUE="1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slurm-12345.log").write_text(REFUSED + "\n")
    shell.stubs["srun"] = "exit 1"
    shell.ran()
    assert "requeue 12345" in (shell.record / "scontrol").read_text()


def test_a_step_that_slurm_will_never_make_ends_the_job(shell: Bash, tmp_path: Path) -> None:
    shell.environment.update(SRUN_STATUS="1", REQUEUE="1")
    (tmp_path / "run").mkdir()
    never = "srun: error: Unable to create step for job 12345: More processors requested than"
    (tmp_path / "run" / "slurm-12345.log").write_text(f"{never} permitted\n")
    shell.stubs["srun"] = "exit 1"
    shell.ran(status=78)
    assert "requeue" not in (shell.record / "scontrol").read_text()


def test_a_requeue_that_slurm_refuses_is_told_with_the_way_out(shell: Bash, tmp_path: Path) -> None:
    shell.environment.update(SRUN_STATUS="137", REQUEUE="1", REQUEUE_FAILS="1")
    shell.verdict(**LOST)
    done = shell.ran(status=78)
    assert f"could not queue the job again; to go on: fsdpkit resume {tmp_path}" in done.stderr


def test_what_is_done_is_done_whatever_srun_says_of_a_node_that_is_gone(shell: Bash) -> None:
    shell.environment.update(SRUN_STATUS="137", REQUEUE="1")
    shell.verdict()
    shell.ran(status=0)


def test_a_job_whose_last_question_cannot_be_answered_ends_with_sruns_status(shell: Bash) -> None:
    shell.environment.update(SRUN_STATUS="42", REQUEUE="1")
    shell.stubs["timeout"] = "exit 1"
    shell.stubs["python"] = shell.stubs["python"].replace("exec", "exit 1; exec")
    shell.ran(status=42)


RECORD = '{{"by":"rank","name":"node2","rank":1,"status":{},"words":"it\'s"}}'
FAILURES = {
    **{RECORD.format(status): ends for status, ends in ((3, 3), (300, 9), (0, 9), ("x", 9))},
    "exception 4 node2 words": 4,
    "nonsense": 9,
    "": 9,
}


@pytest.mark.parametrize(("line", "status"), FAILURES.items())
def test_a23_the_first_failure_that_can_be_read_is_the_jobs_status(
    line: str, status: int, shell: Bash
) -> None:
    shell.environment["SRUN_STATUS"] = "137"
    failures = "$FSDPKIT_ATTEMPT_DIR/failures"
    write = f'echo {shlex.quote(line)} >"{failures}/00000000000000000001-node-1-rank-4"\n'
    write += f'echo exception 9 node1 later >"{failures}/00000000000000000002-node-0"\n'
    shell.stubs["srun"] = write + shell.stubs["srun"]
    shell.ran(status=status)


def test_a21_a_failing_check_in_the_task_is_the_tasks_status(shell: Bash) -> None:
    shell.stubs["ip"] = IP.replace('get 10.0.0.1") echo', 'get 10.0.0.1") exit 2;; no) echo')
    done = shell.ran(status=78)
    assert "node2: there is no route to the head node's address 10.0.0.1" in done.stderr


def test_a22_a40_a46_there_is_one_step_with_cpus_and_an_end_for_all(shell: Bash) -> None:
    shell.ran(options={"parameters.wait_s": 90})
    (launch,) = (shell.record / "srun").read_text().splitlines()
    for word in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--kill-on-bad-exit=1"):
        assert word in launch.split()
    assert "--wait=90" in launch.split()
    assert launch.endswith("bash -p -s -- /home/alex/train.py")


# ---- Logs of attempts


def test_a34_every_attempt_has_a_folder_and_logs_are_appended_to(
    shell: Bash, tmp_path: Path
) -> None:
    shell.environment["SLURM_RESTART_COUNT"] = "3"
    script = shell.script()
    shell.run(script)
    assert (tmp_path / "run" / "attempt-3" / "failures").is_dir()
    assert shell.seen(0)["FSDPKIT_ATTEMPT_DIR"] == str(tmp_path / "run" / "attempt-3")
    assert "#SBATCH --open-mode=append" in script
    assert "--open-mode=append" in (shell.record / "srun").read_text()


def test_a63_each_array_task_has_its_number_folder_and_log(shell: Bash, tmp_path: Path) -> None:
    shell.environment.update(SLURM_ARRAY_JOB_ID="900", SLURM_ARRAY_TASK_ID="7")
    shell.ran(array="0-9", args=["--fold={array_task}", "$x"], status=0)
    assert shell.arguments(1)[-2:] == ["--fold=7", "$x"]
    assert (tmp_path / "run" / "task-7" / "attempt-0").is_dir()
    assert "/submitit/900_7_%t_log.out" in (shell.record / "srun").read_text()


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a$(touch x)b", "a#b", "100%j", "a;b", "é"])
def test_a64_a_run_directory_of_any_name_is_one_word(
    name: str, shell: Bash, tmp_path: Path
) -> None:
    done = shell.ran(run_dir=tmp_path / name)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / name / "attempt-0").is_dir()
    assert not (tmp_path / "x").exists()
    percent = str(tmp_path / name).replace("%", "%%")
    assert f"--output={percent}/submitit/12345_%t_log.out" in (shell.record / "srun").read_text()


def test_a_run_directory_that_cannot_be_made_is_said_so(shell: Bash, tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    done = shell.ran(status=78)
    assert f"node1: cannot write to the run directory {tmp_path}/run" in done.stderr


# ---- The environment


def test_a37_a44_a47_steps_keep_the_environment_and_ranks_share_the_cores(shell: Bash) -> None:
    options = {"environment.variables": {"NCCL_PROTO": "^LL128", "B": "a, b=$1 'd'"}}
    shell.environment["LD_LIBRARY_PATH"] = "/old"
    profile = {"environment": {"unset": ["LD_LIBRARY_PATH"]}}
    shell.ran(options=options, profile=profile)
    seen = shell.seen(1)
    assert seen["SLURM_EXPORT_ENV"] == "ALL"
    assert seen["PYTHONNOUSERSITE"] == "1"
    assert seen["OMP_NUM_THREADS"] == "4"  # 16 cores, 4 ranks
    assert (seen["NCCL_PROTO"], seen["B"]) == ("^LL128", "a, b=$1 'd'")
    assert "LD_LIBRARY_PATH" not in seen


@pytest.mark.parametrize(("cores", "threads"), [("16", "4"), ("7", "1"), ("2", "1")])
def test_a47_a_rank_has_at_least_one_thread(cores: str, threads: str, shell: Bash) -> None:
    shell.environment["SLURM_CPUS_PER_TASK"] = cores
    shell.ran()
    assert shell.seen(0)["OMP_NUM_THREADS"] == threads


def test_a47_the_threads_can_be_set(shell: Bash) -> None:
    shell.ran(options={"parameters.omp_threads": 3})
    assert shell.seen(0)["OMP_NUM_THREADS"] == "3"


def test_a_job_s_own_threads_reach_its_ranks_and_the_submitting_shell_s_do_not(shell: Bash) -> None:
    shell.environment |= {"SLURM_CPUS_PER_TASK": "16", "OMP_NUM_THREADS": "1"}
    shell.ran()
    assert shell.seen(0)["OMP_NUM_THREADS"] == "4"
    own = {"environment.variables": {"OMP_NUM_THREADS": "7"}}
    shell.ran(options=own)
    assert shell.seen(0)["OMP_NUM_THREADS"] == "7"


def test_a42_conda_is_activated_through_its_own_shell_code(shell: Bash) -> None:
    base = shell.root / "conda"
    (base / "etc" / "profile.d").mkdir(parents=True)
    # Like the real one, it trips over set -u.
    (base / "etc" / "profile.d" / "conda.sh").write_text(
        ': "$_UNSET_VARIABLE"\nconda() { : "$_UNSET_VARIABLE"; export CONDA_PREFIX="$2"; }\n'
    )
    shell.stubs["conda"] = f'[[ "$*" == "info --base" ]] && echo "{base}"'
    environment = {"environment.conda": "my env"}
    done = shell.ran(python=None, options=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert shell.seen(1)["CONDA_PREFIX"] == "my env"


CONDAS = {
    "is missing": (None, "there is no 'conda' here; load its module"),
    "does not answer": ("exit 1", "info --base' failed"),
    "is elsewhere": ("echo /nowhere", "there is no etc/profile.d/conda.sh in /nowhere"),
}


@pytest.mark.parametrize(("stub", "why"), CONDAS.values(), ids=CONDAS.keys())
def test_a42_a_conda_that_does_not_work_is_said_to(stub: str | None, why: str, shell: Bash) -> None:
    if stub:
        shell.stubs["conda"] = stub
    done = shell.ran(python=None, options={"environment.conda": "torch"}, status=78)
    assert f"fsdpkit: node1: {why}" in done.stderr.replace(f"'{shell.root}/bin/conda ", "")


def test_a43_modules_are_loaded_through_the_exported_function(shell: Bash) -> None:
    shell.environment["BASH_FUNC_module%%"] = '() { echo "$*" >>"$RECORD/modules"; : "$_UNSET"; }'
    profile = {"environment": {"purge_modules": True, "use_modules": ["/apps/my modules"]}}
    options = {"environment.modules": ["cuda/12.4", "my; module"]}
    shell.ran(profile=profile, options=options, status=0)
    loaded = (shell.record / "modules").read_text().splitlines()
    assert loaded == ["purge", "use /apps/my modules", "load cuda/12.4", "load my; module"]


def test_a43_a_missing_module_command_or_module_is_said_so(shell: Bash) -> None:
    script = shell.script(options={"environment.modules": ["cuda/12.4"]})
    if not any(
        Path("/etc/profile.d", n).exists() for n in ("lmod.sh", "modules.sh", "z00_lmod.sh")
    ):
        done = shell.run(script, status=78)
        assert "node1: there is no 'module' command" in done.stderr
    shell.environment["BASH_FUNC_module%%"] = "() { return 1; }"
    done = shell.run(script, status=78)
    assert "node1: cannot load the module cuda/12.4" in done.stderr


def test_a_virtual_environment_is_on_path_or_said_to_be_missing(
    shell: Bash, render_script: RenderScript
) -> None:
    shell.root.joinpath("venv").mkdir()
    script = render_script(options={"environment.venv": str(shell.root / "venv")})
    done = shell.run(script, status=78)
    assert f"there is no Python in {shell.root}/venv/bin; do the nodes see" in done.stderr
    (shell.root / "venv" / "bin").symlink_to(shell.root / "bin")
    shell.run(script, status=0)
    assert shell.seen(1)["VIRTUAL_ENV"] == str(shell.root / "venv")


def test_a_missing_torchrun_is_found_before_anything_starts(shell: Bash) -> None:
    del shell.stubs["torchrun"]
    done = shell.ran(status=78)
    assert "node1: there is no torchrun on PATH; is torch installed" in done.stderr
    assert not (shell.record / "srun").exists()


def test_a57_a59_a_container_sees_the_run_directory_and_brings_its_own_python(
    shell: Bash, tmp_path: Path
) -> None:
    del shell.stubs["torchrun"]
    shell.stubs["apptainer"] = 'printf "%s\\n" "$@" >"$RECORD/container.${SLURM_NODEID:-shell}"'
    profile = {"container": {"engine": "apptainer", "arguments": ["--nv"]}}
    options = {"environment.container": "/images/my torch.sif"}
    done = shell.ran(python=None, profile=profile, options=options)
    assert done.returncode == 70, "nothing ran in this container that could leave a verdict"
    words = (shell.record / "container.1").read_text().splitlines()
    binds = [f"--bind={tmp_path}/run", "--bind=/home/alex"]
    assert words[:6] == ["exec", "--nv", *binds, "/images/my torch.sif", "python"]
