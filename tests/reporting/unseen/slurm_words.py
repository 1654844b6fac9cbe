"""What Slurm, module systems, conda and containers say before, instead of and after ranks."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    PROGRESS,
    QUIET,
    RESOURCE_TRACKER,
    STEPS,
    TOP,
    aborted,
    raised,
    remote_error,
    watchdog,
)

CASES = [
    Case(
        name="lmod-module-unknown",
        source="https://github.com/rcgsheffield/sheffield_hpc/issues/1892",
        nodes=2,
        gpus=4,
        before_ranks=True,
        slurm="FAILED|1:0",
        batch="""Lmod has detected the following error:  The following module(s) are unknown: "cuda/12.9.1"

Please check the spelling or version number. Also try "module spider ..."
It is also possible your cache file is out-of-date; it may help to try:
  $ module --ignore_cache load "cuda/12.9.1"

Also make sure that all modulefiles written in TCL start with the string #%Module



""",
        want=wanted("environment-missing", node="any"),
    ),
    Case(
        name="tcl-module-cannot-be-found",
        source="https://modules.readthedocs.io/en/latest/diff_v3_v4.html (Unable to locate a modulefile)",
        nodes=1,
        gpus=1,
        before_ranks=True,
        batch="ERROR: Unable to locate a modulefile for 'nccl/2.27'\n",
        want=wanted("environment-missing", node="any"),
    ),
    Case(
        name="conda-environment-not-found",
        source="https://docs.conda.io/projects/conda/en/stable/ (EnvironmentNameNotFound)",
        nodes=2,
        gpus=2,
        before_ranks=True,
        batch="""
EnvironmentNameNotFound: Could not find conda environment: t5-fsdp
You can list all discoverable environments with `conda info --envs`.

""",
        want=wanted("environment-missing", node="any"),
    ),
    Case(
        name="conda-not-initialised",
        source="https://docs.conda.io/projects/conda/en/stable/dev-guide/deep-dives/activation.html",
        nodes=1,
        gpus=4,
        before_ranks=True,
        batch="""
CondaError: Run 'conda init' before 'conda activate'

/var/spool/slurmd/job04711/slurm_script: line 47: torchrun: command not found
""",
        slurm="FAILED|127:0",
        want=wanted("environment-missing", node="any"),
    ),
    Case(
        name="apptainer-image-not-there",
        source="https://github.com/apptainer/apptainer (could not open image)",
        nodes=2,
        gpus=4,
        before_ranks=True,
        slurm="FAILED|255:0",
        batch="srun: error: node1: task 0: Exited with exit code 255\nsrun: error: node2: task 1: Exited with exit code 255\n",
        node_logs={
            0: "FATAL:   could not open image /scratch/ada/images/pytorch-25.10.sif: failed to retrieve path for /scratch/ada/images/pytorch-25.10.sif: lstat /scratch/ada/images/pytorch-25.10.sif: no such file or directory\n",
            1: "FATAL:   could not open image /scratch/ada/images/pytorch-25.10.sif: failed to retrieve path for /scratch/ada/images/pytorch-25.10.sif: lstat /scratch/ada/images/pytorch-25.10.sif: no such file or directory\n",
        },
        want=wanted(
            "environment-missing", "script-not-visible", "data-missing", node="any", rank="any"
        ),
    ),
    Case(
        name="pyxis-container-start-failed",
        source="https://github.com/NVIDIA/pyxis/issues/166",
        nodes=4,
        gpus=2,
        before_ranks=True,
        slurm="FAILED|1:0",
        batch="srun: error: node3: task 2: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=4711.0\n",
        node_logs={
            2: """slurmstepd-node3: error: pyxis: container start failed with error code: 1
