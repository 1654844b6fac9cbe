"""What a node's samples show: lines of this version and of older ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs import samples as module
from fsdpkit.runs.samples import Sample, read_samples

GIB = 2**30


def read(tmp_path: Path, *lines: dict[str, Any]) -> list[Sample]:
    path = tmp_path / "node-0.samples.jsonl"
    path.write_text(
        "".join(json.dumps({"time_s": 10.0 * n, **x}) + "\n" for n, x in enumerate(lines))
    )
    return read_samples(path)


def gpus(*some: dict[str, Any]) -> dict[str, Any]:
    return {"gpus": list(some)}


def port(state: str = "ACTIVE", **counters: int) -> dict[str, Any]:
    return {"infiniband": [{"port": "mlx5_0/1", "state": state, **counters}]}


def cgroup(**fields: int) -> dict[str, Any]:
    return {"cgroup": fields}


@pytest.mark.parametrize(
    ("says", "lines", "said"),
    [
        (
            module.xids_in_words,
            [gpus({}, {}), gpus({}, {"xids": [79]}), gpus({"xids": [45]}, {"xids": [79, 154]})],
            "the driver reported XID 79 of GPU 1, XID 45 of GPU 0, XID 154 of GPU 1",
        ),
        (
            module.ecc_in_words,
            [
                gpus({"ecc_uncorrected": 0}, {"ecc_uncorrected": 7}),
                gpus({}, {"ecc_uncorrected": 9}),
            ],
            "GPU 1 had 2 uncorrected memory errors",
        ),
        (module.ecc_in_words, [gpus({"ecc_uncorrected": 7}), gpus({"ecc_uncorrected": 7})], None),
        (
            module.oom_kills_in_words,
            [cgroup(oom_kills=0), cgroup(oom_kills=2, memory_max_bytes=64 * GIB)],
            "the kernel killed 2 processes of the job at its memory limit of 64.0 GiB",
        ),
        (module.oom_kills_in_words, [cgroup(oom_kills=0, memory_max_bytes=GIB)], None),
        (
            module.full_in_words,
            [{"temporary": {"/dev/shm": {"total_bytes": 64 * GIB, "free_bytes": 2**20}}}, {}],
            "/dev/shm was full: 1 of 65536 MiB were free",
        ),
        (
            module.full_in_words,
            [{"temporary": {"/tmp": {"total_bytes": GIB, "free_bytes": GIB // 50}}}],
            None,
        ),
        (
            module.failed_link_in_words,
            [port(), port("DOWN"), port()],
            "InfiniBand port mlx5_0/1 went from ACTIVE to DOWN",
        ),
        (
            module.failed_link_in_words,
            [port(link_downed=3), port(link_downed=4)],
            "the link of InfiniBand port mlx5_0/1 went down",
        ),
        (
            module.link_errors_in_words,
            [port(symbol_error=100), port(symbol_error=350)],
            "InfiniBand port mlx5_0/1 counted 250 more symbol_error",
        ),
        (module.link_errors_in_words, [port(symbol_error=100), port(symbol_error=103)], None),
        (module.failed_link_in_words, [port("DOWN"), port("DOWN")], None),
    ],
)
def test_each_thing_is_said_in_one_sentence(
    tmp_path: Path, says: Any, lines: list[dict[str, Any]], said: str | None
) -> None:
    assert says(read(tmp_path, *lines)) == said
