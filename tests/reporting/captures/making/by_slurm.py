"""What Slurm, a person or the machine room does to a job: limits, preemption, loss, refusal."""

from __future__ import annotations

from tests.faults import injectors
from tests.faults.trial import Trial
from tests.slurm_cluster.machines import poll

from .stage import HOLD_AT, STOP, Stage, scenario

HELD = {"hold": HOLD_AT}
NOBODY = "65534"
REASON_S = 60
"""How long slurmctld may take to say why a job waits."""


def running(trial: Trial) -> Trial:
    """Once rank 0 has printed something."""
    output = trial.task.attempt(0).rank_file(0, "out", 0)
    trial.until(lambda: output.exists() and output.stat().st_size > 0, "output of rank 0")
    return trial


# Time


@scenario("time-limit", "time-limit")
def time_limit(stage: Stage) -> Trial:
    """Slurm warns of the end, the ranks save and stop, and the policy says stop."""
    trial = stage.t5(HELD, sets=STOP)

    def shorten(_: Trial) -> None:
        stage.cluster.set_time_limit(trial.job_id, "2")
        trial.until(trial.task.stop_requested.exists, "Slurm's warning")

    return stage.strike(trial, shorten)


@scenario("time-limit-not-heeded", "time-limit")
def time_limit_not_heeded(stage: Stage) -> Trial:
    """The trainer does not react to the warning, and is ended."""
    trial = running(stage.linear("--step-s", "600", sets=STOP))
    stage.look(trial)
    stage.cluster.set_time_limit(trial.job_id, "1")
    return trial


# Preemption


@scenario("preemption", "preemption")
def preemption(stage: Stage) -> Trial:
    """A more important job wants the nodes; there is grace, and the policy says stop."""
    return stage.strike(stage.t5(HELD, sets=STOP), injectors.preempt_with_grace)


@scenario("preemption-at-once", "preemption")
def preemption_at_once(stage: Stage) -> Trial:
    """The same without grace for a job that may not be queued again."""
    return stage.strike(stage.t5(HELD, sets=STOP), injectors.preempt_at_once)


@scenario("exception-after-preemption", "exception", rank=1, node="node2")
def exception_after_preemption(stage: Stage) -> Trial:
    """The first attempt was preempted and queued again; the second has a failure of its own."""
    fails = {"break": "raise", "ranks": [1], "step": 5, "error": "RuntimeError"}
    trial = stage.t5({**HELD, **fails, "message": "bad row 5"}, sets=("retry.on_crash=stop",))
    return stage.strike(trial, injectors.preempt_at_once)


# People


@scenario("cancelled", "cancelled")
def cancelled(stage: Stage) -> Trial:
    """root cancels the job."""
    trial = running(stage.linear("--step-s", "600", sets=STOP))
    stage.look(trial)
    stage.slurm("scancel", trial.job_id)
    return trial


@scenario("cancelled-by-operator", "cancelled")
def cancelled_by_operator(stage: Stage) -> Trial:
    """An operator who is not the job's owner cancels it."""
    trial = running(stage.linear("--step-s", "600", sets=STOP))
    user = ("user", "nobody", "account=pas1234", "adminlevel=Operator")
    stage.slurm("sacctmgr", "--immediate", "add", *user)
    stage.look(trial)
    argv = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "scancel", trial.job_id]
    stage.directory.chmod(0o755)
    done = stage.cluster.run(argv)
    assert done.returncode == 0, done.stderr
    return trial


@scenario("cancelled-while-pending", "cancelled")
def cancelled_while_pending(stage: Stage) -> Trial:
    """The job is cancelled before it could start, so that it left nothing."""
    with stage.held_back():
        trial = stage.linear(sets=STOP)
        stage.slurm("scancel", trial.job_id)
    return trial


@scenario("cancelled-with-checkpoint", "cancelled")
def cancelled_with_checkpoint(stage: Stage) -> Trial:
    """`fsdpkit cancel --save`."""

    def cancel(trial: Trial) -> None:
        done = stage.bed.fsdpkit("cancel", str(trial.dir), "--save")
        assert done.returncode == 0, done.stderr

    return stage.strike(stage.t5(HELD, sets=STOP), cancel)


