"""What one of Slurm's commands answers to a question on a login node, or in words why it does not.

The client in slurm.py follows jobs and submits them; here is what else `check` and `init` ask.
"""

from __future__ import annotations

import os
import subprocess

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.environment import scrubbed

_ASK_S = 20.0


def answer(*argv: str) -> str:
    """The output of a command. Raises SchedulerError, in the command's own words if it has any."""
    try:
        done = subprocess.run(
            argv,
            env=scrubbed(os.environ)[0],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(f"there is no {argv[0]} on PATH") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{argv[0]} has not answered within {_ASK_S:.0f} s") from None
    except OSError as error:
        raise SchedulerError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise SchedulerError(done.stderr.strip() or f"{argv[0]}: exit status {done.returncode}")
    return done.stdout


def accounts_of(clusters: str | None) -> list[str]:
    """The accounts that this user may charge, by Slurm's accounting; clusters: of these alone.

    Raises SchedulerError where it does not say.
    """
    import pwd  # only Unix has it

    of_cluster = [f"cluster={clusters}"] if clusters else []
    try:
        who = f"user={pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        raise SchedulerError(f"user {os.getuid()} has no name on this machine") from None
    rows = answer("sacctmgr", "-nP", "show", "assoc", "format=cluster,account", *of_cluster, who)
    return sorted({line.split("|")[1] for line in rows.splitlines() if "|" in line})
