"""The client against commands that misbehave as real ones do: banners, silence, refusals."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.refusals import remedy_for
from fsdpkit.scheduling.sbatch_answer import SbatchAnswer, parse_sbatch
from fsdpkit.scheduling.slurm import Round, SlurmClient, SubmissionUnconfirmed
from fsdpkit.scheduling.states import JobState
from tests.conftest import Command
from tests.programs import Fsdpkit, until

MARK = JobMark("fsdpkit:r", 501, "r/job.sbatch")


def states(*job_ids: str) -> dict[str, JobState]:
    """What the client says of jobs of this mark."""
    found = SlurmClient().states([MarkedJob(job_id, MARK) for job_id in job_ids])
    return {job.id: state for job, state in found.items()}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("77\n", SbatchAnswer("77", None)),
        ("77;pitzer\n", SbatchAnswer("77", "pitzer")),
        ("this job 2 nodes charged to PAS1\n77;pitzer\n", SbatchAnswer("77", "pitzer")),
        ("77\nthank you for using job 3 of our service\n", SbatchAnswer("77", None)),
        ("Submitted batch job 77 on cluster pitzer\n", SbatchAnswer("77", "pitzer")),
        ("Submitted batch job 77\n", SbatchAnswer("77", None)),
        ("77\n77\n", SbatchAnswer("77", None)),
        ("77\nhours left:\n5000\n", None),
        ("Submitted batch job 76\nSubmitted batch job 77\n", None),
        ("this job 2 nodes charged\n", None),
        ("", None),
    ],
)
def test_the_job_id_is_found_among_what_a_site_prints(
    text: str, answer: SbatchAnswer | None
) -> None:
    """A62, L4: a banner is not the answer, and the cluster is kept."""
    assert parse_sbatch(text) == answer


def test_sbatch_gets_parsable_and_the_cluster(command: Command, tmp_path: Path) -> None:
    command("sbatch", f'printf "%s\\n" "$@" > {tmp_path}/args; echo "5;ascend"')
    answer = SlurmClient("ascend").submit(tmp_path / "a script.sh")
    assert answer == SbatchAnswer("5", "ascend")
    assert (tmp_path / "args").read_text().splitlines() == [
        "--parsable", "-M", "ascend", str(tmp_path / "a script.sh"),
    ]  # fmt: skip


def test_a_job_is_not_told_which_clusters_the_person_asks(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own scontrol would wait for slurmdbd, which compute nodes may not reach."""
    monkeypatch.setenv("SLURM_CLUSTERS", "ascend,pitzer")
    command("sbatch", f'printf "%s\\n" "$@" $SLURM_CLUSTERS > {tmp_path}/told; echo "5;pitzer"')
    assert SlurmClient().submit(tmp_path / "x") == SbatchAnswer("5", "pitzer")
    told = (tmp_path / "told").read_text().splitlines()
    assert told == ["--parsable", "--clusters=ascend,pitzer", str(tmp_path / "x")]


def test_a_refusal_shows_sbatch_s_words_and_the_remedy(command: Command, tmp_path: Path) -> None:
    command("sbatch", 'echo "sbatch: error: Invalid partition name specified" >&2; exit 1')
    with pytest.raises(SchedulerError) as caught:
        SlurmClient().submit(tmp_path / "x")
    assert "Invalid partition name" in str(caught.value)
    assert "sinfo -s" in str(caught.value)


def test_a_silent_sbatch_is_ended_and_leaves_the_answer_open(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "silence").touch()
    command("sbatch", f"exec tail -f {tmp_path}/silence")
    with pytest.raises(SubmissionUnconfirmed, match="sbatch has not answered"):
        SlurmClient(submit_timeout_s=1).submit(tmp_path / "x")
    running = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert [words for words in running if str(tmp_path) in words] == []


def test_an_sbatch_that_sleeps_is_quoted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 26.05's words; at MaxJobCount it goes on trying for minutes."""
    words = "Slurm job queue full, sleeping and retrying"
    command("sbatch", f'echo "sbatch: error: {words}" >&2; touch {tmp_path}/said; exec sleep 600')
    communicate = subprocess.Popen.communicate

    def once_said(process: Any, *given: Any, **named: Any) -> Any:
        until((tmp_path / "said").exists)
        return communicate(process, *given, **named)

    monkeypatch.setattr(subprocess.Popen, "communicate", once_said)
    with pytest.raises(SubmissionUnconfirmed, match=rf"not answered within 2 s \({words}\)"):
        SlurmClient(submit_timeout_s=2).submit(tmp_path / "x")


def test_an_answer_without_a_job_id_leaves_it_open(command: Command, tmp_path: Path) -> None:
    command("sbatch", 'echo "this job 2 nodes charged"')
    with pytest.raises(SubmissionUnconfirmed, match="this job 2 nodes charged"):
        SlurmClient().submit(tmp_path / "x")


