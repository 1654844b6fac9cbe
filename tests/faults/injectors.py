"""What clusters do to a run, one function each. Called while the run is held in a phase."""

from __future__ import annotations

from tests.faults.trial import PATIENCE_S, Trial
from tests.slurm_cluster.machines import poll

LEFT = "node2"
"""The node of rank 1, which is lost in most cases; the job's head is node1."""
HEAD = "node1"


# Warnings


def warn_shell(trial: Trial) -> None:
    """What `--signal=B:USR1@…` does before the time limit."""
    _signal(trial, "USR1", "--batch")


def warn_steps(trial: Trial) -> None:
    """What a site does that only sends SIGTERM, to every process of the step."""
    _signal(trial, "TERM")


def warn_twice(trial: Trial) -> None:
    """Ranks that have heard of it once go on as they decided."""
    warn_shell(trial)
    warn_shell(trial)
    warn_steps(trial)


def near_time_limit(trial: Trial) -> None:
    """Slurm itself finds that the end is near; the next attempt gets more time."""
    cluster = trial.bed.cluster
    cluster.set_time_left(trial.job_id, 1)
    trial.wait_warned()
    cluster.set_time_left(trial.job_id, 15)


def _signal(trial: Trial, name: str, *words: str) -> None:
    done = trial.bed.cluster.run(["scancel", f"--signal={name}", *words, trial.job_id])
    assert done.returncode == 0, done.stderr
    trial.wait_warned()


# Preemption


def preempt_with_grace(trial: Trial) -> None:
    _set_grace(trial, 30)
    _outrank(trial)
    trial.wait_warned()


def preempt_at_once(trial: Trial) -> None:
    _set_grace(trial, 0)
    _outrank(trial)
    poll(lambda: trial.job()["JobState"] != "RUNNING", PATIENCE_S, "the preemption")


def _set_grace(trial: Trial, seconds: int) -> None:
    words = ["scontrol", "update", "PartitionName=main", f"GraceTime={seconds}"]
    assert trial.bed.cluster.run(words).returncode == 0


def _outrank(trial: Trial) -> None:
    """A more important job wants every node, for a moment."""
    words = ["--partition=high", "--nodes=3", "--exclusive", "--account=pas1234"]
    trial.bed.cluster.submit(*words, "--output=/dev/null", "--wrap=true")


# Processes


def kill_rank(trial: Trial) -> None:
    trial.rank(1).kill()


def stop_rank(trial: Trial) -> None:
    """It hangs: the process is there and does nothing."""
    trial.rank(1).suspend()


def kill_agent(trial: Trial) -> None:
    trial.agent(LEFT).kill()


def kill_head_agent(trial: Trial) -> None:
    trial.agent(HEAD).kill()


def stop_head_agent(trial: Trial) -> None:
    """It hangs, as on a file system that does not answer, and can tell nobody."""
    trial.agent(HEAD).suspend()


# Machines


def kill_node(trial: Trial) -> None:
    trial.bed.cluster.kill_node(LEFT)


def kill_head_node(trial: Trial) -> None:
    trial.bed.cluster.kill_node(HEAD)


def cut_node(trial: Trial) -> None:
    """Its processes go on, and hear of nobody."""
    trial.bed.cluster.cut(LEFT)


def restart_slurmd(trial: Trial) -> None:
    cluster = trial.bed.cluster
    pid = cluster.places.pid_file(f"slurmd.{LEFT}").read_text().strip()
    done = cluster.node_exec(LEFT, ["kill", pid])
    assert done.returncode == 0, done.stderr

    def gone() -> bool:
        return cluster.node_exec(LEFT, ["kill", "-0", pid]).returncode != 0

    poll(gone, PATIENCE_S, "end of slurmd")
    cluster.start_node(LEFT)


def restart_controller(trial: Trial) -> None:
    trial.bed.cluster.restart_controller()


# Checkpoints


def tear_newest_checkpoint(trial: Trial) -> None:
    """As after a power cut on storage that lied: a named file is shorter than it was written."""
    newest = trial.task.checkpoints / f"step-{max(trial.saved())}"
    largest = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2)


def tear_newest_checkpoint_and_kill_rank(trial: Trial) -> None:
    tear_newest_checkpoint(trial)
    trial.good = trial.saved()[:-1]
    kill_rank(trial)
