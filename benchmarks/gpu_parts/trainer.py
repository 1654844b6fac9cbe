"""The trainer as a user starts it: torchrun, fsdp_t5.py, a file of texts.

With full rows its speed is to be that of the part "step" at the same settings; with texts of many
lengths, buckets and evaluations every block is to stay compiled.
"""

from __future__ import annotations

import functools
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.step import CASES
from benchmarks.gpu_parts.trial import Lengths, plan

TRAINER = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp" / "fsdp_t5.py"


def run(part: Part) -> None:
    for name, of in (("full rows", full_rows), ("buckets and evaluation", buckets)):
        part.measure(name, functools.partial(of, part), needs_s=60)


def full_rows(part: Part) -> Row:
    """The median of the logged steps after compilation, beside those of the part "step"."""
    case = CASES[0]
    rows, steps = (2, 4) if part.dry else (case.rows, 30)
    known = [r for r in part.known("step") if r["name"] == case.name and r["call"] == part.call]
    lines = train(part, rows, steps, 1.0, "metrics.every_steps=1", "evaluation.batches=0")
    timed = [line for line in lines if line.get("step", 0) > steps // 2 and "step_time_s" in line]
    sequences_per_s = rows / statistics.median(line["step_time_s"] for line in timed)
    tokens = {round(line["tokens_per_s"] * line["step_time_s"]) for line in timed}
    expected = known[-1]["sequences_per_s"] if known else None
    return {
        "rows": rows,
        "sequences_per_s": sequences_per_s,
        "expected_per_s": expected,
        "full": tokens == {rows * sum(plan("", dry=part.dry).lengths)},
        **compiled(lines),
    }


def buckets(part: Part) -> Row:
    rows, steps = (2, 8) if part.dry else (CASES[0].rows, 40)
    every = steps // 4
    lines = train(
        part,
        rows,
        steps,
        0.2,
        "data.buckets=4",
        "data.held_out=0.1",
        f"metrics.every_steps={every // 2}",
        f"evaluation.every_steps={every}",
        "evaluation.batches=2",
        f"data.multiple={8 if part.dry else 64}",
    )
    return {"evaluations": sum("eval_loss" in line for line in lines), **compiled(lines)}


def compiled(lines: list[dict[str, Any]]) -> Row:
    """The fewest blocks that ran compiled over a logged line, of all."""
    counts = [(line["compiled_blocks"], line["blocks"]) for line in lines if "blocks" in line]
    fewest, blocks = min(counts, default=(None, None))
    return {"compiled_blocks": fewest, "blocks": blocks, "passed": fewest == blocks}


def train(part: Part, rows: int, steps: int, spread: float, *words: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; RuntimeError with the end of what was printed if it failed."""
    task = plan("t5-v1.1-large", *CASES[0].words, dry=part.dry)
    directory = part.scratch / str(spread)
    directory.mkdir()
    texts = write_texts(directory / "texts.jsonl", rows * (steps + 2), task.lengths, spread)
    settings = (
        *task.words,
        f"data.source={texts}",
        "data.task=pairs",
        "data.tokenizer=bytes",
        f"data.source_length={task.lengths.source}",
        f"data.target_length={task.lengths.target}",
        f"batch_size={rows}",
        f"steps={steps}",
        "checkpoint.at_end=false",
        "checkpoint.every_steps=0",
        *words,
    )
    outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    environ = {key: value for key, value in os.environ.items() if key not in outer}
    python_path = [str(TRAINER.parents[2]), environ.get("PYTHONPATH", "")]
    environ |= {"FSDPKIT_TASK_DIR": str(directory), "PYTHONPATH": os.pathsep.join(python_path)}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += ["--nproc-per-node", "1", str(TRAINER)]
    for word in settings:
        argv += ["--set", word]
    # Ended by gpu.py when the part's time is over.
    done = subprocess.run(
        argv,
        env=environ,
        cwd=part.scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout[-20_000:], flush=True)
    if done.returncode:
        cause = done.stdout.partition('File "<frozen runpy>"')[0][-400:]  # torchrun's own follows
        raise RuntimeError(f"the trainer ended with {done.returncode}: {cause}")
    (file,) = directory.rglob("metrics.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def write_texts(file: Path, count: int, lengths: Lengths, spread: float) -> Path:
    """`count` rows of one letter, from a share `spread` of the longest length up to it."""
    chance = random.Random(0)
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(count):
            # A byte is a token, and the last one is the end of the text.
            sizes = [max(2, int(chance.uniform(spread, 1.0) * longest)) for longest in lengths]
            texts = {name: "a" * size for name, size in zip(lengths._fields, sizes, strict=True)}
            lines.write(json.dumps(texts) + "\n")
    return file
