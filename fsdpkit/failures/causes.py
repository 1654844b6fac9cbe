"""The causes that a run can have ended for: a new one is added by adding an entry to `CAUSES`.

An entry has the sentence that a person reads, what to do, and how the cause is recognised: by a
line that somebody wrote (`signs`), by an exit status, by Slurm's state of the job, by how the batch
shell summed it up (`endings`).
Where one line fits several entries the first counts, so what is more particular stands further up.
Sources of the words are the programs named in each sign's `why`; those of Slurm 22.05, torch 2.13
and NCCL 2.2x were read in real logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsdpkit.errors import ConfigError, NodeError, NotFoundError, UsageError
from fsdpkit.failures.patterns import Level, Sign, sign


@dataclass(frozen=True)
class Cause:
    """One cause."""

    name: str
    sentence: str
    """With {who} (a rank and its node, a node, or `the job`) and {words} (the line that shows it).
    """
    action: str | None = None
    """With {run} and {node}; None where nobody can say in general. It is not given where {node} is
    in it and not known."""
    signs: tuple[Sign, ...] = ()
    statuses: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    """Slurm's words for the job's state; they are of level OUTSIDE."""
    endings: frozenset[str] = frozenset()
    """Words of `ending.json`; of level OUTSIDE if Slurm was asked, else SUMMED_UP."""
    waited: str | None = None
    """The sentence, if nobody more than a process that waited for another tells of it."""
    of_job: bool = False
    """Whether it concerns the whole job, so that no rank and no node is named."""


HEAD_SILENT = "the head node's agent does not answer any more"
"""What an agent says that hears nothing of the head's."""

