"""`auto`: what it becomes on each kind of device, and that it changes no run that goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from data import bucket_of_each

from fsdpkit.config.training import for_device, load_settings, problems
from fsdpkit.config.training.automatic import CPU, Device
from fsdpkit.errors import NotFoundError
from fsdpkit.training import checkpoint_loading
from fsdpkit.training.distributed import Ranks

H100 = Device(on_gpu=True, capability=(9, 0), triton=True, cores=16)
LARGE = ["model.preset=t5-v1.1-large", "data.source_length=512", "data.target_length=128"]
ONE_RANK = Ranks(0, 0, 1, 1, torch.device("cpu"))


def chosen(sets: list[str], device: Device, earlier: dict | None = None) -> dict:
    settings = for_device(load_settings({}, sets), device, earlier)
    assert problems(settings, 8, 4) == []
    data = settings.data
    return {
        **{name: getattr(data, name) for name in ("multiple", "buckets", "workers")},
        "compile": settings.compile,
        "attention": settings.model.attention,
    }


FAST = {"multiple": 64, "buckets": 4, "workers": 2, "compile": True, "attention": "sdpa"}


@pytest.mark.parametrize(
    ("sets", "device", "differs"),
    [
        ([], {}, {}),
        (["data.packing=true"], {}, {"buckets": 1}),
        (["data.target_length=32"], {}, {"multiple": 8}),
        (["deterministic=true"], {}, {"compile": False}),
        (["sharding.wrap=size"], {}, {"compile": False}),
        (['precision.keep_float32=["*layer_norm"]'], {}, {"compile": False}),
        ([], {"cores": 2}, {"workers": 1}),
        ([], {"cores": 1}, {"workers": 0}),
        ([], {"cores": 0}, {"workers": 0}),
        ([], {"triton": False}, {"compile": False}),
        ([], {"capability": (7, 0)}, {}),
        ([], {"capability": (6, 1)}, {"compile": False}),
        ([], {"capability": None}, {"compile": False}),  # AMD's
    ],
)
def test_on_a_gpu_it_is_what_the_gpu_and_the_job_can_do(sets, device, differs):
    gpu = Device(**{**{f: getattr(H100, f) for f in H100.__struct_fields__}, **device})
    assert chosen([*LARGE, *sets], gpu) == {**FAST, **differs}


def test_explicit_values_stay_on_every_device():
    own = {"multiple": 3, "buckets": 0, "workers": 5}
    sets = [*(f"data.{name}={value}" for name, value in own.items()), "compile=false"]
    expected = {**own, "compile": False, "attention": "math"}
    earlier = {"data": {"multiple": 64, "buckets": 4}}
    for device in (CPU, H100):
        assert chosen([*LARGE, *sets, "model.attention=math"], device, earlier) == expected
    assert chosen(["compile=true"], CPU)["compile"] is True


@pytest.mark.parametrize(("first", "second"), [(CPU, H100), (H100, CPU)])
def test_a_run_that_goes_on_elsewhere_keeps_its_order_of_samples(first, second):
    class Texts:
        """Of 1, 2, … tokens."""

        def __len__(self) -> int:
            return 100

        def lengths(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return 5 * index + 1, index + 1

    given = load_settings({}, LARGE)
    before = for_device(given, first)
    after = for_device(given, second, msgspec.to_builtins(before))
    assert after.data.workers != before.data.workers, "which do not matter"
    orders = [bucket_of_each(Texts(), settings.data) for settings in (before, after)]
    if first is CPU:
        assert orders == [None, None]
    else:
        np.testing.assert_array_equal(*orders)
        assert len(set(orders[0].tolist())) > 1
    assert after.data.multiple == before.data.multiple


def test_a_run_from_before_there_was_auto_keeps_what_its_checkpoint_says():
    earlier = {"data": {"buckets": 0, "multiple": 1, "workers": 0}, "compile": False}
    found = chosen(LARGE, H100, earlier)
    assert (found["buckets"], found["multiple"], found["workers"]) == (0, 1, 2)


def test_the_checkpoint_to_go_on_from_is_the_run_s_own_else_that_at_start(monkeypatch):
    """The newest that says something; what is wrong with one is told when it is read."""
    own, other = [Path("step-1"), Path("step-2")], [Path("start/step-9")]
    told = {Path("step-1"): {"seed": 1}, Path("start/step-9"): {"seed": 9}}

    def describe(path: Path) -> SimpleNamespace:
        if path not in told:
            raise NotFoundError("torn")
        return SimpleNamespace(settings=told[path])

    files = SimpleNamespace(checkpoints_in=lambda _: own, describe=describe)
    monkeypatch.setattr(checkpoint_loading, "files", files)
    monkeypatch.setattr(checkpoint_loading, "on_first", lambda ranks, look: look())
    monkeypatch.setattr(
        checkpoint_loading, "starting_point", lambda path: SimpleNamespace(checkpoints=other)
    )
    paths = SimpleNamespace(checkpoints=Path("checkpoints"))
    assert checkpoint_loading.settings_before(paths, "start", ONE_RANK) == {"seed": 1}
    own.clear()
    assert checkpoint_loading.settings_before(paths, "start", ONE_RANK) == {"seed": 9}
    assert checkpoint_loading.settings_before(paths, None, ONE_RANK) == {}
