"""What this site has measured, made into what calibrates: preflight reports and finished runs.

A calibration is kept as a JSON file: each rate with its value, its doubt and its source, and what
it was fitted to. A file of another layout is refused rather than guessed at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.planning.efficiency import NAMES, UncertainValue
from fsdpkit.planning.speed_calibration import (
    SpeedCalibration,
    with_bandwidths,
    with_value,
)
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.node_report import NodeReport, judge
from fsdpkit.runs.reading import read_bytes

_FEWEST_LINES = 3
_MOST_BYTES = 8 << 20
_LAYOUT = "fsdpkit.speed/1"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    rates: tuple[str, ...]
    calibration: SpeedCalibration
    torch: str | None = None
    """With which what it is fitted to was measured; None: not said."""


Item = TypeVar("Item")


def preflight_figures(report: NodeReport) -> tuple[float | None, float | None, float | None]:
    """10^9 bytes a second inside a node and between nodes, TFLOP/s of a product: the slowest
    node's, for a step waits for the slowest; but those of no node that `check` itself calls slow
    or broken, which jobs are told to avoid. None: not measured."""
    bad = {verdict.node for verdict in judge(report) if verdict.state != "ok"}
    nodes = [node for node in report.nodes if node.name not in bad]
    inside = [node.in_node_gb_s for node in nodes if node.in_node_gb_s]
    pairs = [pair.gb_s for pair in report.pairs if not bad & {*pair.nodes}]
    between = report.all_nodes_gb_s if len(report.nodes) > 1 and not bad else None
    if between is None and pairs:
        between = statistics.median(pairs)
    products = [node.slowest_tflop_s for node in nodes if node.slowest_tflop_s]
    return min(inside, default=None), between, min(products, default=None)


def with_figures(
    before: SpeedCalibration, figures: tuple[float | None, float | None, float | None], source: str
) -> SpeedCalibration:
    """Those of `preflight_figures` in the place of what was thought."""
    inside, between, tflop_s = figures
    after = with_bandwidths(before, source, in_node_gb_s=inside, between_gb_s=between)
    if not tflop_s:
        return after
    share = tflop_s * 1e12 / before.machine.values["peak_flops"].value
    # One large product: a step's own reach less.
    return with_value(after, "matmul_share", UncertainValue(min(1.0, share), 1.15, source))


def settled(values: Sequence[Item]) -> Sequence[Item]:
    """What was logged once a run was under way: without the first third, in which code is compiled
    and memory is found. Nothing where too little is left to say anything."""
    kept = values[len(values) // 3 :]
    return kept if len(kept) >= _FEWEST_LINES else []


def save(calibration: SpeedCalibration, path: Path, torch: str | None = None) -> None:
    """Write it, complete or not at all. Raises OSError."""
    whole = _File(schema=_LAYOUT, rates=NAMES, calibration=calibration, torch=torch)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(whole), indent=1).decode())


def load(path: Path, *, own: bool = False) -> tuple[SpeedCalibration, str | None]:
    """A calibration, and the torch it is of. Raises NotFoundError where there is none, ConfigError
    for one that is not to be read; of another account, too, if it must be one's `own`."""
    try:
        whole = msgspec.json.decode(read_bytes(path, _MOST_BYTES, own=own), type=_File)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no calibration file {path}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a speed calibration: {error}") from error
    problem = _problem(whole)
    if problem:
        raise ConfigError(f"{path} cannot be used as a calibration: {problem}; fit it again")
    return whole.calibration, whole.torch


def _problem(whole: _File) -> str | None:
    values, covariance = whole.calibration.machine.values, whole.calibration.covariance
    if whole.schema != _LAYOUT or whole.rates != NAMES or set(values) != set(NAMES):
        return "it is of another release"
    if any(not (0 < value.value < 1e18 and 1 <= value.factor < 1e6) for value in values.values()):
        return "a rate is not a positive number"
    if len(covariance) != len(NAMES) or any(len(row) != len(NAMES) for row in covariance):
        return "its uncertainties are incomplete"
    if any(not math.isfinite(x) for row in covariance for x in row):
        return "its uncertainties are not numbers"
    return None
