"""A trial's script without torch, and sweeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TRAIN = """
import glob, json, math, os, subprocess, sys, time

words = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
x, goal = float(words["x"]), int(words.get("steps", 4))
what = FATES.get(x)
task = os.environ["FSDPKIT_TASK_DIR"]
own = "_".join(os.environ.get(f"SLURM_ARRAY_{it}_ID", "") for it in ("JOB", "TASK"))
if what == "requeue" and not os.path.exists(task + "/again"):
    open(task + "/again", "w").close()
    subprocess.run(["scontrol", "requeue", own])
    time.sleep(600)
if what == "pair":
    open(f"{__file__}-{x}", "w").close()
    while len(glob.glob(f"{__file__}-*")) < 2:
        time.sleep(0.1)
saved = task + "/saved"
step = int(open(saved).read()) if os.path.exists(saved) else 0
while step < goal:
    step += 1
    line = {"time_s": time.time(), "step": step, "loss": 1 / step, "planned_steps": goal}
    if what != "silent":
        wrong = what == "diverge" and step == goal
        line["eval_loss"] = None if wrong else (x - BEST) ** 2 + 1 / step
    with open(task + "/metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
    with open(task + "/steps", "a") as file:
        file.write("done\\n")
    if what == "hold" and step == 2 and not os.path.exists(task + "/again"):
        open(task + "/again", "w").close()
        with open(saved, "w") as file:
            file.write(str(step))
        time.sleep(600)
with open(saved, "w") as file:
    file.write(str(step))
# These two have a value by now, and a good one.
if what == "fail":
    sys.exit(3)
if what == "cancel":
    subprocess.run(["scancel", own])
    time.sleep(600)
"""
"""As many steps as it is told, of which it has done those that its last job did: the nearer x is to
BEST the better. FATES says by x who fails, cancels itself, is queued again, silent or diverges,
begins together with another, or holds at step 2 until it is started again."""
BEST = 0.25


def write_sweep(
    home: Path, name: str = "s", fates: Mapping[float, str] | None = None, **keys: Any
) -> Path:
    """A sweep's file in `home`, beside the script."""
    (home / "train.py").write_text(f"FATES = {dict(fates or {})!r}\nBEST = {BEST}\n{TRAIN}")
    told = {"schema": "fsdpkit.sweep/1", "name": name, "job": "train.py", **keys}
    path = home / f"{name}.toml"
    path.write_text(as_toml(told))
    return path


def as_toml(told: Mapping[str, Any]) -> str:
    """Tables in tables, one to a line; what JSON and TOML write alike."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in told.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)
