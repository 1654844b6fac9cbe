"""`fsdpkit top`: from a node's samples, those of the real sampler among them, to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.launching.sampling import PrintedSoFar, sampling
from fsdpkit.reporting.usage import NodeUsage, SampleReader, frame, usage_of, worst_first
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.samples import Sample
from tests.programs import until

NOW_S = 1_000_000.0
GPU: dict[str, Any] = {"memory_used_bytes": 70 * 2**30, "memory_total_bytes": 80 * 2**30}


def read(*lines: dict[str, Any]) -> list[Sample]:
    return [msgspec.convert(line, Sample) for line in lines]


def samples(age_s: float = 5, *busy: float, sent: int = 0) -> list[Sample]:
    gpus = [{**GPU, "utilization_percent": percent} for percent in busy]
    common = {"gpus": gpus, "cpu_percent": 25.0, "memory_used_bytes": 2**38}
    first = {"time_s": NOW_S - age_s - 10, "network_sent_bytes": 1000}
    second = {"time_s": NOW_S - age_s, "network_sent_bytes": 1000 + sent}
    return read({**common, **first}, {**common, **second, "memory_total_bytes": 2**40})


def node(number: int, age_s: float = 5, *busy: float) -> NodeUsage:
    return usage_of(number, f"gpu-node-{number:03}", samples(age_s, *busy), NOW_S)


def test_what_the_real_sampler_writes_is_shown(tmp_path: Path) -> None:
    path = AttemptPaths(tmp_path).node_samples(0)
    with sampling(path, 0.1, PrintedSoFar()):
        until(lambda: path.exists() and path.read_text().count("\n") >= 2)
    found = SampleReader().read(path)
    assert len(found) == 2
    usage = usage_of(0, "here", found, found[-1].time_s)
    assert usage.cpu_percent is not None
    assert usage.memory_bytes is not None
    assert usage.memory_total_bytes is not None
    assert 0 < usage.memory_bytes < usage.memory_total_bytes
    assert usage.sent_bytes_per_s is not None
    assert not usage.stale
    _, total, header, row = frame("a run", [usage], 80, 24)
    assert total.startswith("1 node;")
    assert row.startswith("here")
    assert len(header) <= 80


def test_a_reader_goes_on_where_the_file_grows_and_passes_over_what_is_torn(tmp_path: Path) -> None:
    path, reader = tmp_path / "node-0.samples.jsonl", SampleReader()
    assert reader.read(path) == []
    path.write_text('{"time_s": 1}\n{"time_s": 2}\n{"time_s": 3}\n{"time')
    assert [one.time_s for one in reader.read(path)] == [2, 3]
    with path.open("a") as file:
        file.write('_s": 4}\nnull\n{"time_s": "x"}\n{"cpu_percent": 1}\n[[[\n')
    assert [one.time_s for one in reader.read(path)] == [3, 4]


def test_rates_are_those_between_two_samples() -> None:
    usage = usage_of(0, "n", samples(sent=50_000_000), NOW_S)
    assert usage.sent_bytes_per_s == pytest.approx(5e6)
    assert usage.received_bytes_per_s is None, "nobody measured it"
    again = samples(sent=-500)
    assert usage_of(0, "n", again, NOW_S).sent_bytes_per_s is None, "the counter began anew"


def test_silent_and_idle_nodes_come_first() -> None:
    nodes = [
        node(0, 5, 95.0, 95.0),
        node(1, 5, 97.0, 3.0),
        node(2, 400, 99.0),
        NodeUsage(number=3, name="gpu-node-003"),
    ]
    assert [one.number for one in worst_first(nodes)] == [3, 2, 1, 0]
    assert [one.stale for one in nodes] == [False, False, True, False]


def test_samples_that_have_become_rare_are_not_late() -> None:
    rare = read({"time_s": NOW_S - 300}, {"time_s": NOW_S - 150})
    assert not usage_of(0, "n", rare, NOW_S).stale
    assert usage_of(0, "n", rare, NOW_S + 400).stale


def test_64_nodes_fit_a_terminal_of_80_by_24() -> None:
    nodes = [node(n, 5, 90.0 + n % 9, 92.0) for n in range(62)]
    nodes += [node(62, 5, 2.0, 97.0), node(63, 4000, 99.0)]
    lines = frame("run: job 12, attempt 0", nodes, 80, 24)
    assert len(lines) == 24
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("64 nodes, 1 stale; GPU")
    assert lines[3].startswith("gpu-node-063")
    assert lines[3].endswith("stale")
    assert lines[4].startswith("gpu-node-062")
    assert "2 " in lines[4]
    assert lines[-1].startswith("and 44 more")
