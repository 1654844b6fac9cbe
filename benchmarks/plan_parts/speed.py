"""Published runs predicted as a user predicts them: `python benchmarks/plan.py --only speed`.

published.json holds the facts: models, systems, and each row's settings and rate as its source has
them, with what is assumed where the source is silent. Each row goes the way of `fsdpkit plan`: a
directory with the model's `config.json` (or T5's preset), the job's settings, the GPU by name, the
network as a site's profile would have it; a step is recorded, and its speed predicted from
published figures, and again with one row of its system as a finished run would calibrate it.

The widths of intervals and the assumed shares of peak and bandwidth were chosen by looking at the
systems without `held_out`; those with it were collected for this table, set apart before anything
was predicted of them, and never used. Rows of more than eight accumulated passes, and of 70 billion
parameters and more, take too long to record here and are left out.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.apart import one_child, tape_apart
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import Card
from fsdpkit.planning.efficiency import kind_of_gpu, machine_for
from fsdpkit.planning.forecast import work_on_tape
from fsdpkit.planning.speed import MeasuredStep, Speed, SpeedCalibration, predict
from fsdpkit.planning.work import StepWork

PUBLISHED = Path(__file__).with_name("published.json")
T5 = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp" / "fsdp_t5.py"
MOST_ROWS = 4
"""Of one system, so that none outweighs the others."""
MOST_PASSES, WIDEST = 8, 8000
_SHOWN = ("name", "source", "network_source", "assumed", "held_out")
HOST, COMMON = "bound by the host", "A100, H100, H200"
REACHED = 0.85
"""Of the links' rate, that an all-reduce reaches."""
_KEYS = {
    "strategy": "sharding.strategy",
    "recompute": "sharding.activation_checkpointing",
    "offload": "sharding.cpu_offload",
    "compiled": "compile",
}
_TYPES = {2: "bfloat16", 4: "float32"}

Facts = Mapping[str, Any]


def settings_of(facts: Facts) -> TrainingSettings:
    """The row as `--set` would say it."""
    rows, times = facts["rows"], facts.get("accumulation", 1)
    sets = {key: facts[name] for name, key in _KEYS.items() if name in facts}
    sets |= {"batch_size": rows * times, "data.source_length": facts["length"]}
    sets |= {"precision.param": "bfloat16"}
    if times > 1:
        sets["micro_batch"] = rows
    if "target" in facts:
        sets |= {"model.preset": facts["model"], "data.target_length": facts["target"]}
    if "reduce_bytes" in facts:
        sets["precision.reduce"] = _TYPES[facts["reduce_bytes"]]
    words = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in sets.items()]
    return load_settings({}, words)


def recorded(facts: Facts, system: Facts, models: Facts, folder: Path) -> StepWork:
    """Raises FsdpkitError."""
    gpus = min(facts["gpus"], system["gpus_per_node"])
    model = None
    if "target" not in facts:
        directory = folder / f"{facts['model']}-{facts['length']}"
        directory.mkdir(exist_ok=True)
        config = models[facts["model"]]
        longest = "n_positions" if config["model_type"] == "gpt2" else "max_position_embeddings"
        text = json.dumps({**config, longest: facts["length"]})
        (directory / "config.json").write_text(text, "utf-8")
        model = Consent().to_model(str(directory))
    asked = AskedStep(
        settings_of(facts),
        facts["gpus"] // gpus,
        gpus,
        Card(system["gpu"], 80 << 30, (8, 0)),
        Consent().to_script(T5),
        model,
    )
    return work_on_tape(asked, tape_apart(asked)[0])


def measured_step_s(row: Facts, work: StepWork) -> float:
    if "samples_per_s_per_gpu" in row:
        return float(work.samples / row["samples_per_s_per_gpu"])
    return float(work.tokens / row["tokens_per_s_per_gpu"])