slurmstepd-node3: error: pyxis: printing enroot log file:
slurmstepd-node3: error: pyxis:     nvidia-container-cli: initialization error: nvml error: driver/library version mismatch
slurmstepd-node3: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1
slurmstepd-node3: error: pyxis: couldn't start container
slurmstepd-node3: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd-node3: error: Failed to invoke spank plugin stack
"""
        },
        want=wanted("version-mismatch", "environment-missing", "bad-gpu", node="node3"),
    ),
    Case(
        name="execve-no-such-file-on-one-node",
        source="https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/task.c",
        nodes=2,
        gpus=4,
        before_ranks=True,
        slurm="FAILED|2:0",
        batch="srun: error: node2: task 1: Exited with exit code 2\nsrun: launch/slurm: _step_signal: Terminating StepId=4711.0\nsrun: error: node1: task 0: Terminated\nsrun: Force Terminated StepId=4711.0\n",
        node_logs={
            1: "slurmstepd-node2: error: execve(): /local/ada/venv/bin/python: No such file or directory\n"
        },
        want=wanted("environment-missing", node="node2", forbid="data set|data\\.dir"),
    ),
    Case(
        name="step-refused-for-gres",
        source="https://github.com/mehta-lab/waveorder/issues/201",
        nodes=1,
        gpus=2,
        before_ranks=True,
        slurm="FAILED|1:0",
        batch="srun: error: Unable to create step for job 4711: Invalid generic resource (gres) specification\n",
        want=wanted("refused", node="any"),
    ),
    Case(
        name="memory-variables-exclusive",
        source="https://github.com/mehta-lab/recOrder/issues/482",
        nodes=1,
        gpus=1,
        before_ranks=True,
        slurm="FAILED|1:0",
        batch="srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.\n",
        want=wanted("refused", "settings", node="any"),
    ),
    Case(
        name="task-launch-failed-credential",
        source="https://slurm.schedmd.com/troubleshoot.html",
        nodes=4,
        gpus=2,
        before_ranks=True,
        slurm="FAILED|1:0",
        batch="""srun: error: Task launch for StepId=4711.0 failed on node node3: Invalid job credential
