"""T5, which at a step that `plan.json` in $FAULTS_DIR names waits, or breaks in a way it names.

{"hold": 3}                                       all ranks wait while `hold-training` exists
{"break": "raise", "ranks": [1], "step": 3, "error": "RuntimeError", "message": "..."}
{"break": "poison", "ranks": [1], "step": 3}      the loss of that step is no number
{"break": "stall", "ranks": [1], "step": 3}       a rank waits for a sample that never comes
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "examples" / "T5-fsdp"))

import fsdp_t5  # noqa: E402
import torch  # noqa: E402

from fsdpkit.errors import FsdpkitError  # noqa: E402

DIRECTORY = Path(os.environ["FAULTS_DIR"])
RANK = int(os.environ["RANK"])
PLAN: Mapping[str, Any] = json.loads((DIRECTORY / "plan.json").read_text())
seed_step = fsdp_t5.seed_step


def hold() -> None:
    (DIRECTORY / f"at-training-rank-{RANK}").touch()
    while (DIRECTORY / "hold-training").exists():
        time.sleep(0.02)


def raise_error() -> None:
    kinds = {"RuntimeError": RuntimeError, "OutOfMemoryError": torch.OutOfMemoryError}
    raise kinds[PLAN["error"]](PLAN["message"])


def read_sample_from_slow_disk() -> None:
    while True:
        time.sleep(1)


def poison_loss() -> None:
    backward = fsdp_t5.forward_backward

    def poisoned(model: Any, how: str, scaler: Any, weight: Any, batch: Any) -> Any:
        return backward(model, how, scaler, weight * float("nan"), batch)

    vars(fsdp_t5).update(forward_backward=poisoned)


BREAKS: Mapping[str, Callable[[], None]] = {
    "raise": raise_error,
    "poison": poison_loss,
    "stall": read_sample_from_slow_disk,
}


def load_step(seed: int, step: int, rank: int) -> None:
    if step == PLAN.get("hold"):
        hold()
    if step == PLAN.get("step") and RANK in PLAN["ranks"]:
        BREAKS[PLAN["break"]]()
    seed_step(seed, step, rank)


def main() -> int:
    vars(fsdp_t5).update(seed_step=load_step)
    try:
        return fsdp_t5.main()
    except FsdpkitError as error:
        print(f"fsdp_t5: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