@pytest.mark.parametrize(
    "sbatch",
    [
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv "
        "operation' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Zero Bytes were transmitted or "
        "received' >&2; exit 1",
        "echo 77; echo 'the wrapper itself failed' >&2; exit 1",
    ],
)
def test_an_answer_that_was_lost_on_its_way_is_no_refusal(
    command: Command, tmp_path: Path, sbatch: str
) -> None:
    command("sbatch", sbatch)
    with pytest.raises(SubmissionUnconfirmed):
        SlurmClient().submit(tmp_path / "x")


def test_a_controller_that_was_never_reached_has_no_job(command: Command, tmp_path: Path) -> None:
    words = "Unable to contact slurm controller (connect failure)"
    command("sbatch", f"echo 'sbatch: error: Batch job submission failed: {words}' >&2; exit 1")
    with pytest.raises(SchedulerError) as caught:
        SlurmClient().submit(tmp_path / "x")
    assert not isinstance(caught.value, SubmissionUnconfirmed)


def test_own_jobs_are_asked_for_by_who_runs_the_command(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `su` or in a container LOGNAME may be somebody else's."""
    monkeypatch.setenv("LOGNAME", "somebody")
    command("squeue", f'printf "%s\\n" "$@" > {tmp_path}/args')
    SlurmClient().find_by_comments(["fsdpkit:x"], Round())
    words = (tmp_path / "args").read_text().splitlines()
    assert words[words.index("-u") + 1] == str(os.getuid())


def test_without_sbatch_the_local_cluster_is_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerError, match="--cluster local"):
        SlurmClient().submit(tmp_path / "x")


