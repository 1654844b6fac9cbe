"""The environment that `accelerate launch`, with a file or options of its own, would have given the
script.

Accelerate's own launcher works it out, of whichever release the job's environment has: in a process
of its own, which ends where the launcher would call torchrun. Its addresses, ports and numbers of
processes are not used, for those are the job's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdpkit.config.launch import LaunchSettings
from fsdpkit.errors import NodeError
from fsdpkit.runs.job_file import table_of_job

_LONGEST_S = 300
_KEY = "launch.accelerate_"


def accelerate_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks need besides; empty if the job says nothing of Accelerate. Raises NodeError."""
    launch = table_of_job(Path(environ["FSDPKIT_RUN_DIR"]), "launch", LaunchSettings)
    if not (words := _words(launch)):
        return {}
    key = f"{_KEY}{'args' if launch.accelerate_args else 'config'}"
    nodes, ranks = environ["FSDPKIT_NODES"], environ["FSDPKIT_RANKS_PER_NODE"]
    call = [sys.executable, "-c", environ["FSDPKIT_START"], __name__, nodes, ranks, *words]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=_LONGEST_S)
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
            raise NodeError(f"{key}: {' '.join(words)}: {why}")
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise NodeError(f"{key}: {' '.join(words)}: {error}") from error
    return found


def _words(launch: LaunchSettings) -> list[str]:
    file = launch.accelerate_config
    return [*(["--config_file", file] if file else []), *launch.accelerate_args]


def main() -> int:
    """In that process: prints the variables as JSON, on the last line."""
    nodes, ranks, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    before = dict(os.environ)
    found: dict[str, str] = {}

    def instead_of_torchrun(_: Any) -> None:
        found.update({k: v for k, v in os.environ.items() if before.get(k) != v})

    try:
        _launch(words, nodes, ranks, instead_of_torchrun)
    except SystemExit as error:  # of its parser, which has said why
        print(error.code if isinstance(error.code, str) else "", end="", file=sys.stderr)
        return 1
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"\n{json.dumps(found)}")
    return 0


def _launch(words: list[str], nodes: int, ranks: int, instead_of_torchrun: Any) -> None:
    import torch.distributed.run
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command, launch_command_parser

    setattr(torch.distributed.run, "run", instead_of_torchrun)  # noqa: B010
    # Two at least: with one, some of its checks ask for another launcher.
    numbers = {"num_processes": max(2, nodes * ranks), "num_machines": nodes, "machine_rank": 0}
    ours = {**numbers, "main_process_ip": "127.0.0.1", "main_process_port": 0, "gpu_ids": "all"}
    ours["deepspeed_multinode_launcher"] = "standard"  # the one that calls torchrun
    words = [*words, *(word for key, value in ours.items() for word in (f"--{key}", str(value)))]
    said = launch_command_parser().parse_args([*words, "script"])
    if not (said.use_fsdp or said.use_deepspeed or said.use_megatron_lm):
        given = load_config_from_file(said.config_file) if said.config_file else None
        kind = given and getattr(given.distributed_type, "value", given.distributed_type)
        if kind in (None, "NO", "MULTI_CPU"):
            words.append("--multi_gpu")
        if given and given.use_cpu:
            os.environ["ACCELERATE_USE_CPU"] = "True"
    launch_command(launch_command_parser().parse_args([*words, "script"]))
