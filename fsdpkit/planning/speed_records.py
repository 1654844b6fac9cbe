"""What this site has measured, made into what calibrates: preflight reports and finished runs.

A calibration is kept as a JSON file: each rate with its value, its doubt and its source, and what
it was fitted to. A file of another layout is refused rather than guessed at.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.planning.efficiency import NAMES, Value
from fsdpkit.planning.speed_calibration import Calibration, Sample, with_bandwidths, with_value
from fsdpkit.planning.work import Work
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.node_report import NodeReport
from fsdpkit.runs.reading import read_bytes

_FEWEST_LINES = 3
_LAYOUT = "fsdpkit.speed/1"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    rates: tuple[str, ...]
    calibration: Calibration


def with_preflight(before: Calibration, report: NodeReport, source: str) -> Calibration:
    """The slowest node's bandwidths and matrix products, as `fsdpkit check --nodes` measured them:
    a step waits for the slowest. Of ranks on CPU cores nothing is taken."""
    if report.device != "cuda":
        return before
    inside = [node.in_node_gb_s for node in report.nodes if node.in_node_gb_s]
    pairs = [pair.gb_s for pair in report.pairs]
    between = report.all_nodes_gb_s if len(report.nodes) > 1 else None
    if between is None and pairs:
        between = statistics.median(pairs)
    after = with_bandwidths(
        before, source, in_node_gb_s=min(inside, default=None), between_gb_s=between
    )
    products = [node.slowest_tflop_s for node in report.nodes if node.slowest_tflop_s]
    if not products:
        return after
    share = min(products) * 1e12 / before.machine.values["peak_flops"].value
    # One large product: a step's own reach less.
    return with_value(after, "matmul_share", Value(min(1.0, share), 1.15, source))


def sample_of_run(work: Work, lines: Iterable[Mapping[str, Any]], run_id: str) -> Sample | None:
    """A finished run's own step, from the lines of its metrics.jsonl; None where they say too
    little. The first third is left out, in which code is compiled and memory is found."""
    seconds = [
        value
        for line in lines
        if isinstance(value := line.get("step_time_s"), int | float) and 0 < value < 1e6
    ]
    settled = seconds[len(seconds) // 3 :]
    if len(settled) < _FEWEST_LINES:
        return None
    return Sample(work=work, step_s=statistics.median(settled), source=f"run {run_id}")


def save(calibration: Calibration, path: Path) -> None:
    """Write it, complete or not at all. Raises OSError."""
    whole = _File(schema=_LAYOUT, rates=NAMES, calibration=calibration)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(whole), indent=1).decode())


def load(path: Path) -> Calibration:
    """Raises NotFoundError where there is none, ConfigError for one that is not to be read."""
    try:
        whole = msgspec.json.decode(read_bytes(path), type=_File)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no calibration {path}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no calibration of speed: {error}") from error
    problem = _problem(whole)
    if problem:
        raise ConfigError(f"{path} is no calibration that can be used: {problem}; fit it anew")
    return whole.calibration


def _problem(whole: _File) -> str | None:
    values, covariance = whole.calibration.machine.values, whole.calibration.covariance
    if whole.schema != _LAYOUT or whole.rates != NAMES or set(values) != set(NAMES):
        return "it is of another release"
    if any(not (0 < value.value < 1e18 and 1 <= value.factor < 1e6) for value in values.values()):
        return "a rate is not a positive number"
    if len(covariance) != len(NAMES) or any(len(row) != len(NAMES) for row in covariance):
        return "its doubts are incomplete"
    return None
