"""The causes that a run can have ended for: a new one is added by adding an entry to `CAUSES`.

An entry has the sentence that a person reads, what to do, and how the cause is recognised: by a
line that somebody wrote (`patterns`), by an exit status, by Slurm's state of the job, by how the
batch shell summed it up (`endings`). Where one line fits several entries the first counts, so what
is more particular stands further up. Exceptions are told by their types as well (exceptions.py).
Sources of the words are the programs named in each pattern's `why`; those of Slurm 22.05, torch
2.13 and NCCL 2.2x were read in real logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsdpkit.errors import ConfigError, NodeError, NotFoundError, UsageError
from fsdpkit.failures.patterns import Level, Pattern, pattern
from fsdpkit.runs.outcomes import Cause as RetryCause


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
    patterns: tuple[Pattern, ...] = ()
    statuses: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    """Slurm's words for the job's state; they are of level OUTSIDE."""
    endings: frozenset[str] = frozenset()
    """Words of `ending.json`; of level OUTSIDE if Slurm was asked, else SUMMED_UP."""
    retry: RetryCause = "crash"
    """What the policy takes it for when it decides about another start."""
    again: str | None = None
    """Whether another start would help, and why, where that follows from the cause."""
    waited: str | None = None
    """The sentence, if nobody more than a process that waited for another tells of it."""
    of_job: bool = False
    """Whether it concerns the whole job, so that no rank and no node is named."""


HEAD_SILENT = "the head node's agent does not answer any more"
"""What an agent says that hears nothing of the head's."""