def test_a_source_that_fails_is_passed_over(command: Command) -> None:
    """A41: squeue forgot the job, sacct is off, scontrol still knows it."""
    command("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    command("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    command(
        "scontrol",
        'echo "JobId=9 JobState=FAILED ExitCode=3:0 Command=/x WorkDir=/ Comment=fsdpkit:r"',
    )
    state = states("9")["9"]
    assert (state.source, state.exit_code) == ("scontrol", 3)


def test_a_running_job_s_word_wins_over_an_older_one(command: Command) -> None:
    """A requeued job waits again while accounting still has its first end."""
    command("squeue", "echo '9|PENDING|BeginTime||1|2|3|501|1|/x|fsdpkit:r'")
    command("sacct", "echo '9|PREEMPTED|0:0|0:0|None|n1|1|2|3|c|/r/job.sbatch|'")
    assert states("9")["9"].state == "PENDING"


def test_the_exit_code_comes_from_accounting_once_squeue_says_ended(command: Command) -> None:
    command("squeue", "echo '9|FAILED|NonZeroExitCode|n1|1|2|3|501|1|/x|fsdpkit:r'")
    command("sacct", "echo '9|FAILED|3:0|3:0|None|n1|1|2|3|c|/r/job.sbatch|'")
    state = states("9")["9"]
    assert (state.source, state.exit_code) == ("sacct", 3)


# Recorded on Slurm 26.05.5 (24.11.5 and 22.05.8 say the same): the first attempt's step ended with
# 75 and the job was queued again, the second attempt went well.
REQUEUED = """
case "$*" in
    *-X*) echo '5|COMPLETED|0:0|75:0|None|n1|1795710452|1795710458|1795710459|c|/r/job.sbatch|' ;;
    *) printf '5|0:0\\n5.batch|0:0\\n5.0|0:0\\n' ;;
esac
"""


def test_a_step_that_failed_before_a_requeue_is_not_the_last_attempt_s(command: Command) -> None:
    command("squeue", "exit 1")
    command("sacct", REQUEUED)
    state = states("5")["5"]
    assert state.describe() == "COMPLETED"
    assert (state.derived_exit_code, state.end_s) == (0, 1795710459)


def test_accounting_is_not_asked_about_a_job_that_runs(command: Command, tmp_path: Path) -> None:
    command(
        "squeue",
        "tail='1|2|3|501|1|/x|fsdpkit:r'; echo \"9|RUNNING|None|n1|$tail\"\n"
        'echo "8|PENDING|Priority||$tail"',
    )
    command("sacct", f"touch {tmp_path}/asked")
    assert states("9", "8")["8"].reason == "Priority"
    assert not (tmp_path / "asked").exists()


def test_a_job_nobody_knows_is_absent(command: Command) -> None:
    for name in ("squeue", "sacct", "scontrol"):
        command(name, "exit 1")
    assert states("9") == {}


def test_known_refusals_have_a_remedy() -> None:
    """A48: a wckey is never ours, and the message says where it can come from."""
    for words in (
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Requested time limit is invalid (exceeds some limit)",
        "Batch job submission failed: Requested node configuration is not available",
        "Batch job submission failed: Invalid qos specification",
        "Batch job submission failed: Memory required by task is not available",
        "Invalid wckey specification",
        "Unable to contact slurm controller (connect failure)",
        "fatal: Could not establish a configuration source",
    ):
        assert remedy_for(words), words
    assert remedy_for("something never seen") is None


@pytest.mark.parametrize(
    ("named", "helps"),
    [
        ("QOSMaxGRESPerJob", "--gpus"),
        ("QOSMaxSubmitJobPerUserLimit", "have ended"),
        ("QOSMaxWallDurationPerJobLimit", "--time"),
        ("QOSMinGRES", "more"),
        ("AssocGrpCPUMinutesLimit", "--time"),
    ],
)
def test_a_refusal_by_a_limit_has_that_limit_s_remedy(named: str, helps: str) -> None:
    """What sbatch says of each ends with the same sentence, which mentions time limits."""
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    remedy = remedy_for(f"sbatch: error: {named}\nsbatch: error: {policy}") or ""
    assert helps in remedy
    assert ("--time" in remedy) == (helps == "--time")


def test_a_person_s_defaults_for_slurm_s_commands_change_no_answer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SCANCEL_INTERACTIVE` would have scancel ask, and take no answer for a no."""
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    monkeypatch.setenv("SCONTROL_ALL", "1")
    command("scancel", f"env > {tmp_path}/env")
    command("squeue", "echo '501|1|/x|fsdpkit:r'")
    SlurmClient().cancel(MarkedJob("7", MARK))
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "SCANCEL_INTERACTIVE" not in names
    assert "SCONTROL_ALL" in names
    assert scrubbed({"SQUEUE_FORMAT": "%i", "PYTHONINSPECT": "1"}) == ({}, [])


@pytest.mark.parametrize(
    ("squeue", "why"),
    [
        ("echo '501|1|/x|fsdpkit:s'", "is not the one"),
        ("echo '502|1|/x|fsdpkit:r'", "is not the one"),
        ("echo '501|1|/x|fsdpkit:r'; echo '501|1|/x|(null)'", "is not the one"),
        ("echo '501|1|/x|fsdpkit:r|and more'", "is not the one"),
        ("echo '501|1|/x|fsdpk'", "is not the one"),
        ("echo '501|1'", "is not the one"),
        ("echo '|||'", "is not the one"),
        ("echo CLUSTER: c", "knows no job"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
    ],
)
def test_nothing_is_done_to_a_job_by_its_number_alone(
    command: Command, tmp_path: Path, squeue: str, why: str
) -> None:
    command("squeue", squeue)
    for name in ("scancel", "scontrol"):
        command(name, f"touch {tmp_path}/done")
    for act in (SlurmClient().cancel, SlurmClient().release):
        with pytest.raises(SchedulerError, match=why):
            act(MarkedJob("7", MARK))
    assert not (tmp_path / "done").exists()


def test_scrubbing_keeps_how_to_reach_slurm_and_drops_what_a_job_left() -> None:
    """A36: SLURM_CONF stays, SLURM_CPU_BIND and SBATCH_PARTITION go, ranks go inside a job."""
    environ = {"SLURM_CONF": "/c", "SLURM_CLUSTERS": "a", "SLURM_CPU_BIND": "x", "PATH": "/bin",
               "SBATCH_PARTITION": "p", "SLURM_JOB_ID": "3", "RANK": "1", "OMP_NUM_THREADS": "1",
               "PMIX_RANK": "1", "PMIX_MCA_gds": "hash",
               "FSDPKIT_RUN_DIR": "/r", "FSDPKIT_SITE_PATH": "/s"}  # fmt: skip
    kept, removed = scrubbed(environ)
    assert set(kept) == {
        "SLURM_CONF",
        "SLURM_CLUSTERS",
        "PATH",
        "PMIX_MCA_gds",
        "FSDPKIT_SITE_PATH",
    }
    assert "SLURM_CPU_BIND" in removed
    outside, _ = scrubbed({"OMP_NUM_THREADS": "1", "SBATCH_PARTITION": "p"})
    assert outside == {"OMP_NUM_THREADS": "1"}


def test_a_hanging_sbatch_keeps_the_run_and_says_how_to_find_it(
    command: Command, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    command("sbatch", 'echo "a banner, and no id"')
    command("squeue", "exit 0")
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    done = fsdpkit("submit", str(script), "--cluster", "generic", "--nodes", "2", status=69)
    (directory,) = (tmp_path / "runs").iterdir()
    assert f"fsdpkit status {directory}" in done.stderr
    shown = fsdpkit("status", str(directory))
    assert "not confirmed" in shown.stdout