srun: error: Application launch failed: Invalid job credential
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: Timed out waiting for job step to complete
""",
        want=wanted("node-failure", "refused", node="any", forbid="traceback"),
    ),
    Case(
        name="prolog-failed-held",
        source="https://slurm.schedmd.com/resource_limits.html; squeue(1) reasons",
        nodes=2,
        gpus=8,
        slurm="PENDING|0:0|launch failed requeued held",
        want=wanted("pending-forever", "refused", "node-failure", node="any"),
    ),
    Case(
        name="pending-for-priority",
        source="squeue(1) reasons",
        nodes=8,
        gpus=8,
        slurm="PENDING|0:0|Priority",
        want=wanted("pending", node="any"),
    ),
    Case(
        name="pending-never-for-bad-constraints",
        source="squeue(1) reasons",
        nodes=2,
        gpus=4,
        slurm="PENDING|0:0|BadConstraints",
        want=wanted("pending-forever", node="any"),
    ),
    Case(
        name="pending-for-qos-limit-of-user",
        source="https://slurm.schedmd.com/resource_limits.html",
        nodes=4,
        gpus=2,
        slurm="PENDING|0:0|QOSMaxGRESPerUser",
        want=wanted("pending", "pending-forever", node="any"),
    ),
    Case(
        name="time-limit-in-a-plain-script",
        source="https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/req.c",
        nodes=2,
        gpus=4,
        others=Rank(err=ADDRESS, out=STEPS),
        batch="srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T01:20:00 DUE TO TIME LIMIT ***\nslurmstepd-node1: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T01:20:00 DUE TO TIME LIMIT ***\n",
        slurm="TIMEOUT|0:0",
        want=wanted("time-limit"),
    ),
    Case(
        name="time-limit-during-a-hang",
        source="https://pytorch.org/docs/stable/distributed.html (no watchdog for gloo)",
        nodes=2,
        gpus=2,
        ranks={
            3: Rank(
                err=ADDRESS
                + "waiting for lock /scratch/ada/cache/.lock (held by another process)\n" * 4,
                out=STEPS,
            )
        },
        others=Rank(err=ADDRESS, out=STEPS),
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T01:20:00 DUE TO TIME LIMIT ***\n",
        slurm="TIMEOUT|0:0",
        want=wanted("time-limit", "hang", rank="any", node="any"),
    ),
    Case(
        name="cancelled-by-its-owner",
        source="https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/req.c",
        nodes=4,
        gpus=2,
        others=Rank(err=ADDRESS + PROGRESS, out=STEPS),
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:50:11 ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        slurm="CANCELLED by 1000|0:15",
        want=wanted("cancelled"),
    ),
    Case(
        name="preempted-at-once",
        source="https://slurm.schedmd.com/preempt.html",
        nodes=2,
        gpus=8,
        others=Rank(err=ADDRESS, out=STEPS),
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:50:11 DUE TO PREEMPTION ***\n",
        slurm="PREEMPTED|0:15",
        want=wanted("preemption"),
    ),
    Case(
        name="node-lost-seen-by-slurm",
        source="https://github.com/SchedMD/slurm/blob/master/src/slurmctld/node_mgr.c",
        nodes=4,
        gpus=2,
        ranks={
            **{
                rank: Rank(
                    err=remote_error(rank, "10.99.7.3<41117>"), status=134, after_s=4.0 + rank / 10
                )
                for rank in (0, 1, 2, 3, 6, 7)
            },
        },
        others=Rank(err=ADDRESS),
        lost=(2,),
        batch="srun: error: Node failure on node3\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:50:11 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
        slurm="NODE_FAIL|1:0",
        want=wanted("node-failure", node="node3", retry="node-failure"),
    ),
    Case(
        name="node-lost-seen-by-agents-first",
        source="made: a node falls silent, the others' watchdogs speak first",
        nodes=2,
        gpus=4,
        ranks={rank: Rank(err=watchdog(rank), status=134, after_s=0.1 * rank) for rank in range(4)},
        others=Rank(err=ADDRESS, out=STEPS),
        lost=(1,),
        want=wanted("node-failure", node="node2", retry="node-failure"),
    ),
    Case(
        name="head-node-lost",
        source="https://slurm.schedmd.com/slurm.conf.html#OPT_SlurmdTimeout",
        nodes=4,
        gpus=2,
        others=Rank(err=ADDRESS, out=STEPS),
        lost=(0,),
        slurm="NODE_FAIL|0:0",
        want=wanted("node-failure", node="node1"),
    ),
    Case(
        name="oom-killer-rank-37",
        source="https://github.com/SchedMD/slurm/blob/master/src/plugins/task/cgroup/task_cgroup_memory.c",
        nodes=8,
        gpus=8,
        ranks={
            37: Rank(err=ADDRESS + PROGRESS, status=137),
            8: aborted(8, "10.99.7.5<40411>", 2.0),
        },
        others=QUIET,
        node_logs={
            4: "slurmstepd-node5: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n"
        },
        batch="srun: error: node5: task 4: Out Of Memory\nsrun: launch/slurm: _step_signal: Terminating StepId=4711.0\n",
        slurm="OUT_OF_MEMORY|0:125",
        memory_share={4: 0.993},
        want=wanted(
            "host-out-of-memory", rank=37, node="node5", forbid="training.micro_batch|activation"
        ),
    ),
    Case(
        name="oom-killer-on-another-node-than-first-words",
        source="https://slurm.schedmd.com/job_exit_code.html",
        nodes=2,
        gpus=4,
        ranks={
            1: raised(
                1,
                TOP
                + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 10.99.7.2<49901> failed : Connection reset by peer\n",
            ),
            6: Rank(err=ADDRESS, out=STEPS, status=137, after_s=0.4),
        },
        others=QUIET,
        node_logs={
            1: "slurmstepd-node2: error: Detected 1 oom-kill event(s) in StepId=4711.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"
        },
        batch="srun: error: node2: task 1: Out Of Memory\n",
        slurm="OUT_OF_MEMORY|0:125",
        memory_share={1: 0.97},
        want=wanted("host-out-of-memory", rank=6, node="node2"),
    ),
    Case(
        name="sigterm-of-an-operator",
        source="signal(7)",
        nodes=1,
        gpus=4,
        ranks={2: Rank(err=ADDRESS + RESOURCE_TRACKER, out=STEPS, status=143)},
        others=QUIET,
        want=wanted(
            "unknown",
            "cancelled",
            "exception",
            rank="any",
            node="node1",
            forbid="out of memory|memory",
        ),
    ),
    Case(
        name="home-not-mounted-on-a-node",
        source="https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/mgr.c",
        nodes=2,
        gpus=2,
        ranks={
            rank: Rank(
                err="/opt/venv/bin/python: can't open file '/home/ada/t5/train.py': [Errno 2] No such file or directory\n",
                status=2,
            )
            for rank in (2, 3)
        },
        others=QUIET,
        node_logs={
            1: "slurmstepd-node2: error: couldn't chdir to `/home/ada/t5': No such file or directory: going to /tmp instead\n"
        },
        want=wanted(
            "script-not-visible", "environment-missing", "storage", rank="any", node="node2"
        ),
    ),
    Case(
        name="completed-without-trouble",
        source="sacct(1)",
        nodes=2,
        gpus=4,
        others=Rank(
            err=ADDRESS
            + "WARNING: 3 of 812 samples were skipped (KeyError: 'text')\nnote: on CUDA out of memory the step is retried with half a batch (happened 2 times)\n",
            out=STEPS + "done\n",
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="running-with-warnings",
        source="squeue(1)",
        nodes=2,
        gpus=4,
        others=Rank(
            err=ADDRESS
            + "[W1122] NCCL WARN NET/IB : Got async event : port error\nConnection refused (dashboard), retrying in 30 s\n",
            out=STEPS,
        ),
        slurm="RUNNING|0:0",
        want=wanted("running"),
    ),
]
