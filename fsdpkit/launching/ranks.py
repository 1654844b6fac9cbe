"""torchrun's elastic agent, run in this process with our places for the ranks' output.

The arguments are torchrun's own, parsed by torchrun's own parser; only where logs and error files
go is ours, and that a rank dies when this process does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, get_args_parser

from fsdpkit.runs.layout import AttemptPaths

# Replaces itself by the rank after asking the kernel to end it with its parent: torchrun gives each
# rank a session of its own, so without this a rank would outlive an agent that was killed.
_DIES_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class RunDirectoryLogs(LogsSpecs):
    """Every rank's stdout, stderr and error file in the attempt's directory, by global rank.

    Global rank 0 is also copied to this process's own output, so that the job's log shows the
    training.
    """

    def __init__(self, attempt: AttemptPaths) -> None:
        super().__init__()
        self._attempt = attempt

    @property
    def root_log_dir(self) -> str:
        return str(self._attempt.dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        restart = int(next(iter(envs.values()))["TORCHELASTIC_RESTART_COUNT"]) if envs else 0

        def files(kind: Literal["out", "err", "error.json"]) -> dict[int, str]:
            return {i: str(self._attempt.rank_file(r, kind, restart)) for i, r in ranks.items()}

        out, err, errors = files("out"), files("err"), files("error.json")
        for local, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = errors[local]
        shown = {local for local, rank in ranks.items() if rank == 0}
        return LogsDest(
            stdouts=out,
            stderrs=err,
            tee_stdouts={i: p for i, p in out.items() if i in shown},
            tee_stderrs={i: p for i, p in err.items() if i in shown},
            error_files=errors,
            filtered_stdout=os.devnull,
            filtered_stderr=os.devnull,
        )


def run_torchrun(arguments: Sequence[str], attempt: AttemptPaths) -> None:
    """Run `torchrun ARGUMENTS` here until its ranks have ended.

    Raises torch's ChildFailedError if ranks failed, SignalException if this process was told to
    stop, or what rendezvous raises.
    """
    args = get_args_parser().parse_args(list(arguments))
    if args.standalone:
        args.rdzv_backend, args.rdzv_endpoint = "c10d", "localhost:0"
        args.rdzv_id = os.environ["SLURM_JOB_ID"]
    args.log_dir = str(attempt.dir)  # or torchrun makes a directory of its own, and leaves it
    config, command, command_args = config_from_args(args)
    config.logs_specs = RunDirectoryLogs(attempt)
    config.log_line_prefix_template = "rank ${rank}: "
    shim = ["-I", "-S", "-c", _DIES_WITH_PARENT, str(command)]
    elastic_launch(config, sys.executable)(*shim, *command_args)