def chosen(system: Facts, models: Facts) -> Iterator[Facts]:
    """The rows of a system that are recorded, what calibrates first and the others evenly spread,
    and those not modelled."""
    rows = [row for row in system["rows"] if "not_modelled" not in row and _small(row, models)]
    first = [row for row in rows if row.get("calibrates")]
    others = [row for row in rows if not row.get("calibrates")]
    step = max(1, -(-len(others) // max(1, MOST_ROWS - len(first))))
    yield from (*first, *others[::step])
    yield from (row for row in system["rows"] if "not_modelled" in row)


def _small(row: Facts, models: Facts) -> bool:
    model = models.get(row["model"], {})
    width = model.get("hidden_size", model.get("n_embd", 0))
    return bool(row.get("accumulation", 1) <= MOST_PASSES and width < WIDEST)


def rows_of(system: Facts, models: Facts, folder: Path) -> Iterator[dict[str, Any]]:
    works: list[tuple[Facts, StepWork]] = []
    for row in chosen(system, models):
        if "not_modelled" in row:
            yield {**row, "status": "not modelled"}
            continue
        try:
            works.append((row, recorded({**system["defaults"], **row}, system, models, folder)))
        except FsdpkitError as error:
            yield {**row, "status": "not modelled", "not_modelled": str(error)[:200]}
    links_gb_s = system["network_gb_s"]
    machine = machine_for(system["gpu"], links_gb_s and REACHED * links_gb_s)
    plain = SpeedCalibration(machine)
    samples = [
        MeasuredStep(work=work, step_s=measured_step_s(row, work), source=system["source"])
        for row, work in works
        if row.get("calibrates")
    ]
    taught = SpeedCalibration(machine, tuple(samples))
    for row, work in works:
        measured_s = measured_step_s(row, work)
        shown = {k: v for k, v in row.items() if k != "calibrates"}
        speed = predict(work, plain)
        found = {"kind": kind_of(row, system, speed), "plain": _against(measured_s, speed)}
        if taught.samples and not row.get("calibrates"):
            found["calibrated"] = _against(measured_s, predict(work, taught))
        yield {**shown, "status": "predicted", "measured_s": round(measured_s, 5), **found}


def kind_of(row: Facts, system: Facts, speed: Speed) -> str:
    """What a user's plan knows of how sure it can be."""
    if speed.host_bound:
        return HOST
    if (gpu := kind_of_gpu(system["gpu"])) != "common":
        return "AMD" if gpu == "AMD" else "other NVIDIA GPUs"
    if row["gpus"] <= system["gpus_per_node"]:
        return f"{COMMON}, one node"
    known = "known" if system["network_gb_s"] else "not known"
    return f"{COMMON}, several nodes, network {known}"


def _against(measured_s: float, speed: Speed) -> dict[str, Any]:
    step = speed.step_s
    high = math.inf if speed.host_bound else step.high
    return {
        "predicted_s": [round(each, 5) for each in (step.low, step.middle, step.high)],
        "error": round(measured_s / step.middle - 1, 4),  # of the rate
        "in_range": step.low <= measured_s <= high,
        "bound": speed.bound,
    }


def summary(rows: Sequence[Facts], how: str) -> dict[str, Any]:
    """Errors of the rate, and how many ranges held the truth."""
    found = [row[how] for row in rows if how in row]
    errors = sorted(one["error"] for one in found)
    if not errors:
        return {"predicted": 0}
    return {
        "predicted": len(errors),
        "median_error": round(statistics.median(map(abs, errors)), 4),
        "bias": round(statistics.median(errors), 4),
        "worst_error": max(errors, key=abs),
        "in_range": sum(one["in_range"] for one in found),
    }


def by_kind(rows: Sequence[Facts]) -> dict[str, dict[str, Any]]:
    """Of published figures: of all that are predicted, of each kind, and of those that are not;
    and of what one run of the system calibrates."""
    plain = [row for row in rows if row["status"] == "predicted"]
    predicted = [row for row in plain if row["kind"] != HOST]
    kinds = sorted({row["kind"] for row in predicted})
    found = {"all": summary(predicted, "plain")}
    found |= {kind: summary([r for r in predicted if r["kind"] == kind], "plain") for kind in kinds}
    found[HOST] = summary([row for row in plain if row["kind"] == HOST], "plain")
    found["calibrated"] = summary(plain, "calibrated")
    return found


def measure(quick: bool, before: Facts) -> Iterator[dict[str, Any]]:
    """All systems, so far and again and again, about an hour; or one small one alone. What `before`
    does not have comes first, and what it has stays until it is predicted anew."""
    facts = json.loads(PUBLISHED.read_text("utf-8"))
    known = {one["name"]: one for one in before.get("systems", ())}
    systems = sorted(facts["systems"], key=lambda one: one["name"] in known)
    with tempfile.TemporaryDirectory() as folder, one_child():
        for system in systems[-1 if quick else 0 :]:
            rows = list(rows_of(system, facts["models"], Path(folder)))
            shown = {key: system[key] for key in _SHOWN if key in system}
            known[system["name"]] = {**shown, "rows": rows}
            names = (one["name"] for one in facts["systems"])
            yield result([known[name] for name in names if name in known], facts["left_out"])


def result(systems: Sequence[Facts], left_out: Sequence[str]) -> dict[str, Any]:
    """As results/plan-speed.json has it."""
    unseen = [row for one in systems if one.get("held_out") for row in one["rows"]]
    seen = [row for one in systems if not one.get("held_out") for row in one["rows"]]
    return {
        "plan_speed": "published runs",
        "systems": systems,
        "unseen": by_kind(unseen),
        "seen": by_kind(seen),
        "left_out": left_out,
    }
