"""Samples on a made machine: /sys and cgroups as trees of files, GPUs by a stand-in for NVML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.launching import machine, nvml
from fsdpkit.launching.machine import Cgroup, Roots, infiniband_ports, limits
from fsdpkit.launching.sampling import PrintedSoFar, Sampler, sampling
from fsdpkit.launching.stacks import RankProcess
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


def test_a_step_s_lower_limit_is_met_first_and_kills_of_the_whole_job_count(roots: Roots) -> None:
    version_2(roots)
    write(roots.cgroup / JOB / "memory.max", 32 * GIB)
    assert Cgroup(roots).sample() == {
        "memory_bytes": GIB,
        "memory_max_bytes": 32 * GIB,
        "oom_kills": 2,
    }


def test_version_1_counts_kills_where_they_happened(roots: Roots) -> None:
    write(roots.proc / "self" / "cgroup", "5:cpu:/\n4:memory:/slurm/uid_7/job_17/step_0\n0::/")
    step = roots.cgroup / "memory/slurm/uid_7/job_17/step_0"
    for directory in [step, *step.parents][:5]:
        write(directory / "memory.limit_in_bytes", 9223372036854771712)
        write(directory / "memory.usage_in_bytes", 5 * GIB)
        write(directory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0")
    write(step.parent / "memory.limit_in_bytes", 8 * GIB)
    write(step / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1")
    expected = {"memory_bytes": 5 * GIB, "memory_max_bytes": 8 * GIB, "oom_kills": 1}
    assert Cgroup(roots).sample() == expected


def test_a_container_sees_its_own_cgroup_at_the_top(roots: Roots) -> None:
    write(roots.proc / "self" / "cgroup", "0::/not/visible/here")
    write(roots.cgroup / "memory.current", GIB)
    write(roots.cgroup / "memory.max", "max")
    assert Cgroup(roots).sample() == {"memory_bytes": GIB}
    assert "memory_bytes" not in limits(roots)


@pytest.mark.parametrize("line", [None, "0::/", "0::/../../etc", "nonsense", "4:memory:/x"])
def test_what_the_kernel_does_not_say_is_absent_not_zero(roots: Roots, line: str | None) -> None:
    if line is not None:
        write(roots.proc / "self" / "cgroup", line)
    assert Cgroup(roots).sample() == {}
    assert infiniband_ports(roots) == []
    sample = Sampler(roots).sample()
    assert not {"cgroup", "infiniband"} & sample.keys()


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


def test_throttling_and_memory_errors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    put(
        monkeypatch,
        Gpu(),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x01 | 0x04 | 0x40,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 3 if kind == 1 else 5,
    )
    (gpu,) = nvml.GpuWatch({}).sample()
    assert gpu["throttled"] == ["sw_power_cap", "hw_thermal_slowdown"], "not: idle"
    assert (gpu["ecc_uncorrected"], gpu["clock_mhz"]) == (3, 345)
    assert "temperature_c" not in gpu, "this one does not answer that"


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
    printed, output = PrintedSoFar(), (tmp_path / "rank-3.out").open("w+b")
    printed.follow(1, [RankProcess(0, 3, 1, (output, output))])
    with sampling(path, 3600, printed):
        while not path.exists() or not path.read_bytes().endswith(b"\n"):
            pass
        subprocess.run(["echo"], stdout=output, check=True)
        faulty.xids.append(79)
        write(job / "memory.events", "oom_kill 3")
        write(roots.infiniband / "mlx5_0" / "ports" / "1" / "state", "1: DOWN")
    before, after = read_samples(path)
    assert (before.launch, before.printed, after.printed) == (1, {3: (0, 0)}, {3: (1, 1)})
    assert before.cgroup is not None
    assert after.cgroup is not None
    assert (before.cgroup.oom_kills, after.cgroup.oom_kills) == (2, 3)
    assert [(found.gpu, found.xid) for found in xids([before, after])] == [(0, 79)]
    assert (before.infiniband, after.infiniband) == ((), (Port(port="mlx5_0/1", state="DOWN"),))
    assert after.temporary["/tmp"].total_bytes > 0
    columns = series.read_samples(path)
    assert len(columns["time_s"]) == 2, "the report reads them, too"
    assert (columns["memory_used_bytes"] > 0).all()
