"""Where a trainer waits until a test has broken what it wants to break, and errors it raises.

A file `hold-<phase>` in $FAULTS_DIR asks for it. Every rank that gets there writes
`at-<phase>-rank-<r>` and goes on when the request is gone, or names another step; so a fault
happens at a known place, however slow the machine is. The file's content is the step to wait at,
where the phase has one:

    start-up        the ranks have joined, nothing is loaded yet
    training        so many steps are done
    checkpointing   the checkpoint of this step is written, but has no name yet (rank 0)
    shutdown        the last step is done

A rank that waits writes `warned-rank-<r>` once its agent has told it to save and stop. Both files
say who it is, as `rank-<r>` does of the newest: its node and process.

`raise.json` names an exception that a rank raises at each of some steps, `once` or always. The task
of an array looks in the directory of its number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from fsdpkit.runs.heartbeat import HeartbeatDir

DIRECTORY = Path(os.environ["FAULTS_DIR"], os.environ.get("SLURM_ARRAY_TASK_ID", ""))
RANK = int(os.environ["RANK"])
LOOK_S = 0.02

_mine = DIRECTORY / f".rank-{RANK}"
_SELF = f"{os.environ['SLURMD_NODENAME']} {os.getpid()}"
_mine.write_text(_SELF)
_mine.rename(DIRECTORY / f"rank-{RANK}")


def hold(phase: str, step: int | None = None) -> None:
    """Wait here if asked to."""
    if not _asked(phase, step):
        return
    (DIRECTORY / f"at-{phase}-rank-{RANK}").write_text(_SELF)
    node, warned = HeartbeatDir.of_this_node(), False
    while _asked(phase, step):
        time.sleep(LOOK_S)
        if not warned and node and node.stop.exists():
            (DIRECTORY / f"warned-rank-{RANK}").write_text(_SELF)
            warned = True


def _asked(phase: str, step: int | None) -> bool:
    try:
        wanted = (DIRECTORY / f"hold-{phase}").read_text()
    except FileNotFoundError:
        return False
    return step is None or wanted == str(step)


def break_down(step: int, kinds: Mapping[str, type[Exception]]) -> None:
    """Raise what `raise.json` asks for, of the kinds by name."""
    file = DIRECTORY / "raise.json"
    if not file.exists():
        return
    wanted = json.loads(file.read_text())
    if wanted["rank"] != RANK or step not in wanted["steps"]:
        return
    if wanted["once"]:
        wanted["steps"].remove(step)
        draft = DIRECTORY / f".raise-{RANK}"  # other ranks read it meanwhile
        draft.write_text(json.dumps(wanted))
        draft.rename(file)
    raise kinds[wanted["error"]](wanted["message"])
