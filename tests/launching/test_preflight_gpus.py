"""GPUs before training, by a stand-in for pynvml: its calls and structures as nvidia-ml-py has
them, no GPU behind it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from fsdpkit.errors import NodeError
from fsdpkit.launching import nvml
from fsdpkit.launching import preflight as preflight

MIB = 2**20


@dataclass
class Gpu:
    used_mib: int = 4
    processes: list[Any] = field(default_factory=list)
    remapped: tuple[int, int, int, int] = (0, 0, 0, 0)
    xids: list[int] = field(default_factory=list)
    capability: tuple[int, int] | None = (9, 0)


def fake_pynvml(*gpus: Gpu, v2: bool = True) -> ModuleType:
    module = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def not_supported(*_: Any) -> None:
        raise NVMLError("Not Supported")

    def memory(handle: int, version: int | None = None) -> Any:
        if version is not None and not v2:
            raise NVMLError("Function Not Found")
        return SimpleNamespace(total=80 * 1024 * MIB, used=gpus[handle].used_mib * MIB)

    def wait(events: list[int], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        for handle in events:
            if pending := gpus[handle].xids:
                return SimpleNamespace(eventData=pending.pop(0))
        raise NVMLError("Timeout")

    def register(handle: int, types: int, events: list[int]) -> None:
        assert types == 8
        events.append(handle)

    vars(module).update(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlMemory_v2=0x02000028,
        nvmlEventTypeXidCriticalError=8,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=range(len(gpus)).__getitem__,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-")),
        nvmlDeviceGetName=lambda handle: b"NVIDIA H100",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (
            gpus[handle].capability or not_supported()
        ),
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetClockInfo=lambda handle, kind: 345,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=not_supported,
        nvmlDeviceGetTotalEccErrors=lambda handle, error, counter: 0,
        nvmlDeviceGetRemappedRows=lambda handle: gpus[handle].remapped,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: gpus[handle].processes,
        nvmlEventSetCreate=list,
        nvmlDeviceRegisterEvents=register,
        nvmlEventSetWait_v2=wait,
        nvmlEventSetFree=lambda events: None,
    )
    return module


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts GPUs into this machine, and lets no second pass while they are waited for."""
    clock = iter(range(10_000))
    monkeypatch.setattr(preflight.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(preflight.time, "sleep", lambda _: None)

    def put(*some: Gpu, **options: Any) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(*some, **options))

    return put


def process(mib: int | None, pid: int | None = None) -> Any:
    size = None if mib is None else mib * MIB
    return SimpleNamespace(pid=pid or psutil.Process().pid, usedGpuMemory=size)


def test_idle_gpus_are_read_whole(gpus: Any) -> None:
    gpus(Gpu(used_mib=4), Gpu(used_mib=6))
    assert preflight.check_gpu_memory({}) == 10
    first = nvml.gpu_states({})[0]
    assert (first.name, first.memory_total_mib, first.clock_max_mhz) == ("NVIDIA H100", 81920, 1980)
    assert first.temperature_c is None  # not every GPU answers every question


def test_a_stranger_s_gpu_memory_is_refused_with_its_process(gpus: Any) -> None:
    """A26: a process that outlived its job holds what our ranks need."""
    gpus(Gpu(), Gpu(used_mib=70_000, processes=[process(69_500)]))
    with pytest.raises(NodeError) as refused:
        preflight.check_gpu_memory({"SLURMD_NODENAME": "a0101"})
    said = str(refused.value)
    assert "GPU 1 has 70000 MiB in use by" in said
    assert f"{psutil.Process().pid} {psutil.Process().name()} (69500 MiB)" in said
    assert "resources.exclude=a0101" in said


def test_the_job_before_gets_time_to_leave(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Gpu(used_mib=70_000, processes=[process(69_500)])
    gpus(leaving)

    def sleep(_: float) -> None:
        leaving.used_mib, leaving.processes = 4, []

    monkeypatch.setattr(preflight.time, "sleep", sleep)
    assert preflight.check_gpu_memory({}) == 4


def test_only_the_gpus_of_this_job_are_looked_at(gpus: Any) -> None:
    busy = Gpu(used_mib=70_000, processes=[process(69_500)])
    gpus(busy, Gpu(), Gpu())
    assert preflight.check_gpu_memory({"CUDA_VISIBLE_DEVICES": "1,2"}) == 8
    assert preflight.check_gpu_memory({"CUDA_VISIBLE_DEVICES": "GPU-2"}) == 4
    assert preflight.check_gpu_memory({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) is None
    assert preflight.check_gpu_memory({"FSDPKIT_DEVICE": "cpu"}) is None


def test_a_gpu_whose_memory_cannot_be_repaired_is_refused(
    gpus: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus(Gpu(remapped=(0, 1, 1, 0)))
    preflight.check_gpu_memory({})
    assert "waits for a reset" in capsys.readouterr().out
    gpus(Gpu(remapped=(0, 9, 0, 1)))
    with pytest.raises(NodeError, match="GPU 0 has a damaged row"):
        preflight.check_gpu_memory({})
