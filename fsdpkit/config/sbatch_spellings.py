"""sbatch's own spellings, with what stands for each here. Needs the standard library alone: the
laptop of a person who submits by `--host` answers them, too.
"""

from __future__ import annotations

KEYS = {
    "account": "resources.account",
    "constraint": "resources.constraint",
    "container": "environment.container",
    "cpus-per-gpu": "resources.cpus_per_gpu",
    "exclude": "resources.exclude",
    "exclusive": "resources.exclusive",
    "gpus-per-node": "resources.gpus",
    "job-name": "name",
    "mail-type": "notify.on",
    "mail-user": "notify.mail",
    "mem": "resources.memory",
    "no-kill": "resources.spare",
    "nodelist": "resources.nodelist",
    "nodes": "resources.nodes",
    "partition": "resources.partition",
    "qos": "resources.qos",
    "reservation": "resources.reservation",
    "time": "resources.time",
}
"""By sbatch's long option, the job's key that stands for it."""

_A_NODE = "fsdpkit starts a rank on each GPU: --nodes and --gpus (resources.gpus) say how many"
_ENVIRONMENT = "the job's environment is in [environment]: variables, prepend and pass"
_LOG = "fsdpkit logs shows all output, which the run's directory keeps"
_MEMORY = "memory is asked for by the node, in resources.memory"
_NOT_THIS_WAY = "fsdpkit itself calls sbatch, and reads its answer"
_REQUEUE = "[retry] says when a job is queued again, the site's policy.requeue whether it may be"
OTHERWISE = {
    "array": "--array makes an array of a submission",
    "chdir": "a job runs in the directory that it is submitted from: change to it first",
    "cluster": "--cluster names the profile of another cluster",
    "clusters": "--cluster names the profile of another cluster",
    "comment": "fsdpkit finds its jobs by their comment",
    "container-id": "environment.container names a container's image",
    "cpus-per-task": "resources.cpus_per_gpu counts cores by the GPU, and so by the rank",
    "dependency": "--after RUN starts a job after another",
    "error": _LOG,
    "export": _ENVIRONMENT,
    "export-file": _ENVIRONMENT,
    "get-user-env": _ENVIRONMENT,
    "gid": "a job is its submitter's own",
    "gpu-bind": "the one task of a node needs all of its GPUs",
    "gpus": _A_NODE,
    "gpus-per-socket": _A_NODE,
    "gpus-per-task": _A_NODE,
    "gres": "--gpus N (resources.gpus) requests GPUs per node, in the form that the site's profile "
    "says; for one type of GPU name its --partition or resources.constraint",
    "help": _NOT_THIS_WAY,
    "kill-on-invalid-dep": "--after sets it",
    "mem-per-cpu": _MEMORY,
    "mem-per-gpu": _MEMORY,
    "nodefile": "resources.nodelist names nodes",
    "no-requeue": _REQUEUE,
    "ntasks": _A_NODE,
    "ntasks-per-core": _A_NODE,
    "ntasks-per-gpu": _A_NODE,
    "ntasks-per-node": _A_NODE,
    "ntasks-per-socket": _A_NODE,
    "open-mode": _LOG,
    "output": _LOG,
    "parsable": _NOT_THIS_WAY,
    "requeue": _REQUEUE,
    "signal": "policy.warning_s of a profile says how early Slurm warns; fsdpkit itself needs it",
    "test-only": "fsdpkit submit --check asks Slurm",
    "tres-bind": "the one task of a node needs all of its GPUs",
    "tres-per-task": _A_NODE,
    "uid": "a job is its submitter's own",
    "usage": _NOT_THIS_WAY,
    "version": _NOT_THIS_WAY,
    "wait": "fsdpkit submit --wait waits for the end",
    "wrap": "the job's entry is what is run",
}
"""By sbatch's long option, what stands for it where no key does."""

OF_OTHERS = {
    "fsdpkit submit FILE.toml": ("f", "file", "config", "job"),
    "--set environment.variables.NAME=VALUE": ("e", "env"),
    "account": ("project",),
    "gpus-per-node": ("gpu", "ngpus", "nproc-per-node", "num-gpus"),
    "job-name": ("name",),
    "nodes": ("nnodes", "node", "num-machines", "num-nodes"),
    "ntasks": ("num-processes",),
    "partition": ("queue",),
    "time": ("walltime",),
}
"""Options of other launchers, by that of sbatch which says the same, or what does here."""

LETTERS = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "S": "core-spec",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Short options of sbatch, each with its long one."""

LONG_OPTIONS = frozenset(
    """account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    consolidate-segments constraint container container-id contiguous core-spec cores-per-socket
    cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
    exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input
    job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step open-mode output
    overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet
    reboot requeue reservation resv-ports segment signal sockets-per-node spread-job spread-segments
    stepmgr switches test-only thread-spec threads-per-core time time-min tmp tres-bind
    tres-per-task uid usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
    """.split()  # noqa: SIM905 (a list of a hundred strings is unreadable)
)