# Nodes


@scenario("node-failure", "node-failure", node="node2")
def node_failure(stage: Stage) -> Trial:
    """The second node loses its power."""
    return stage.strike(stage.t5(HELD, sets=STOP), injectors.kill_node)


@scenario("node-failure-head", "node-failure", node="node1")
def head_failure(stage: Stage) -> Trial:
    """The head node loses its power, and with it goes everybody who could say so but Slurm."""
    return stage.strike(stage.t5(HELD, sets=STOP), injectors.kill_head_node)


@scenario("node-failure-agent", "node-failure", node="node2")
def agent_killed(stage: Stage) -> Trial:
    """The agent of the second node is killed; its ranks die with it."""
    return stage.strike(stage.t5(HELD, sets=STOP), injectors.kill_agent)


# Refused


def refusing(stage: Stage, there: str, back: str, reason: str) -> Trial:
    """A job that is pending when a setting of its partition changes, and its reason then."""
    with stage.held_back():
        trial = stage.linear(sets=STOP)
        stage.look(trial)
        stage.partition(there)
    stage.undo.callback(stage.partition, back)
    wait_reason(trial, reason)
    return trial


def wait_reason(trial: Trial, reason: str) -> None:
    poll(lambda: reason in trial.job()["Reason"], REASON_S, f"the reason {reason}")


@scenario("refused", "refused", unfinished=True)
def partition_refused(stage: Stage) -> Trial:
    """The partition is closed to the account while the job is pending."""
    return refusing(stage, "AllowAccounts=pas1111", "AllowAccounts=ALL", "account")


# Pending


@scenario("pending", "pending", unfinished=True)
def pending(stage: Stage) -> Trial:
    """Other jobs have the nodes."""
    words = ("--nodes=3", "--exclusive", "--account=pas1234", "--output=/dev/null")
    other = stage.cluster.submit(*words, "--wrap=sleep 600")
    stage.cluster.wait_job(other, states={"RUNNING"})
    trial = stage.linear(sets=STOP)
    poll(lambda: trial.job()["Reason"] in ("Resources", "Priority"), REASON_S, "a reason")
    return trial


@scenario("pending-forever", "pending-forever", unfinished=True)
def held_by_admin(stage: Stage) -> Trial:
    """An administrator holds the job."""
    with stage.held_back():
        trial = stage.linear(sets=STOP)
        stage.slurm("scontrol", "hold", trial.job_id)
    poll(lambda: trial.job()["Reason"].startswith("JobHeld"), REASON_S, "the hold")
    return trial


@scenario("pending-forever-time-limit", "pending-forever", unfinished=True)
def beyond_time_limit(stage: Stage) -> Trial:
    """The partition's limit is lowered below the job's time while it is pending."""
    return refusing(stage, "MaxTime=5", "MaxTime=1-00:00:00", "PartitionTimeLimit")


@scenario("pending-forever-dependency", "pending-forever", unfinished=True)
def never_satisfied(stage: Stage) -> Trial:
    """The job waits for the success of one that has failed, and Slurm does not end it."""
    words = ("--nodes=1", "--account=pas1234", "--output=/dev/null")
    failing = stage.cluster.submit(*words, "--wrap=exit 3")
    stage.cluster.wait_job(failing)
    with stage.held_back():
        trial = stage.linear(sets=STOP)
        stage.slurm("scontrol", "hold", trial.job_id)
    waits = f"Dependency=afterok:{failing}"
    stage.slurm("scontrol", "update", f"JobId={trial.job_id}", waits)
    stage.slurm("scontrol", "release", trial.job_id)
    wait_reason(trial, "DependencyNeverSatisfied")
    return trial


@scenario("running", "running", unfinished=True)
def well(stage: Stage) -> Trial:
    """Nothing happens, and the run is on its way."""
    trial = stage.t5(HELD)
    return stage.strike(trial, lambda _: None)
