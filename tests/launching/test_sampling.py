"""Samples on a made machine: /sys and cgroups as trees of files, GPUs by a stand-in for NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.launching import machine, nvml
from fsdpkit.launching.machine import Cgroup, Roots, limits
from fsdpkit.launching.sampling import Sampler, sampling
from fsdpkit.reporting import series
from fsdpkit.runs.samples import Port, read_samples, xids
from tests.launching.test_preflight_gpus import Gpu, fake_pynvml

JOB = "system.slice/slurmstepd.scope/job_17/step_0/user/task_0"
GIB = 2**30


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "infiniband")


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def version_2(roots: Roots) -> Path:
    """As Slurm lays it out: the job's directory has the limit, the step's and the task's none."""
    write(roots.proc / "self" / "cgroup", f"0::/{JOB}")
    task = roots.cgroup / JOB
    for directory in [task, *task.parents][:6]:
        write(directory / "memory.max", "max")
        write(directory / "memory.current", 1 * GIB)
        write(directory / "memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n")
    job = roots.cgroup / "system.slice/slurmstepd.scope/job_17"
    write(job / "memory.max", 64 * GIB)
    write(job / "memory.current", 63 * GIB)
    write(job / "memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n")
    return job


def test_the_outermost_cgroup_with_a_limit_is_the_job_s(roots: Roots) -> None:
    job = version_2(roots)
    cgroup = Cgroup(roots)
    assert cgroup.sample() == {
        "memory_bytes": 63 * GIB,
        "memory_max_bytes": 64 * GIB,
        "oom_kills": 2,
    }
    write(job / "memory.events", "oom_kill 3")
    assert cgroup.sample()["oom_kills"] == 3
    assert limits(roots)["memory_bytes"] == 64 * GIB


def put(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, **more: Any) -> None:
    module = fake_pynvml(*gpus)
    vars(module).update(NVML_MEMORY_ERROR_TYPE_CORRECTED=0, **more)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_s_xids_are_told_once_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = Gpu()
    put(monkeypatch, Gpu(), faulty)
    watch = nvml.GpuWatch({})
    assert [gpu.get("xids") for gpu in watch.sample()] == [None, None]
    faulty.xids += [79, 48]
    assert [gpu.get("xids") for gpu in watch.sample()] == [None, [79, 48]]
    assert [gpu.get("xids") for gpu in watch.sample()] == [None, None]


def test_what_ended_the_ranks_is_in_the_last_sample(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sample would have come an hour later."""
    job = version_2(roots)
    faulty = Gpu()
    put(monkeypatch, faulty)
    monkeypatch.setattr(machine, "HERE", roots)
    monkeypatch.setattr("fsdpkit.launching.sampling.Sampler", lambda: Sampler(roots))
    path = tmp_path / "node-0.samples.jsonl"
    with sampling(path, 3600):
        while not path.exists() or not path.read_bytes().endswith(b"\n"):
            pass
        faulty.xids.append(79)
        write(job / "memory.events", "oom_kill 3")
        write(roots.infiniband / "mlx5_0" / "ports" / "1" / "state", "1: DOWN")
    before, after = read_samples(path)
    assert before.cgroup is not None
    assert after.cgroup is not None
    assert (before.cgroup.oom_kills, after.cgroup.oom_kills) == (2, 3)
    assert [(found.gpu, found.xid) for found in xids([before, after])] == [(0, 79)]
    assert (before.infiniband, after.infiniband) == ((), (Port(port="mlx5_0/1", state="DOWN"),))
    assert after.temporary["/tmp"].total_bytes > 0
    columns = series.read_samples(path)
    assert len(columns["time_s"]) == 2, "the report reads them, too"
    assert (columns["memory_used_bytes"] > 0).all()
