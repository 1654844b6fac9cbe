"""What a plan says of memory against what real ranks hold: `plan.py --only memory`.

Four gloo ranks of this machine, two a node as far as sharding is told, train two steps of each case
in host memory; the same case is planned by its tape, for a device that computes attention as a CPU
does. Compared is the most that the tensors of one rank hold at one time. Bytes alone are measured:
whatever else the machine does changes nothing. Gloo is given copies, for its threads let go of a
message when the machine gets to them, and not when the rank does.

Both sides are those of the test (tests/planning/ranks/peaks.py), which takes a dozen of the cases.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from benchmarks.markdown import markdown, source
from benchmarks.measured import measured
from fsdpkit.config.training import load_settings, problems
from fsdpkit.config.training.sharding import Strategy

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "planning" / "ranks" / "peaks.py"
RANKS, RANKS_PER_NODE = 4, 2
WITHIN = 0.01
AT_ONCE = 30
"""Cases of one start of ranks: what fails takes no others with it."""
QUICK = 3

T5 = (
    "model.preset=tiny-byt5", "model.num_layers=1", "model.num_decoder_layers=1",
    "model.dropout_rate=0.0", "model.attention=math",
    "precision.param=bfloat16", "batch_size=4", "data.multiple=1",
    "data.source_length=48", "data.target_length=32", "compile=false",
)  # fmt: skip
_ABOUT = ("model", "engine", "strategy", "checkpointing", "passes", "optimizer")
ENGINES = ("fsdp2", "fsdp1")
CHECKPOINTING = ("none", "selective", "full")
"""`offload` is not among them: plans count what it offloads as kept, and say so."""
ACCUMULATION = {"whole": (), "accumulated": ("micro_batch=2",)}
OPTIMIZERS = ("adamw", "adamw-scaled", "adafactor", "adam", "sgd")
OWN = ROOT / "examples" / "own-model" / "train.py"
LLAMA = SCRIPT.with_name("models.py")
KINDS = {
    "whole units frozen": "models.py:frozen",
    "a frozen teacher": "models.py:distilled",
    "a tied head": "models.py:tied",
    "a U-Net": "kinds.py:unet",
    "sorted experts": "kinds.py:experts",
    "a scan": "kinds.py:scan",
    "Fourier layers": "kinds.py:fourier",
    "a masked autoencoder": "kinds.py:masked_autoencoder",
}
HUGGING_FACE = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 264,
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "is_encoder_decoder": True, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def cases(directory: Path) -> Iterator[dict[str, Any]]:
    """Each with `model` and what differs, and its `KEY=VALUE` under `sets`; `refused` says why the
    trainer does not take it."""
    models = {
        "the example of one's own model": [f"model={OWN}:planned"],
        "a Llama of transformers": [f"model={LLAMA}:llama"],
        "a T5 of transformers": [
            f"model={directory}", "batch_size=4", "data.source_length=48", "data.target_length=32"
        ],
    }  # fmt: skip
    models |= {name: [f"model={SCRIPT.parent / where}"] for name, where in KINDS.items()}
    grid = (ENGINES, get_args(Strategy), CHECKPOINTING, ACCUMULATION, OPTIMIZERS)
    for engine, strategy, checkpointing, passes, optimizer in product(*grid):
        about = _about(engine, strategy, checkpointing, passes, optimizer)
        yield _case("our T5", about, [*T5, *_sets(about)])
    for (name, own), engine, strategy, checkpointing in product(
        models.items(), ENGINES, get_args(Strategy), CHECKPOINTING
    ):
        about = _about(engine, strategy, checkpointing, "whole", "adamw")
        yield _case(name, about, [*own, "precision.param=bfloat16", *_sets(about)])


def _about(*values: str) -> dict[str, str]:
    return dict(zip(_ABOUT[1:], values, strict=True))


def _sets(about: Mapping[str, str]) -> list[str]:
    return [
        f"sharding.engine={about['engine']}",
        f"sharding.strategy={about['strategy']}",
        f"sharding.activation_checkpointing={about['checkpointing']}",
        f"optimizer.name={about['optimizer']}",
        *ACCUMULATION[about["passes"]],
    ]


def _case(model: str, about: Mapping[str, str], sets: list[str]) -> dict[str, Any]:
    settings = load_settings({}, [each for each in sets if not each.startswith("model=")])
    wrong = problems(settings, RANKS, RANKS_PER_NODE)
    return {"model": model, **about, "sets": sets, **({"refused": wrong[0]} if wrong else {})}


def peaks(
    how: str, sets: Sequence[Sequence[str]], script: Path = SCRIPT, ranks: int = RANKS
) -> list[int]:
    """Bytes of each case that the first of the ranks holds at most. Raises RuntimeError."""
    command = [sys.executable, str(script)]
    if how == "real":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ran = subprocess.run(
        [*command, how, str(ranks), json.dumps(sets)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in ran.stdout.splitlines() if line.startswith("PEAKS ")]
    if ran.returncode or not said:
        raise RuntimeError(f"{how}: {ran.stderr[-2000:]}")
    found: list[int] = json.loads(said[-1].removeprefix("PEAKS "))
    return found


def measure(quick: bool, before: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All cases, so far and again and again: about twenty minutes of two cores. Those that `before`
    does not have come first, and its rows stay until they are measured anew. `quick`: a few."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(HUGGING_FACE), "utf-8")
        every = list(cases(Path(folder)))
        refused = sum("refused" in case for case in every)
        taken = {_name(case): case["sets"] for case in every if "refused" not in case}
        found = {_name(row): row for row in before.get("rows", ()) if _name(row) in taken}
        names = sorted(taken, key=lambda name: name in found)
        names = names[:: len(names) // QUICK] if quick else names
        for at in range(0, len(names), AT_ONCE):
            some = names[at : at + AT_ONCE]
            sets = [taken[name] for name in some]
            pairs = zip(some, peaks("real", sets), peaks("pretended", sets), strict=True)
            for name, held, said in pairs:
                about = dict(zip(_ABOUT, name, strict=True))
                found[name] = {**about, "held_bytes": held, "planned_bytes": said}
            yield {
                "plan_memory": "what four real ranks hold",
                "measured": measured("torch", "transformers"),
                "rows": [found[name] for name in taken if name in found],
                "refused": refused,
            }


def _name(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a case from the others."""
    return tuple(row[key] for key in _ABOUT)


