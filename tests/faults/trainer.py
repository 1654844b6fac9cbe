"""The T5 trainer, which waits at chosen places until a test has broken what it wants to break.

A file `hold-<phase>` in $FAULTS_DIR asks for it. Every rank that gets there writes
`at-<phase>-rank-<r>` and goes on when the request is gone; so a fault happens at a known place,
however slow the machine is. The file's content is the step to wait at, where the phase has one:

    start-up        the ranks have joined, nothing is loaded yet
    training        so many steps are done
    checkpointing   the checkpoint of this step is written, but has no name yet (rank 0)
    shutdown        the last step is done

`raise.json` names an exception that a rank raises at each of some steps, `once` or always. The task
of an array looks in the directory of its number.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "T5-fsdp"))

import fsdp_t5  # noqa: E402
import torch  # noqa: E402

from fsdpkit.errors import FsdpkitError  # noqa: E402
from fsdpkit.training import checkpoint  # noqa: E402
from fsdpkit.training.heartbeat import Heartbeat  # noqa: E402

DIRECTORY = Path(os.environ["FAULTS_DIR"], os.environ.get("SLURM_ARRAY_TASK_ID", ""))
RANK = int(os.environ["RANK"])
LOOK_S = 0.02


def hold(phase: str, step: int | None = None) -> None:
    """Wait here if asked to."""
    request = DIRECTORY / f"hold-{phase}"
    if not request.exists() or (step is not None and int(request.read_text()) != step):
        return
    (DIRECTORY / f"at-{phase}-rank-{RANK}").touch()
    while request.exists():
        time.sleep(LOOK_S)


def break_down(step: int) -> None:
    """Raise what `raise.json` asks for."""
    file = DIRECTORY / "raise.json"
    if not file.exists():
        return
    wanted = json.loads(file.read_text())
    if wanted["rank"] != RANK or step not in wanted["steps"]:
        return
    if wanted["once"]:
        wanted["steps"].remove(step)
        file.write_text(json.dumps(wanted))
    kinds: dict[str, type[Exception]] = {
        "RuntimeError": RuntimeError,
        "OutOfMemoryError": torch.OutOfMemoryError,
    }
    raise kinds[wanted["error"]](wanted["message"])


def before(function: Callable[..., Any], action: Callable[..., None]) -> Callable[..., Any]:
    """`function`, with `action` called first on the same arguments."""

    def both(*args: Any, **kwargs: Any) -> Any:
        action(*args, **kwargs)
        return function(*args, **kwargs)

    return both


def at_step(_seed: int, step: int, _rank: int) -> None:
    hold("training", step)
    break_down(step)


def at_publishing(_claim: object, description: Any, *_: object, **__: object) -> None:
    hold("checkpointing", description.step)


def main() -> int:
    vars(fsdp_t5).update(
        train=before(fsdp_t5.train, lambda *_: hold("start-up")),
        seed_step=before(fsdp_t5.seed_step, at_step),
    )
    vars(checkpoint).update(publish=before(checkpoint.publish, at_publishing))
    type.__setattr__(Heartbeat, "ending", before(Heartbeat.ending, lambda _: hold("shutdown")))
    try:
        return fsdp_t5.main()
    except FsdpkitError as error:
        print(f"fsdp_t5: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
