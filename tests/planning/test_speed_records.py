"""What a site measured calibrates its plans: preflight reports, finished runs, the file kept."""

from __future__ import annotations

import json

import msgspec
import pytest

from fsdpkit.config.training.presets import PRESETS
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.speed_calibration import MeasuredStep, calibrated, uncalibrated
from fsdpkit.planning.speed_layers import Sharded
from fsdpkit.planning.speed_models import t5_work
from fsdpkit.planning.speed_records import load, preflight_figures, save, with_figures
from fsdpkit.runs.node_report import NodeReport, Pair, RankSpeed, ReportedNode

A100 = uncalibrated(machine_for("a100", 200))
WORK = t5_work(
    PRESETS["t5-small"],
    Sharded(ranks=2, ranks_per_node=2),
    rows=4,
    source=64,
    target=16,
    compiled=False,
)


def node(name: str, *, inside: float | None = 200.0, tflop_s: float | None = 220.0) -> ReportedNode:
    return ReportedNode(
        name=name,
        cpus=8,
        memory_total_gb=100,
        memory_available_gb=90,
        clock_offset_s=0,
        clock_error_s=0,
        ranks=[RankSpeed(rank=0, matmul_tflop_s=tflop_s)],
        in_node_gb_s=inside,
    )


def report(*nodes: ReportedNode, **changed) -> NodeReport:
    plain = NodeReport(created_s=0, device="cuda", message_mib=64, nodes=list(nodes), seconds=1)
    return msgspec.structs.replace(plain, **changed)


def test_the_slowest_node_counts():
    pairs = [Pair(nodes=("a", "b"), gb_s=20)]
    found = with_figures(
        A100,
        preflight_figures(report(node("a"), node("b", inside=150, tflop_s=156), pairs=pairs)),
        "check 3",
    )
    values = found.machine.values
    assert values["in_node_bytes"].value == 150e9
    assert values["node_bytes"].value == 20e9
    assert values["matmul_share"].value == pytest.approx(0.5)
    assert {values[name].source for name in ("in_node_bytes", "matmul_share")} == {"check 3"}
    assert values["kernel_s"] == A100.machine.values["kernel_s"]


def test_all_nodes_at_once_say_more_than_pairs():
    nodes = report(node("a"), node("b"), pairs=[Pair(nodes=("a", "b"), gb_s=20)], all_nodes_gb_s=9)
    assert (
        with_figures(A100, preflight_figures(nodes), "check").machine.values["node_bytes"].value
        == 9e9
    )


def test_what_was_not_measured_stays():
    nothing = report(node("a", inside=None, tflop_s=None))
    assert with_figures(A100, preflight_figures(nothing), "check") == A100


def test_a_calibration_is_read_back_as_it_was_written(tmp_path):
    before = calibrated(A100, [MeasuredStep(work=WORK, step_s=0.5, source="run 7")])
    save(before, tmp_path / "speed.json")
    assert load(tmp_path / "speed.json") == (before, None)
    with pytest.raises(NotFoundError):
        load(tmp_path / "another.json")


def broken(change) -> str:
    plain = {"schema": "fsdpkit.speed/1", "rates": None, "calibration": None}
    return json.dumps({**plain, **change})


@pytest.mark.parametrize("text", ["", "[]", "\xff", broken({}), broken({"schema": "other"})])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "speed.json").write_text(text, "latin-1")
    with pytest.raises(ConfigError, match="speed calibration"):
        load(tmp_path / "speed.json")


@pytest.mark.parametrize(
    ("key", "value"), [("value", -1.0), ("value", 0.0), ("factor", 0.5), ("value", 1e30)]
)
def test_a_rate_that_cannot_be_is_refused(tmp_path, key, value):
    path = tmp_path / "speed.json"
    save(A100, path)
    whole = json.loads(path.read_text())
    whole["calibration"]["machine"]["values"]["memory_bytes"][key] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match="not a positive number"):
        load(path)


def test_a_calibration_of_another_release_is_refused(tmp_path):
    path = tmp_path / "speed.json"
    save(A100, path)
    path.write_text(path.read_text().replace('"kernel_s"', '"kernels_s"'))
    with pytest.raises(ConfigError, match="another release"):
        load(path)
