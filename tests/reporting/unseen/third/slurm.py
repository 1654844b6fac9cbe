"""What Slurm says, in its states, its reasons, and in the job's log."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import before, failing, stack
from tests.reporting.unseen.words import aborted

LOUD = Rank(
    err=stack("/home/k.meyer/proj/train.py:201 main | loss.backward()") + "KeyboardInterrupt\n",
    status=130,
)


def state(
    name: str,
    slurm: str,
    causes: str,
    *,
    others: Rank | None = None,
    node: str | None = "any",
    batch: str = "",
    **fields: object,
) -> Case:
    best, *also = causes.split("|")
    return Case(
        name=name,
        source="sacct(1), squeue(1)",
        nodes=2,
        gpus=4,
        slurm=slurm,
        others=others or Rank(err="step 40 loss 2.2\n"),
        batch=batch,
        want=wanted(best, *also, rank="any", node=node),
        **fields,
    )  # type: ignore[arg-type]


CASES = [
    state("cancelled-by-root", "CANCELLED by 0|0:15", "cancelled", others=LOUD),
    state(
        "time-over-and-interrupts-are-loud",
        "TIMEOUT|0:15",
        "time-limit",
        others=LOUD,
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE TO TIME LIMIT ***\n",
    ),
    state(
        "preempted-and-interrupts-are-loud",
        "PREEMPTED|0:15",
        "preemption",
        others=LOUD,
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE TO PREEMPTION ***\n",
    ),
    state(
        "node-failed-and-networks-are-loud",
        "NODE_FAIL|1:0",
        "node-failure",
        others=aborted(0),
        batch="srun: error: Node failure on node2\nslurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
    ),
    state("deadline", "DEADLINE|0:15", "time-limit"),
    state("boot-of-a-cloud-node-failed", "BOOT_FAIL|0:0", "node-failure"),
    state(
        "waits-for-the-groups-minutes",
        "PENDING|0:0|AssocGrpGRESMinutes",
        "pending-forever|pending|refused",
    ),
    state("waits-for-the-groups-nodes", "PENDING|0:0|AssocGrpNodeLimit", "pending|pending-forever"),
    state(
        "waits-for-a-maintenance",
        "PENDING|0:0|ReqNodeNotAvail, Reserved for maintenance",
        "pending|pending-forever",
    ),
    state("longer-than-the-partition", "PENDING|0:0|PartitionTimeLimit", "pending-forever"),
    state("waits-for-licences", "PENDING|0:0|Licenses", "pending"),
    state("dependency-never", "PENDING|0:0|DependencyNeverSatisfied", "pending-forever"),
    state("account-of-nobody", "PENDING|0:0|InvalidAccount", "refused|pending-forever"),
    state("qos-of-nobody", "PENDING|0:0|InvalidQOS", "refused|pending-forever"),
    state("held-by-an-administrator", "PENDING|0:0|JobHeldAdmin", "pending-forever"),
    state("waits-for-a-reservation", "PENDING|0:0|Reservation", "pending|pending-forever"),
    state("waits-for-its-begin", "PENDING|0:0|BeginTime", "pending"),
    state(
        "done-with-an-xid-in-the-text",
        "COMPLETED|0:0",
        "done",
        others=Rank(
            err="gpu health: last Xid 79 seen in 2025, cleared\nCUDA out of memory handled, batch 16 -> 8\n",
            status=0,
        ),
        node=None,
    ),
    state(
        "runs-with-warnings-of-nccl",
        "RUNNING|0:0",
        "running",
        others=Rank(err="node1:1:1 [0] NCCL WARN NET/IB : No device found.\nstep 3 loss 3.3\n"),
        node=None,
    ),
    state(
        "time-over-with-an-exception-in-the-text-of-data",
        "TIMEOUT|0:15",
        "time-limit",
        others=Rank(
            out="sample: 'OSError: [Errno 28] No space left on device'\nstep 80 loss 2.1\n"
        ),
    ),
    before(
        "step-for-a-job-that-completes",
        "srun",
        "refused|unknown|cancelled|node-failure",
        "srun: error: Unable to create step for job 4711: Job/step already completing or completed\n",
    ),
    before(
        "allocation-not-confirmed",
        "srun",
        "refused|unknown",
        "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4711\n",
    ),
    before(
        "launch-failed-on-a-node",
        "srun",
        "node-failure|refused",
        "srun: error: Task launch for StepId=4711.0 failed on node node2: Communication connection failure\nsrun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n",
    ),
    before(
        "credential-not-decoded",
        "munge",
        "node-failure|refused|unknown",
        "srun: error: auth_p_verify: MUNGE decode failed: Rewound credential\nsrun: error: Task launch for StepId=4711.0 failed on node node2: Protocol authentication error\n",
    ),
    before(
        "modules-not-initialised",
        "bash",
        "environment-missing",
        "/var/spool/slurmd/job04711/slurm_script: line 31: module: command not found\n",
    ),
    before(
        "profile-not-there",
        "bash",
        "environment-missing|script-not-visible",
        "/var/spool/slurmd/job04711/slurm_script: line 12: /opt/site/etc/profile.d/lmod.sh: No such file or directory\n",
    ),
    before(
        "profile-not-there-in-german",
        "bash, de_DE",
        "environment-missing|script-not-visible",
        "/var/spool/slurmd/job04711/slurm_script: Zeile 12: /opt/site/etc/profile.d/lmod.sh: Datei oder Verzeichnis nicht gefunden\n",
    ),
    before(
        "package-manager-knows-no-package",
        "spack",
        "environment-missing",
        "==> Error: Spec 'cuda@12.4' matches no installed packages.\n",
    ),
    before(
        "image-without-a-shell",
        "github.com/NVIDIA/pyxis/issues/61",
        "environment-missing",
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node2: task 1: Exited with exit code 1\n",
    ),
    before(
        "container-hook-of-the-gpus-failed",
        "github.com/NVIDIA/pyxis/issues/101",
        "environment-missing|bad-gpu|version-mismatch",
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis:     nvidia-container-cli: initialization error: nvml error: driver not loaded\nslurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\nslurmstepd: error: pyxis: couldn't start container\nsrun: error: node2: task 1: Exited with exit code 1\n",
    ),
    before(
        "image-layers-gone",
        "podman",
        "environment-missing|storage",
        "Error: creating container storage: the container name is fine but the layer is not known: layer not known\n",
    ),
    before(
        "runtime-not-there",
        "bash",
        "environment-missing",
        "/var/spool/slurmd/job04711/slurm_script: line 44: apptainer: command not found\n",
    ),
    failing(
        "working-directory-forbidden-and-a-relative-script",
        "slurmstepd",
        "script-not-visible|storage|environment-missing",
        "/opt/venv/bin/python: can't open file '/tmp/train.py': [Errno 2] No such file or directory",
        "-",
        rank=4,
        judged=False,
        status=2,
        prefix="",
        batch="slurmstepd: error: couldn't chdir to `/home/k.meyer/proj': Permission denied: going to /tmp instead\n",
    ),
]
