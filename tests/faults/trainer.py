"""The T5 trainer of the examples with breakpoints (tests/faults/breakpoints.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "T5-fsdp"))

import fsdp_t5  # noqa: E402
import torch  # noqa: E402
from breakpoints import break_down, hold  # noqa: E402

from fsdpkit.errors import FsdpkitError  # noqa: E402
from fsdpkit.training import checkpoint  # noqa: E402
from fsdpkit.training.heartbeat import Heartbeat  # noqa: E402

ERRORS = {"RuntimeError": RuntimeError, "OutOfMemoryError": torch.OutOfMemoryError}


def before(function: Callable[..., Any], action: Callable[..., None]) -> Callable[..., Any]:
    """`function`, with `action` called first on the same arguments."""

    def both(*args: Any, **kwargs: Any) -> Any:
        action(*args, **kwargs)
        return function(*args, **kwargs)

    return both


def at_step(_seed: int, step: int, _rank: int) -> None:
    hold("training", step)
    break_down(step, ERRORS)


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
