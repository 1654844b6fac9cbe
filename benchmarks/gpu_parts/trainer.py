"""The trainer as a user starts it: torchrun, fsdp_t5.py, a file of texts.

At the benchmark's settings and full rows its speed is to be the benchmark's; with texts of many
lengths, buckets and evaluations it is to stay compiled. This process makes no CUDA context, so that
the trainer has all of the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import random
import re
import signal
import statistics
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.steps import BATCH, best_words, fastest_row
from benchmarks.gpu_parts.trial import plan

TRAINER = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp" / "fsdp_t5.py"
NEAR = 0.03
"""How much slower than the benchmark the trainer may be."""

NEEDS_S = 100


def run(part: Part) -> None:
    part.measure("full rows", functools.partial(full_rows, part), needs_s=NEEDS_S)
    part.measure("buckets and evaluation", functools.partial(buckets, part), needs_s=NEEDS_S)


def full_rows(part: Part) -> Row:
    """The mean of the logged lines after compilation, beside the benchmark's `sequences_per_s`."""
    of_benchmark = fastest_row(part.context, "profile") or fastest_row(part.context)
    words = tuple(of_benchmark["words"]) if of_benchmark else best_words(part.context)
    rows = 2 if part.dry else of_benchmark["rows"] if of_benchmark else BATCH
    steps, every = (4, 1) if part.dry else (40, 5)
    task = plan("t5-v1.1-large", *words, dry=part.dry)
    lengths = task.lengths
    texts = write_texts(part.scratch / "full.jsonl", rows * (steps + 2), lengths, spread=1.0)
    lines, _ = train(
        part,
        "full",
        *task.words,
        *of_data(part, texts, lengths),
        f"batch_size={rows}",
        f"steps={steps}",
        f"metrics.every_steps={every}",
        "evaluation.batches=0",
    )
    timed = [line for line in lines if "step_time_s" in line and line["step"] > steps // 2]
    sequences_per_s = rows / statistics.median(line["step_time_s"] for line in timed)
    tokens = {round(line["tokens_per_s"] * line["step_time_s"]) for line in timed}
    expected = of_benchmark["sequences_per_s"] if of_benchmark else None
    ratio = sequences_per_s / expected if expected else None
    return {
        "rows": rows,
        "trainer_sequences_per_s": sequences_per_s,
        "benchmark_sequences_per_s": expected,
        "of_benchmark": ratio,
        "mfu": timed[-1].get("mfu"),
        "full": tokens == {rows * sum(lengths)},
        "words": list(task.words),
        # A dry run's steps take no time to speak of.
        **({"passed": ratio >= 1 - NEAR} if ratio and not part.dry else {}),
    }


def buckets(part: Part) -> Row:
    """How often blocks were compiled anew, and what the trainer says of them, over evaluations."""
    rows, steps = (2, 8) if part.dry else (BATCH, 60)
    every = steps // 4
    words = (*best_words(part.context), "compile=true", "data.buckets=4", "data.held_out=0.1")
    task = plan("t5-v1.1-large", *words, dry=part.dry)
    texts = write_texts(part.scratch / "mixed.jsonl", rows * steps, task.lengths, spread=0.2)
    lines, said = train(
        part,
        "mixed",
        *task.words,
        *of_data(part, texts, task.lengths),
        f"batch_size={rows}",
        f"steps={steps}",
        f"metrics.every_steps={every // 2 or 1}",
        f"evaluation.every_steps={every}",
        "evaluation.batches=2",
        f"data.multiple={8 if part.dry else 64}",
    )
    timed = [line for line in lines if "tokens_per_s" in line]
    # Where metrics count them: the least that ran compiled over a line, of all.
    counts = [(line["compiled_blocks"], line["blocks"]) for line in timed if "blocks" in line]
    compiled, of = min(counts, default=(None, None))
    kept = "recompile_limit reached" not in said and "cache_size_limit reached" not in said
    return {
        "recompiles": len(re.findall(r"Recompiling function", said)),
        "graph_breaks": len(re.findall(r"Graph break", said)),
        "evaluations": sum("eval_loss" in line for line in lines),
        "tokens_per_s": [line["tokens_per_s"] for line in timed],
        "compiled_blocks": compiled,
        "blocks": of,
        "passed": kept and compiled == of,
    }


def of_data(part: Part, texts: Path, lengths: Any) -> tuple[str, ...]:
    return (
        *(("model.vocab_size=384",) if part.dry else ()),  # a tiny model lacks ids for bytes
        f"data.source={texts}",
        "data.task=pairs",
        "data.tokenizer=bytes",
        f"data.source_length={lengths.source}",
        f"data.target_length={lengths.target}",
    )


def write_texts(file: Path, count: int, lengths: Any, *, spread: float) -> Path:
    """`count` rows of letters, from a share `spread` of the longest length up to it."""
    chance = random.Random(0)
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(count):
            row = {}
            for name, longest in zip(("source", "target"), lengths, strict=True):
                share = chance.uniform(spread, 1.0)
                # A byte is a token, and the last one is the end of the text.
                size = max(2, int(share * longest)) if spread < 1 else longest
                row[name] = "".join(chance.choices(string.ascii_letters, k=size))
            lines.write(json.dumps(row) + "\n")
    return file


def train(part: Part, name: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The lines of metrics.jsonl and all that was printed; RuntimeError if it failed."""
    directory = part.scratch / name
    outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    environ = {key: value for key, value in os.environ.items() if key not in outer}
    environ |= {"FSDPKIT_TASK_DIR": str(directory), "TORCH_LOGS": "recompiles,graph_breaks"}
    python_path = [str(TRAINER.parents[2]), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    argv += [str(TRAINER)]
    words += ("checkpoint.at_end=false", "checkpoint.every_steps=0")
    if part.dry:  # a compiler takes minutes, and is not what a dry run is about
        words += ("compile=false",)
    for word in words:
        argv += ["--set", word]
    done = start(argv, environ, part.scratch, 600 if part.dry else max(30.0, part.left_s - 15))
    print(done.stdout[-20_000:], flush=True)
    if done.returncode:
        compiled = f"{done.stdout.count('Recompiling function')} recompilations"
        cause = done.stdout.partition('File "<frozen runpy>"')[0][-400:]  # torchrun's own follows
        said = f"the trainer ended with {done.returncode}, {compiled}: {cause}"
        raise RuntimeError(said)
    files = list(directory.rglob("metrics.jsonl"))
    return [json.loads(line) for line in files[0].read_text("utf-8").splitlines()], done.stdout


def start(
    argv: list[str], environ: dict[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run to the end; after `timeout_s` torchrun is asked to stop, and then ended with its ranks,
    which are sessions of their own."""
    log = cwd / "trainer.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            argv,
            env=environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM),
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            started = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            for each in (*started, process):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    each.kill()
            process.wait()
    said = log.read_text("utf-8", errors="replace")
    return subprocess.CompletedProcess(argv, process.returncode, said)