RESUME = "To go on: fsdpkit resume {run}"
_SAME_MEMORY = "no, it would need as much again"
_LOOK_AT_ALL = (
    "See what every rank wrote last: fsdpkit logs {run}; what NCCL's flight "
    "recorders said stands in flight.json of the attempt. " + RESUME
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
            retry="out-of-memory",
            again=_SAME_MEMORY,
            states=frozenset({"OUT_OF_MEMORY"}),
            patterns=(
                pattern(
                    ("oom_kill event", "oom-kill event"),
                    "slurmstepd, when the kernel killed a process in the job's cgroup",
                    Level.OUTSIDE,
                    line=r"(?:slurmstepd-(?P<node>[\w.-]+))?.*Detected \d+ oom",
                ),
                pattern(
                    ": Out Of Memory",
                    "srun, of a task that ended so",
                    Level.OUTSIDE,
                    line=r"srun: error: (?P<node>\S+): tasks? ",
                ),
                pattern(
                    ("ut of memory: Kill", "oom-kill:constraint", "invoked oom-killer"),
                    "the kernel's log, of a job's share or of the whole node",
                    Level.OUTSIDE,
                    by=("agent", "batch"),
                ),
                pattern(
                    "is killed by signal: ",
                    "torch's loader, of a worker",
                    line=r"DataLoader worker .*Killed",
                ),
                pattern(
                    "DefaultCPUAllocator: ",
                    "torch on CPU",
                    line=r"can't allocate|not enough memory",
                ),
                pattern(
                    "MemoryError", "Python and numpy", line=r"^(?:\S+\.)?\w*MemoryError\b(?!\w)"
                ),
                pattern(
                    ("annot allocate memory", "std::bad_alloc"),
                    "the kernel's ENOMEM, of fork(2) or mmap(2); C++",
                ),
                pattern(
                    "memory allocation of ", "Rust", line=r"memory allocation of \d+ bytes failed"
                ),
                pattern(
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
            again="yes, as soon as Slurm gives the nodes",
            patterns=(
                pattern(
                    "DUE TO PREEMPTION",
                    "slurmstepd, at the end of the grace",
                    Level.OUTSIDE,
                    by=("agent", "batch"),
                ),
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
            again="yes, from the newest checkpoint",
            patterns=(
                pattern(
                    "DUE TO TIME LIMIT",
                    "slurmstepd, of the job and each step",
                    Level.OUTSIDE,
                    by=("agent", "batch"),
                ),
            ),
        ),
        Cause(
            "cancelled",
            "The job was cancelled{words}.",
            RESUME,
            states=frozenset({"CANCELLED", "REVOKED"}),
            endings=frozenset({"cancelled"}),
            of_job=True,
            patterns=(
                pattern(
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
            retry="node-failure",
            again="yes, without that node",
            states=frozenset({"NODE_FAIL", "BOOT_FAIL"}),
            patterns=(
                pattern(
                    "Node failure on ",
                    "srun, when slurmctld gave a node up",
                    Level.OUTSIDE,
                    line=r"srun: error: Node failure on (?P<node>[\w.-]+)",
                ),
                pattern("DUE TO NODE FAILURE", "slurmstepd on a node that is left", Level.OUTSIDE),
                pattern("no sign of life", "our agents, of a node that fell silent", Level.OUTSIDE),
                pattern(
                    "Task launch for ",
                    "srun, of a node whose slurmd did not take the step",
                    Level.OUTSIDE,
                    by=("agent", "batch"),
                    line=r"Task launch for \S+ failed on node (?P<node>[\w.-]+): .*"
                    r"(?:ommunication|onnection|imeout|imed out|Invalid node|not respond)",
                ),
            ),
        ),
        Cause(
            "refused",
            "Slurm will not run the job: {words}.",
            "Cancel it (fsdpkit cancel {run}) and submit again with what is allowed; yours: "
            "sacctmgr -nP show assoc user=$USER format=account,partition,qos",
            retry="node-failure",
            patterns=(
                pattern("srun: fatal: ", "srun", by=("agent", "batch")),
                pattern(
                    "Unable to create step",
                    "srun; a node that hangs on to the attempt before is the usual reason",
                    by=("agent", "batch"),
                    line=r"srun: error: Unable to create step",
                    action="Submit again; if it comes back, ask for what the allocation has "
                    "(scontrol show job): nodes, cores, memory, GPUs. " + RESUME,
                ),
                pattern(
                    (
                        *("Task launch for ", "Application launch failed"),
                        *(
                            "Job credential",
                            "Invalid job credential",
                            "Requested node configuration",
                        ),
                        *("More processors requested", "Invalid job id specified"),
                    ),
                    "srun and slurmd, of a step that was not started",
                    by=("agent", "batch"),
                    line=r"^(?:srun|slurmstepd\S*|slurmd): ",
                    action="Slurm refused the step, not the program: submit again; if it comes "
                    "back, show the centre these words.",
                ),
            ),
        ),
        Cause(
            "no-internet",
            "{who} could not reach a service outside the cluster: {words}",
            "Compute nodes often have no way out: fetch it on the login node first (for Hugging "
            "Face into HF_HOME on a shared file system, then HF_HUB_OFFLINE=1; for Weights & "
            "Biases WANDB_MODE=offline), or set the proxy that the centre names.",
            again="no, while the nodes have no way out",
            patterns=(
                pattern(
                    ("Could not resolve host: ", "curl: (7)", "curl: (28)"),
                    "curl, of what a container or a prelude fetches",
                    by=("agent", "batch"),
                ),
                pattern(
                    (
                        *(
                            "couldn't connect to",
                            "Can't load the configuration of",
                            "LocalEntryNotFound",
                        ),
                        *("offline mode is enabled", "outgoing traffic has been disabled"),
                        *("Cannot reach https", "we cannot find the requested files in the"),
                        *(
                            "cannot find the requested files in the disk cache",
                            "Network error (Con",
                        ),
                        *("Max retries exceeded with url", "Failed to establish a new connection"),
                        *("Could not reach", "annot connect to host", "Couldn't reach"),
                        *("onnect to the license server", "icense server", "connection broken by"),
                    ),
                    "Hugging Face's libraries, urllib3, aiohttp, wandb, licence managers, pip",
                    quoted=True,
                    line=r"(?i)huggingface|https?://(?!localhost|127\.)|host=|hub|dataset|wandb|"
                    r"connection error|network error|cannot connect to host [\w-]+\.[\w.-]+:443|"
                    r"(?:connect|reach|communicate|contact).{0,60}licen[sc]e (?:server|manager)|"
                    r"licen[sc]e (?:server|manager).{0,60}(?:connect|reach|down|respond|timed out)|"
                    r"NewConnectionError|ConnectTimeoutError|NameResolutionError",
                ),
            ),
        ),
        # ---- Before training ---------------------------------------------------------------------
        Cause(
            "version-mismatch",
            "The nodes do not have the same software: {words}",
            "Use one environment on a file system that all nodes share, or leave {node} out: "
            "--set resources.exclude={node}",
            patterns=(
                pattern(
                    "all nodes must see the same environment",
                    "our check before training, which compares each node with the first",
                    line=r"\w+ is \S+ on (?P<node>\S+) but ",
                ),
                pattern(
                    ("ersion incompatib", "ersion mismatch", "as compiled", "binary incompatib"),
                    "cuDNN, NVML and others, of a library of another release",
                    line=r"(?i)(?:version|binary) (?:incompatib|mismatch)|"
                    r"compiled +(?:with|against) .+ but ",
                ),
                pattern(
                    "The ranks differ in their software", "our trainer, which compares as well"
                ),
                pattern(
                    (
                        *("river version is insufficient", "river/library version mismatch"),
                        *("no kernel image is available", "driver on your system is too old"),
                        *("does not match the version torch was compiled with",),
                        *(
                            "forward compatibility was attempted",
                            "PTX was compiled with an unsupported",
                        ),
                    ),
                    "CUDA and NVML, of a driver or a GPU that this build is not for",
                    action="Take a build for that driver and GPU (nvidia-smi; python -m "
                    "torch.utils.collect_env), or leave {node} out: --set resources.exclude={node}",
                ),
            ),
        ),
        Cause(
            "port-taken",
            "The port for the rendezvous was taken on {who}: {words}",
            "Submit again (another job id gives another port), or move rendezvous.port_base in the "
            "site profile.",
            patterns=(
                pattern("is taken on the head node", "our check before training", line=r"port \d+"),
                pattern("no free port outside ", "our batch shell"),
                pattern("server socket has failed to listen", "torch's TCPStore on the head node"),
                pattern("does not know this run's secret", "our agents, of a stranger on the port"),
                pattern(("EADDRINUSE", "Address already in use"), "the kernel, whoever reports it"),
            ),
        ),
        Cause(
            "head-address",
            "{who} could not find the head node by its address: {words}",
            "Correct the name service, or in the site profile rendezvous.address, .prefix, .suffix "
            "or .interface.",
            patterns=(
                pattern(
                    "the head node",
                    "our check before training",
                    line=r"'[^']*' (?:does not resolve|resolves to)",
                ),
                pattern(
                    (
                        "no IPv4 address from ",
                        "is not an IPv4 address",
                        "one interface in the site",
                    ),
                    "our batch shell",
                ),
                pattern("is a loopback, link-local or empty address", "our batch shell"),
                pattern("no route to the head node's address", "the shell on each node"),
                pattern("no network interface carries ", "the shell on each node"),
                pattern(
                    "cannot reach the head node's port",
                    "our agents, of an address where nobody is; silence may have other reasons",
                    Level.WAITED,
                    line="head node's port (?!.*timed out)",
                ),
                pattern(
                    "The IPv",
                    "torch's TCPStore, of a name that does not resolve",
                    line=r"network addresses of \(.*\) cannot be retrieved",
                ),
                pattern(
                    (
                        *("Name or service not known", "Temporary failure in name resolution"),
                        "No address associated with hostname",
                    ),
                    "getaddrinfo(3)",
                ),
                pattern(("No route to host", "Network is unreachable"), "connect(2)", Level.WAITED),
            ),
        ),
        Cause(
            "environment-missing",
            "The environment could not be set up on {who}: {words}",
            "Compare the job's environment (fsdpkit check) with what the nodes have: module spider "
            "NAME, conda env list.",
            patterns=(
                pattern(("cannot load the module ", "there is no 'module' command"), "our shell"),
                pattern(("there is no 'conda' here", "info --base' failed"), "our shell"),
                pattern(
                    ("CondaError: ", "conda init"), "conda", line=r"(?i)run 'conda init'|CondaError"
                ),
                pattern(
                    "execve(): ",
                    "slurmstepd, of a program that is not there or may not be run",
                    by=("agent", "batch"),
                ),
                pattern(
                    "FATAL: ",
                    "apptainer, of a container that it cannot make",
                    by=("agent", "batch"),
                    line=r"FATAL:\s+(?:container creation failed|could not open image|while )",
                ),
                pattern(
                    ("bad interpreter", "required file not found"),
                    "the shell, of a script whose Python has moved",
                    by=("agent", "batch"),
                ),
                pattern("there is no etc/profile.d/conda.sh in ", "our shell"),
                pattern("cannot activate the conda environment ", "our shell"),
                pattern(
                    ": No such file or directory",
                    "the shell, of a file that the job's prelude reads",
                    by=("agent", "batch"),
                    line=r"slurm_script: line \d+: ",
                ),
                pattern("pyxis: couldn't start container", "pyxis", by=("agent", "batch")),
                pattern("there is no Python in ", "our shell, of a virtual environment"),
                pattern("there is no torchrun on PATH", "our shell"),
                pattern(
                    (
                        *("Failed to find C compiler", "CUDA_HOME environment variable is not set"),
                        *("Ninja is required to load C++ extensions", "Cannot find CUDA_HOME"),
                    ),
                    "Triton and torch's builder of extensions, of tools that the node lacks",
                    action="Name the modules that have a compiler (and nvcc, ninja) in the job: "
                    'environment.modules = ["gcc", "cuda"]; or do not compile there.',
                ),
                pattern("The following module(s) are unknown", "Lmod"),
                pattern("Unable to locate a modulefile for", "Environment Modules"),
                pattern(("EnvironmentNameNotFound", "EnvironmentLocationNotFound"), "conda"),
                pattern(
                    "not found",
                    "the shell, in the batch script or around the agent",
                    by=("agent", "batch"),
                    line=r"(?:python|torchrun|conda|module|apptainer): (?:command )?not found",
                ),
                pattern(
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
            patterns=(
                pattern("can't open file '", "Python, of the script that it is to run"),
                pattern("can't find '__main__' module in ", "Python, of a directory that is empty"),
                pattern(
                    "though the head node made it",
                    "our check before training, of the run's directory",
                ),
                pattern("cannot write to the run directory ", "our batch shell"),
            ),
        ),
        Cause(
            "import-error",
            "{who} could not import a module: {words}",
            "Install it into the environment that the job activates; if other nodes have it, this "
            "one sees another environment.",
            patterns=(
                pattern("torch cannot be imported by ", "our check before training"),
                pattern(("ModuleNotFoundError: ", "ImportError: "), "Python"),
                pattern("No module named ", "python -m, and whoever quotes Python"),
                pattern("error while loading shared libraries: ", "the dynamic linker"),
                pattern("cannot open shared object file", "dlopen(3)"),
                pattern("Failed to import ", "transformers, of one of its own modules"),
            ),
        ),
        Cause(
            "network-setup",
            "{who} could not set up the network between the GPUs: {words}",
            "Compare what the node has (ip -br address, ibv_devinfo, nvidia-smi topo -m) with what "
            "NCCL_SOCKET_IFNAME, NCCL_IB_HCA or GLOO_SOCKET_IFNAME ask for; NCCL_DEBUG=INFO says "
            "what was tried.",
            again="not before it is set up otherwise",
            patterns=(
                pattern(
                    ("Unable to find address for: ", "unable to find interface", "ifa != nullptr"),
                    "gloo, of GLOO_SOCKET_IFNAME",
                ),
                pattern(
                    "connectFullMesh failed",
                    "gloo, which listened where others cannot reach it",
                    line=r"\[?(?:127\.|::1)",
                    action="A node's own name means its loopback address there: name the interface "
                    "by GLOO_SOCKET_IFNAME, or in the site profile rendezvous.interface.",
                ),
                pattern(
                    (
                        *("no usable transports", "UCX ERROR", "UCX  ERROR", "UCX  WARN"),
                        *("fi_getinfo", "OFI fi_", "Error: ucp_ep_create"),
                    ),
                    "UCX and libfabric",
                    line=r"ERROR|Error|not available|no usable|fi_",
                ),
                pattern("Duplicate GPU detected", "NCCL"),
            ),
        ),
        # ---- In the training ---------------------------------------------------------------------
        Cause(
            "gpu-out-of-memory",
            "{who} ran out of GPU memory: {words}",
            "Use less: a smaller training.batch_size, training.micro_batch=auto, activation "
            "checkpointing (training.sharding.activation_checkpointing), or more GPUs.",
            retry="out-of-memory",
            again=_SAME_MEMORY,
            patterns=(
                pattern(("OutOfMemoryError", "CUDA out of memory", "HIP out of memory"), "torch"),
                pattern(
                    ("ut of memory", "cudaErrorMemoryAllocation", "RESOURCE_EXHAUSTED"),
                    "CUDA, HIP, XLA",
                    line=r"(?:CUDA|HIP|GPU|XLA|XPU|cuda)\b.{0,40}ut of mem|cudaErrorM|RESOURCE_E",
                ),
                pattern("_STATUS_ALLOC_FAILED", "cuBLAS, cuDNN and their like, of a workspace"),
                pattern(
                    ("uda failure", "UDA_ERROR_OUT_OF_MEMORY"),
                    "NCCL, of its buffers",
                    quoted=True,
                    line=r"(?i)out[_ ]of[_ ]memory|failure 2\b",
                ),
            ),
        ),
        Cause(
            "bad-gpu",
            "A GPU of {who} is broken or cannot be used: {words}",
            "Leave the node out (--set resources.exclude={node}) and tell the centre. " + RESUME,
            retry="node-failure",
            again="yes, without that node",
            patterns=(
                pattern(
                    ("ncorrectable ECC", "ncorrectable NVLink", "ECC_UNCORRECTABLE"),
                    "CUDA, NCCL, the driver, of memory that has lost bits",
                ),
                pattern(
                    "Xid",
                    "the driver; only those numbers that NVIDIA's Xid Errors lays to the hardware",
                    Level.OUTSIDE,
                    by=("agent", "batch"),
                    line=r"(?:NVRM: |\b)Xid (?:\([^)]*\): |error |code )"
                    r"(?:48|62|64|74|79|92|94|95|110|119|120|122|136|140|143|144|145|149)\b",
                ),
                pattern(
                    "fallen off the bus", "the driver, Xid 79", Level.OUTSIDE, by=("agent", "batch")
                ),
                pattern(("fallen off the bus", "GPU is lost"), "NVML, NCCL", by=("rank",)),
                pattern(("NVLink error", "nvlink error"), "the driver"),
                pattern(
                    ("CUDA error: ", "CUDA failure", "Cuda failure"),
                    "CUDA",
                    quoted=True,
                    line=r"(?i)CUDA (?:error|failure).{0,12}(?:hardware|ECC|unknown error|external|"
                    r"Invalid access of peer GPU memory over nvlink|contained)",
                ),
                pattern("CUDA-capable device(s) is/are busy or unavailable", "CUDA"),
                pattern(("CUDA unknown error", "Found no NVIDIA driver"), "torch, of a driver"),
                pattern(
                    "system not yet initialized", "CUDA 802: the node's fabric manager is down"
                ),
                pattern(
                    "has a damaged row of memory and none to replace it",
                    "our check before training",
                ),
                pattern(
                    "GPUs were asked for on each node, ",
                    "our check before training",
                    line=r"shows \d+ here",
                ),
                pattern(
                    "another process holds GPU memory",
                    "our check before training, of what outlived its job",
                ),
            ),
        ),
        Cause(
            "disk-full",
            "No room was left to write: {who}: {words}",
            "Make room (df -h, du), or choose another place with --runs. " + RESUME,
            retry="storage",
            again="not before there is room",
            patterns=(
                pattern("No space left on device", "the kernel's ENOSPC, whoever reports it"),
                pattern("Disk quota exceeded", "the kernel's EDQUOT"),
                pattern(
                    "is killed by signal: ",
                    "torch's loader, of a worker that found no room in /dev/shm",
                    line=r"DataLoader worker .*Bus error",
                ),
                pattern("No usable temporary directory found", "Python's tempfile"),
                pattern("GB are free in ", "our check before training", line=r"only [\d.]+ GB"),
                pattern("the file system or your quota is full", "our check before training"),
            ),
        ),
        Cause(
            "storage",
            "A file system failed {who}: {words}",
            "Look whether the path can be read on that node now, and tell the centre if not. "
            + RESUME,
            retry="storage",
            again="perhaps, once the file system is well",
            patterns=(
                pattern(
                    (
                        *("Stale file handle", "Input/output error", "Read-only file system"),
                        *("Remote I/O error", "Transport endpoint is not connected"),
                        *("Cannot send after transport endpoint shutdown", "disk I/O error"),
                        *("No locks available", "PytorchStreamWriter failed writing"),
                    ),
                    "the kernel's ESTALE, EIO, EROFS, EREMOTEIO, ENOTCONN, ESHUTDOWN; SQLite",
                ),
            ),
        ),
        Cause(
            "checkpoint-unreadable",
            "{who} met a checkpoint, or another saved file, that cannot be read: {words}",
            "See what is whole: fsdpkit checkpoint verify {run}; resume from an older one, or "
            "start from its weights: training.checkpoint.start",
            patterns=(
                pattern("No checkpoint is whole", "our trainer, listing what is wrong with each"),
                pattern(
                    ("its index cannot be read", "is not the index of a checkpoint"), "our trainer"
                ),
                pattern("cannot be read", "our trainer", line=r"step-\d+\S* cannot be read"),
                pattern(
                    "holds no complete checkpoint", "our trainer, of training.checkpoint.start"
                ),
                pattern("PytorchStreamReader failed", "torch.load, of a file that was cut short"),
                pattern("UnpicklingError", "pickle, of a file that is damaged"),
                pattern(("SafetensorError", "Error while deserializing header"), "safetensors"),
                pattern("CheckpointException", "torch.distributed.checkpoint"),
            ),
        ),
        Cause(
            "data-missing",
            "{who} did not find a file that it wanted: {words}",
            "Check that every node sees the path, and how it is spelt.",
            again="not before the file is there",
            patterns=(
                pattern(": no such file", "our readers of data and tokenizers"),
                pattern("Please use the NLTK Downloader", "NLTK"),
                pattern(
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
            again="no, it comes back with the same data",
            patterns=(
                pattern(("is not finite, ", "is not finite in "), "our trainer, on a GPU as well"),
                pattern(
                    ("nan", "NaN", "inf", "Inf", "finite"),
                    "what trainers, torch and its anomaly detection say",
                    quoted=True,
                    line=r"(?i)\b(?:loss(?:es)?|grad\w*|norm|weights?|activations?|logits?|outputs?|"
                    r"probability tensor|invalid values|result|params?|parameters?|backward\w*)\b"
                    r".{0,80}?(?<![\w.])(?:nans?|infs?|infinit\w+|non-?finite|not finite)\b"
                    r"|\b(?:nan|inf|non-?finite)s? (?:\w+ ){0,3}"
                    r"(?:in|loss|grad\w*|found|detected|encountered)\b",
                ),
                pattern(
                    "but found invalid values",
                    "torch.distributions, of parameters that are no numbers",
                ),
                pattern(
                    ("loss scale", "Loss scale"),
                    "DeepSpeed, fairseq, of a scaler that can go no lower",
                    line=r"(?i)(?:minimum loss scale|loss scale already at minimum)",
                ),
            ),
        ),
        Cause(
            "collective-mismatch",
            "The ranks called different collectives, or with different shapes: {words}",
            "Look for what only some ranks do: a branch on the rank, batches of different length, "
            "an early return. TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
            patterns=(
                pattern(
                    "Detected mismatch between collectives on ranks",
                    "torch with TORCH_DISTRIBUTED_DEBUG=DETAIL",
                ),
                pattern(
                    "op.preamble.length <= op.nbytes",
                    "gloo, when a peer sends more than was to be received",
                ),
                pattern(("Mismatched collective detected", ": collective mismatch"), "NCCL"),
                pattern("message truncated : receiving ", "NCCL over sockets"),
            ),
        ),
        # ---- Waited in vain ----------------------------------------------------------------------
        Cause(
            "hang",
            "{who} made no progress any more: {words}",
            "Its stacks are in rank-*.stacks of the attempt's directory. " + RESUME,
            statuses=frozenset({124}),
            retry="hang",
            waited="{who} waited in vain for another rank, and nobody says for which: {words}",
            patterns=(
                pattern(
                    "waiting for other ranks",
                    "our agents, of a rank that waits",
                    Level.WAITED,
                    action=_LOOK_AT_ALL,
                ),
                pattern(
                    " (after step ",
                    "our agents, of a rank that does something else than the others",
                    line=r"(?:made no step|was \w+) for \d+ s \(after step -?\d+\)",
                ),
                pattern(
                    "monitoredBarrier",
                    "gloo's monitored barrier, which knows who did not come",
                    line=r"(?i)ranks?(?:\(s\))? (?P<rank>\d+)(?:, \d+)* failed to (?:pass|reach) m",
                ),
                pattern(
                    (
                        *("Watchdog caught collective operation timeout", "Timed out waiting "),
                        *(
                            "watchdog got stuck",
                            "watchdog hang",
                            "eartbeat monitor",
                            "watchdog stuck",
                        ),
                        *(
                            "ollective operation timed out",
                            "monitoredBarrier",
                            "collective timeout",
                        ),
                        *("Timeout at NCCL work", "timed out in a collective"),
                    ),
                    "NCCL's watchdog and gloo in a rank that waits for another",
                    Level.WAITED,
                    line=r"(?i)waiting \d+ms|watchdog|heartbeat|barrier|collective|NCCL work",
                    action=_LOOK_AT_ALL,
                ),
                pattern(
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
            patterns=(
                pattern(
                    "no agent after ", "the head's agent, of nodes that did not come", Level.WAITED
                ),
                pattern(
                    ("RendezvousTimeoutError", "RendezvousConnectionError"),
                    "torchrun",
                    Level.WAITED,
                ),
                pattern(
                    ("client socket has timed out", "client socket has failed to connect"),
                    "torch's TCPStore on a node that does not reach the head",
                    Level.WAITED,
                ),
                pattern("where the ranks are to meet", "our agents", Level.WAITED),
                pattern("waiting for clients", "TCPStore on the head", Level.WAITED),
                pattern("wait timeout after ", "TCPStore, of a key that nobody sets", Level.WAITED),
            ),
        ),
        Cause(
            "connection-reset",
            "{who} lost the connection to another rank, and nobody says why: {words}",
            "Look for what happened on the other side: the node's own log, sinfo -R. " + RESUME,
            patterns=(
                pattern(
                    (
                        *("Connection reset", "Connection closed", "Connection refused"),
                        *("connection reset", "connection closed", "connection refused"),
                        *("closed by peer", "Broken pipe", "broken pipe", "Socket Timeout"),
                        *("Socket timeout", "ncclRemoteError", "ncclSystemError"),
                        *("remote process exited", "communicator was aborted"),
                        *("ConnectionResetError", "BrokenPipeError", "failed to recv, got 0 bytes"),
                        *("DistNetworkError", "DistStoreError", "Connection timed out"),
                    ),
                    "gloo, NCCL and TCPStore in ranks whose peer is gone: no cause while anybody "
                    "else has one",
                    Level.LOST_PEER,
                ),
                pattern(
                    HEAD_SILENT,
                    "our agents on the other nodes; the head may have failed for its own reason",
                    Level.LOST_PEER,
                ),
                pattern(
                    "] Read error [",
                    "gloo, whatever errno says",
                    Level.LOST_PEER,
                    line=r"gloo/transport/",
                ),
                pattern("] Write", "gloo", Level.LOST_PEER, line=r"gloo/transport/.*Writev? error"),
            ),
        ),
        # ---- Anything else that a process says ---------------------------------------------------
        Cause(
            "settings",
            "The settings do not fit: {who}: {words}",
            "Correct them and submit again.",
            retry="settings",
            again="not before they are corrected",
            statuses=frozenset(
                error.exit_code for error in (UsageError, ConfigError, NotFoundError, NodeError)
            ),
            patterns=(
                pattern(
                    ("ConfigError: ", "UsageError: ", "NotFoundError: "),
                    "our trainer",
                    line=r"^(?:fsdpkit\.errors\.)?(?:ConfigError|UsageError|NotFoundError): ",
                ),
                pattern(
                    "asked for ", "our batch shell", line=r"asked for \d+ nodes.*, but \S+ has "
                ),
            ),
        ),
        Cause(
            "exception",
            "{who} failed: {words}",
            "Read the traceback: fsdpkit logs {run} --errors",
        ),
        # ---- Known without a log -----------------------------------------------------------------
        Cause("pending-forever", "The job is pending and will not start by itself: {words}."),
        Cause("pending", "The job is pending: {words}."),
        Cause("running", "The job is running, and nothing is wrong so far."),
        Cause("done", "The run is done."),
        Cause("unknown", "Nobody says why: {words}."),
    )
}
"""By name, the more particular first."""

_WITHOUT_A_PAGE = ("running", "done")


def page_of(cause: str) -> str | None:
    """The page on a cause, as a path from what is packaged; None where nothing went wrong."""
    return None if cause in _WITHOUT_A_PAGE else f"docs/failures/{cause}.md"