RESUME = "To go on: fsdpkit resume {run}"
_LOOK_AT_ALL = (
    "See what every rank wrote last: fsdpkit logs {run}; with NCCL, torchfrtrace reads the flight "
    "recorder's dumps in debug/. " + RESUME
)

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        # ---- Ended from outside ------------------------------------------------------------------
        Cause(
            "host-out-of-memory",
            "{who} was ended because the memory of the node, or the job's share of it, was used "
            "up: {words}",
            "Ask for more (--set resources.memory=…), or use less: fewer loader workers "
            "(training.data.workers), a smaller batch. " + RESUME,
            states=frozenset({"OUT_OF_MEMORY"}),
            signs=(
                sign(
                    ("oom_kill event", "oom-kill event"),
                    "slurmstepd, when the kernel killed a process in the job's cgroup",
                    Level.OUTSIDE,
                    line=r"(?:slurmstepd-(?P<node>[\w.-]+))?.*Detected \d+ oom",
                ),
                sign(
                    ": Out Of Memory",
                    "srun, of a task that ended so",
                    Level.OUTSIDE,
                    line=r"srun: error: (?P<node>\S+): tasks? ",
                ),
                sign("Out of memory: Kill", "the kernel's log, when the whole node is full"),
                sign(
                    "is killed by signal: ",
                    "torch's loader, of a worker: killed for memory, or no room in /dev/shm",
                    line=r"DataLoader worker .*(?:Killed|Bus error)",
                ),
                sign(
                    "DefaultCPUAllocator: ",
                    "torch on CPU",
                    line=r"can't allocate|not enough memory",
                ),
                sign("MemoryError", "Python and numpy", line=r"\bMemoryError\b"),
                sign("Cannot allocate memory", "the kernel's ENOMEM, of fork(2) or mmap(2)"),
                sign(
                    "MB of memory are free, ",
                    "our check before training",
                    line=r"only \d+ MB",
                    action="Leave the node out: --set resources.exclude={node}",
                ),
            ),
        ),
        Cause(
            "preemption",
            "Slurm preempted the job for one with a higher priority.",
            "Let it come back by itself (--set retry.on_preemption=requeue), or choose a QOS or "
            "partition that is not preempted. " + RESUME,
            states=frozenset({"PREEMPTED"}),
            endings=frozenset({"preemption"}),
            of_job=True,
            signs=(
                sign("DUE TO PREEMPTION", "slurmstepd, at the end of the grace", Level.OUTSIDE),
            ),
        ),
        Cause(
            "time-limit",
            "The job's time was over.",
            "Ask for more (--time), or let it come back by itself: --set "
            "retry.on_time_limit=requeue. " + RESUME,
            states=frozenset({"TIMEOUT", "DEADLINE"}),
            endings=frozenset({"time-limit"}),
            of_job=True,
            signs=(
                sign("DUE TO TIME LIMIT", "slurmstepd, of the job and each step", Level.OUTSIDE),
            ),
        ),
        Cause(
            "cancelled",
            "The job was cancelled{words}.",
            RESUME,
            states=frozenset({"CANCELLED", "REVOKED"}),
            endings=frozenset({"cancelled"}),
            of_job=True,
            signs=(
                sign(
                    "*** JOB ",
                    "slurmstepd; a step alone is also cancelled when one of its tasks fails",
                    Level.OUTSIDE,
                    line=r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*",
                ),
            ),
        ),
        Cause(
            "node-failure",
            "A node failed: {who}: {words}",
            "Start again, which leaves out a node that was lost: fsdpkit resume {run}; a run with "
            "spare nodes (resources.spare) outlives this.",
            states=frozenset({"NODE_FAIL", "BOOT_FAIL"}),
            signs=(
                sign(
                    "Node failure on ",
                    "srun, when slurmctld gave a node up",
                    Level.OUTSIDE,
                    line=r"srun: error: Node failure on (?P<node>[\w.-]+)",
                ),
                sign("DUE TO NODE FAILURE", "slurmstepd on a node that is left", Level.OUTSIDE),
                sign("no sign of life", "our agents, of a node that fell silent", Level.OUTSIDE),
                sign("Unable to create step", "srun, when a node does not answer or is not free"),
            ),
        ),
        # ---- Before training ---------------------------------------------------------------------
        Cause(
            "version-mismatch",
            "The nodes do not have the same software: {words}",
            "Use one environment on a file system that all nodes share, or leave {node} out: "
            "--set resources.exclude={node}",
            signs=(
                sign(
                    "all nodes must see the same environment",
                    "our check before training, which compares each node with the first",
                    line=r"\w+ is \S+ on (?P<node>\S+) but ",
                ),
                sign("The ranks differ in their software", "our trainer, which compares as well"),
            ),
        ),
        Cause(
            "port-taken",
            "The port for the rendezvous was taken on {who}: {words}",
            "Submit again (another job id gives another port), or move rendezvous.port_base in the "
            "site profile.",
            signs=(
                sign("is taken on the head node", "our check before training", line=r"port \d+"),
                sign("no free port outside ", "our batch shell"),
                sign("server socket has failed to listen", "torch's TCPStore on the head node"),
                sign("does not know this run's secret", "our agents, of a stranger on the port"),
                sign(("EADDRINUSE", "Address already in use"), "the kernel, in anybody's words"),
            ),
        ),
        Cause(
            "head-address",
            "{who} could not find the head node by its address: {words}",
            "Correct the name service, or in the site profile rendezvous.address, .prefix, .suffix "
            "or .interface.",
            signs=(
                sign(
                    "the head node", "our check", line=r"'[^']*' (?:does not resolve|resolves to)"
                ),
                sign(
                    (
                        "no IPv4 address from ",
                        "is not an IPv4 address",
                        "one interface in the site",
                    ),
                    "our batch shell",
                ),
                sign("is a loopback, link-local or empty address", "the same"),
                sign("no route to the head node's address", "the shell on each node"),
                sign("no network interface carries ", "the same"),
                sign(
                    "cannot reach the head node's port",
                    "our agents, of an address where nobody is; silence may have other reasons",
                    Level.WAITED,
                    line="head node's port (?!.*timed out)",
                ),
                sign(
                    "The IPv",
                    "torch's TCPStore, of a name that does not resolve",
                    line=r"network addresses of \(.*\) cannot be retrieved",
                ),
                sign(
                    (
                        *("Name or service not known", "Temporary failure in name resolution"),
                        "No address associated with hostname",
                    ),
                    "getaddrinfo(3)",
                ),
                sign(("No route to host", "Network is unreachable"), "connect(2)", Level.WAITED),
            ),
        ),
        Cause(
            "environment-missing",
            "The environment could not be set up on {who}: {words}",
            "Compare the job's environment (fsdpkit check) with what the nodes have: module spider "
            "NAME, conda env list.",
            signs=(
                sign(("cannot load the module ", "there is no 'module' command"), "our shell"),
                sign(("there is no 'conda' here", "info --base' failed"), "our shell"),
                sign("there is no etc/profile.d/conda.sh in ", "our shell"),
                sign("cannot activate the conda environment ", "our shell"),
                sign("there is no Python in ", "our shell, of a virtual environment"),
                sign("there is no torchrun on PATH", "our shell"),
                sign("The following module(s) are unknown", "Lmod"),
                sign("Unable to locate a modulefile for", "Environment Modules"),
                sign(("EnvironmentNameNotFound", "EnvironmentLocationNotFound"), "conda"),
                sign(
                    "not found",
                    "the shell, in the batch script or around the agent",
                    by=("agent", "batch"),
                    line=r"(?:python|torchrun|conda|module|apptainer): (?:command )?not found",
                ),
                sign(
                    ("No such file or directory", "cannot execute"),
                    "the shell, when the environment's directory is not on this node",
                    by=("agent", "batch"),
                    line=r"^\S*(?:bash|exec)\S*: .*(?:python|torchrun)\S*: ",
                ),
            ),
        ),
        Cause(
            "script-not-visible",
            "{who} cannot see a file that the job needs: {words}",
            "Put the script and the runs (--runs) on a file system that all nodes share.",
            signs=(
                sign("can't open file '", "Python, of the script that it is to run"),
                sign("can't find '__main__' module in ", "Python, of a directory that is empty"),
                sign("though the head node made it", "our check, of the run's directory"),
                sign("cannot write to the run directory ", "our batch shell"),
            ),
        ),
        Cause(
            "import-error",
            "{who} could not import a module: {words}",
            "Install it into the environment that the job activates; if other nodes have it, this "
            "one sees another environment.",
            signs=(
                sign("torch cannot be imported by ", "our check before training"),
                sign(("ModuleNotFoundError: ", "ImportError: "), "Python"),
                sign("No module named ", "python -m, and whoever quotes Python"),
                sign("error while loading shared libraries: ", "the dynamic linker"),
            ),
        ),
        # ---- In the training ---------------------------------------------------------------------
        Cause(
            "gpu-out-of-memory",
            "{who} ran out of GPU memory: {words}",
            "Use less: a smaller training.batch_size, training.micro_batch=auto, activation "
            "checkpointing (training.sharding.activation_checkpointing), or more GPUs.",
            signs=(
                sign(("OutOfMemoryError", "CUDA out of memory", "HIP out of memory"), "torch"),
                sign(("CUDA error: out of memory", "cudaErrorMemoryAllocation"), "CUDA"),
                sign("_STATUS_ALLOC_FAILED", "cuBLAS, cuDNN and their like, of a workspace"),
                sign("Cuda failure 'out of memory'", "NCCL, of its buffers"),
            ),
        ),
        Cause(
            "bad-gpu",
            "A GPU of {who} is broken or cannot be used: {words}",
            "Leave the node out (--set resources.exclude={node}) and tell the centre. " + RESUME,
            signs=(
                sign(
                    ("ncorrectable ECC", "ncorrectable NVLink", "ECC_UNCORRECTABLE"),
                    "CUDA, NCCL, the driver, of memory that has lost bits",
                ),
                sign(
                    "Xid", "the driver: NVIDIA's Xid Errors says what each means", line=r"\bXid\b"
                ),
                sign("fallen off the bus", "the driver, Xid 79"),
                sign(("NVLink error", "nvlink error"), "the driver"),
                sign("CUDA error: ", "CUDA", line=r"CUDA error: (?:hardware|ECC|unknown error)"),
                sign("CUDA-capable device(s) is/are busy or unavailable", "CUDA"),
                sign("system not yet initialized", "CUDA 802: the node's fabric manager is down"),
                sign("has a damaged row of memory and none to replace it", "our check"),
                sign("GPUs were asked for on each node, ", "our check", line=r"shows \d+ here"),
                sign("another process holds GPU memory", "our check, of what outlived its job"),
            ),
        ),
        Cause(
            "disk-full",
            "No room was left on the disk, or the quota was used up: {who}: {words}",
            "Make room (du, quota -s, lfs quota), keep fewer checkpoints "
            "(training.checkpoint.keep_last), or choose another place with --runs. " + RESUME,
            signs=(
                sign("No space left on device", "the kernel's ENOSPC, in anybody's words"),
                sign("Disk quota exceeded", "the kernel's EDQUOT"),
                sign("GB are free in ", "our check before training", line=r"only [\d.]+ GB"),
                sign("the file system or your quota is full", "our check before training"),
            ),
        ),
        Cause(
            "checkpoint-unreadable",
            "{who} could not read the checkpoint to go on from: {words}",
            "See what is whole: fsdpkit checkpoint verify {run}; resume from an older one, or "
            "start from its weights: training.checkpoint.start",
            signs=(
                sign("No checkpoint is whole", "our trainer, listing what is wrong with each"),
                sign(
                    ("its index cannot be read", "is not the index of a checkpoint"), "our trainer"
                ),
                sign("cannot be read", "our trainer", line=r"step-\d+\S* cannot be read"),
                sign("holds no complete checkpoint", "our trainer, of training.checkpoint.start"),
                sign("PytorchStreamReader failed", "torch.load, of a file that was cut short"),
                sign("UnpicklingError", "pickle, of a file that is damaged"),
                sign(("SafetensorError", "Error while deserializing header"), "safetensors"),
                sign("CheckpointException", "torch.distributed.checkpoint"),
            ),
        ),
        Cause(
            "data-missing",
            "{who} did not find its data: {words}",
            "Check that the nodes see the path, and how it is spelt (training.data.source).",
            signs=(
                sign(": no such file", "our readers of data and tokenizers"),
                sign(
                    "FileNotFoundError: ",
                    "Python; a name without a directory is a program that was to be run",
                    line=r"FileNotFoundError: (?!\[Errno 2\] No such file or directory: '[\w-]+'$)",
                ),
            ),
        ),
        Cause(
            "nan-loss",
            "The numbers overflowed: {who}: {words}",
            "Lower training.optimizer.lr, look at the data of that step, or leave such steps out: "
            "--set training.non_finite=skip. " + RESUME,
            signs=(
                sign(("is not finite, ", "is not finite in "), "our trainer, on a GPU as well"),
                sign(
                    ("oss is ", "oss became ", "oss was "),
                    "what many trainers say",
                    line=r"oss (?:is|became|was) (?:nan|NaN|inf)\b",
                ),
                sign("returned nan values in its ", "torch's anomaly detection"),
            ),
        ),
        Cause(
            "collective-mismatch",
            "The ranks called different collectives, or with different shapes: {words}",
            "Look for what only some ranks do: a branch on the rank, batches of different length, "
            "an early return. TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
            signs=(
                sign(
                    "Detected mismatch between collectives on ranks",
                    "torch with TORCH_DISTRIBUTED_DEBUG=DETAIL",
                ),
                sign(
                    "op.preamble.length <= op.nbytes",
                    "gloo, when a peer sends more than was to be received",
                ),
                sign(("Mismatched collective detected", ": collective mismatch"), "NCCL"),
                sign("message truncated : receiving ", "NCCL over sockets"),
            ),
        ),
        # ---- Waited in vain ----------------------------------------------------------------------
        Cause(
            "hang",
            "{who} made no progress any more: {words}",
            "Its stacks are in rank-*.stacks of the attempt's directory; with NCCL, torchfrtrace "
            "reads the flight recorder's dumps in debug/. " + RESUME,
            statuses=frozenset({124}),
            waited="{who} waited in vain for another rank, and nobody says for which: {words}",
            signs=(
                sign(
                    "waiting for other ranks",
                    "our agents, of a rank that waits",
                    Level.WAITED,
                    action=_LOOK_AT_ALL,
                ),
                sign(
                    " (after step ",
                    "our agents, of a rank that does something else than the others",
                    line=r"(?:made no step|was \w+) for \d+ s \(after step -?\d+\)",
                ),
                sign(
                    ("Watchdog caught collective operation timeout", "Timed out waiting "),
                    "NCCL's watchdog and gloo in a rank that waits for another",
                    Level.WAITED,
                    line=r"collective operation timeout|waiting \d+ms",
                    action=_LOOK_AT_ALL,
                ),
                sign(
                    "failed to pass monitoredBarrier",
                    "torch, on rank 0",
                    Level.WAITED,
                    action=_LOOK_AT_ALL,
                ),
            ),
        ),
        Cause(
            "rendezvous-timeout",
            "The nodes did not find together in time: {who}: {words}",
            "Look at the node that did not come; if its file system was slow, raise "
            "rendezvous.join_timeout_s in the site profile. " + RESUME,
            signs=(
                sign(
                    "no agent after ", "the head's agent, of nodes that did not come", Level.WAITED
                ),
                sign(
                    ("RendezvousTimeoutError", "RendezvousConnectionError"),
                    "torchrun",
                    Level.WAITED,
                ),
                sign(
                    ("client socket has timed out", "client socket has failed to connect"),
                    "torch's TCPStore on a node that does not reach the head",
                    Level.WAITED,
                ),
                sign("where the ranks are to meet", "our agents", Level.WAITED),
                sign("waiting for clients", "TCPStore on the head", Level.WAITED),
                sign("wait timeout after ", "TCPStore, of a key that nobody sets", Level.WAITED),
            ),
        ),
        Cause(
            "connection-reset",
            "{who} lost the connection to another rank, and nobody says why: {words}",
            "Look for what happened on the other side: the node's own log, sinfo -R. " + RESUME,
            signs=(
                sign(
                    (
                        *("Connection reset", "Connection closed", "Connection refused"),
                        *("connection reset", "connection closed", "connection refused"),
                        *("closed by peer", "Broken pipe", "broken pipe", "Socket Timeout"),
                        *("Socket timeout", "ncclRemoteError", "ncclSystemError"),
                        *("remote process exited", "NCCL communicator was aborted"),
                        *("DistNetworkError", "DistStoreError", "Connection timed out"),
                    ),
                    "gloo, NCCL and TCPStore in ranks whose peer is gone: no cause while anybody "
                    "else has one",
                    Level.LOST_PEER,
                ),
                sign(
                    HEAD_SILENT,
                    "our agents on the other nodes; the head may have failed for its own reason",
                    Level.LOST_PEER,
                ),
                sign(
                    "] Read error [",
                    "gloo, whatever errno says",
                    Level.LOST_PEER,
                    line=r"gloo/transport/",
                ),
                sign("] Write", "gloo", Level.LOST_PEER, line=r"gloo/transport/.*Writev? error"),
            ),
        ),
        # ---- Anything else that a process says ---------------------------------------------------
        Cause(
            "settings",
            "The settings do not fit: {who}: {words}",
            "Correct them and submit again.",
            statuses=frozenset(
                error.exit_code for error in (UsageError, ConfigError, NotFoundError, NodeError)
            ),
            signs=(
                sign(("ConfigError: ", "UsageError: ", "NotFoundError: "), "our trainer"),
                sign("asked for ", "our batch shell", line=r"asked for \d+ nodes.*, but \S+ has "),
            ),
        ),
        Cause(
            "exception",
            "{who} failed: {words}",
            "Read the traceback: fsdpkit logs {run} --errors",
        ),
        # ---- Known without a log -----------------------------------------------------------------
        Cause(
            "refused",
            "Slurm will not run the job: {words}.",
            "Cancel it (fsdpkit cancel {run}) and submit again with what is allowed; yours: "
            "sacctmgr -nP show assoc user=$USER format=account,partition,qos",
        ),
        Cause("pending-forever", "The job is pending and will not start by itself: {words}."),
        Cause("pending", "The job is pending: {words}."),
        Cause("running", "The job is running, and nothing is wrong so far."),
        Cause("done", "The run is done."),
        Cause("unknown", "Nobody says why: {words}."),
    )
}
"""By name, the more particular first."""