def errors(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """By how large a share each plan is above what a rank holds, or below it."""
    return [row["planned_bytes"] / row["held_bytes"] - 1 for row in rows]


def all_within(result: Mapping[str, Any]) -> bool:
    return all(abs(error) <= WITHIN for error in errors(result["rows"]))


def table(result: Mapping[str, Any]) -> str:
    """A line for each engine and strategy of our T5, and for each other model and engine."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        strategy = row["strategy"] if row["model"] == "our T5" else "all five"
        groups.setdefault((row["model"], row["engine"], strategy), []).append(row)
    head = ("Model", "Engine", "Strategy", "Cases", "Largest error", "Median", "Within 1 %")
    lines = [(*names, *_cells(rows)) for names, rows in groups.items()]
    lines.append(("**all**", "", "", *_cells(result["rows"])))
    verdict = "met" if all_within(result) else "**missed**"
    closing = (
        f"Target: each within 1 %: {verdict}. A case of our T5 is one of "
        "none, selective and full activation checkpointing, a whole batch or two accumulated "
        f"parts, and one of {', '.join(OPTIMIZERS)}; a case of the others is a whole batch with "
        f"adamw. The trainer refuses {result['refused']} more cases, of fsdp1 with adamw-scaled or "
        "adafactor. Compared are the peak bytes of a step on the first of four ranks, two per "
        "node."
    )
    return "\n\n".join([markdown(head, lines), closing, source(result["measured"])])


def _cells(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    sizes = [abs(error) for error in errors(rows)]
    inside = sum(size <= WITHIN for size in sizes)
    return (
        str(len(rows)),
        f"{100 * max(sizes):.3f} %",
        f"{100 * statistics.median(sizes):.3f} %",
        f"{inside} of {len(rows)}",
    )
