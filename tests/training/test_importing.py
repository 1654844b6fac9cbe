"""Weights that another program wrote: read wherever they fit, refused in a sentence where not."""

from __future__ import annotations

import argparse
import math
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import RANKS, findings
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver

from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError
from fsdpkit.runs.starting_points import starting_point
from fsdpkit.training.importing import match, tensors_at
from fsdpkit.training.weight_files import tensors_needed

sys.path.append(str(RANKS))
from foreign_net import Net, in_files

State = dict[str, Any]


def state(prefix: str = "", **changes: torch.Tensor | None) -> State:
    """The net's state dict, some tensors replaced, added, or (None) left out."""
    tensors = {**Net.drawn().state_dict(), **{k.replace("__", "."): v for k, v in changes.items()}}
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items() if tensor is not None}


def lightning(**changes: torch.Tensor | None) -> State:
    """What Lightning's Trainer.save_checkpoint writes, as far as it is no class of its own."""
    return {
        "epoch": 3, "global_step": 40, "pytorch-lightning_version": "2.5.0",
        "state_dict": {**state("net."), "accuracy.total": torch.zeros(()), **changes},
        "loops": {"fit_loop": {"state_dict": {}}}, "callbacks": {}, "lr_schedulers": [],
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(7, 12)}}, "param_groups": []}],
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 1e-3},
    }  # fmt: skip


def dcp(directory: Path, content: State) -> Path:
    with warnings.catch_warnings():  # that there is no process group
        warnings.simplefilter("ignore")
        state_dict_saver.save(content, storage_writer=FileSystemWriter(directory), no_dist=True)
    return directory


def cut(path: Path) -> None:
    """Its second half is gone."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("imports")
    good, bad = folder / "good", folder / "bad"
    good.mkdir()
    torch.save(state(), good / "plain.pt")
    torch.save(lightning(), good / "lightning.ckpt")
    torch.save({"model": state("module."), "optimizer": {"state": {}}, "step": 3}, good / "full.pt")
    parts = {n.replace("layers.0.", "layers.0._orig_mod."): t for n, t in state("module.").items()}
    torch.save(parts, good / "compiled.pt")
    untied = state(embed__weight=None)
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in untied.items()}
    save_file(half, good / "one.safetensors")
    in_files(good / "huggingface")
    dcp(good / "dcp", {"app": {"model": state(), "step": 4}})
    bad.mkdir()
    dcp(bad / "other bytes", state())
    (bad / "other bytes" / "__0_0.distcp").write_bytes(bytes(10**5))
    dcp(bad / "cut dcp", state())
    cut(bad / "cut dcp" / "__0_0.distcp")
    late = torch.ones(12, 12)
    late[-1] = math.inf
    torch.save(state(layers__2__weight=late), bad / "infinite.pt")
    dcp(bad / "infinite dcp", state(layers__2__weight=late))
    torch.save({"w": torch.ones(3)}, bad / "other.pt")
    return findings(request.param, "importing", folder)


STARTS = [
    "compiled.pt",
    "dcp",
    "full.pt",
    "huggingface",
    "lightning.ckpt",
    "one.safetensors",
    "plain.pt",
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1", "fsdp1 no_shard"])
def test_a_run_begins_with_weights_that_another_program_wrote(
    found: dict, start: str, engine: str
) -> None:
    here = found["good"][f"{start} {engine}"]
    assert [*filter(None, here["different"])] == []
    assert here["progress"], "more than weights was taken over"
    assert "optimizer, step and order of the samples begin anew" in here["said"]


def test_what_else_is_in_the_file_is_said(found: dict) -> None:
    said = found["good"]["lightning.ckpt fsdp2"]["said"]
    assert "left out: state_dict.accuracy.total" in said
    assert "left out: pooler.weight" in found["good"]["huggingface fsdp2"]["said"]


def test_what_is_wrong_is_heard_by_all_ranks_in_a_sentence(found: dict) -> None:
    told = {name: set(each) for name, each in found["bad"].items()}
    assert {len(each) for each in told.values()} == {1}
    (infinite,), (infinite_dcp,) = told["infinite.pt"], told["infinite dcp"]
    assert "layers.2.weight holds numbers that are not finite" in infinite
    assert "layers.2.weight holds numbers that are not finite" in infinite_dcp
    assert "other bytes cannot be read as a directory of" in next(iter(told["other bytes"]))
    (other,), (short,) = told["other.pt"], told["cut dcp"]
    assert "is of another model: it has w; this model has seen, embed.weight" in other
    assert re.search(r"cut dcp: __0_0\.distcp has been cut short: [\d,]+ bytes of [\d,]+\.", short)


def matched(path: Path) -> dict[str, str]:
    return match(path, tensors_at(starting_point(path)), tensors_needed(Net())).names


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def code(path: Path) -> Path:
    return saved(path, {**lightning(), "hyper_parameters": argparse.Namespace(lr=1)})


def damaged(path: Path, kind: str) -> Path:
    if kind == "torch":
        saved(path, state())
    elif kind == "safetensors":
        save_file(state(embed__weight=None), path)
    else:
        dcp(path, state())
        path = path / ".metadata"
    cut(path)
    return path.parent if kind == "dcp" else path


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "hello")
    return path


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def of(content: bytes) -> Callable[[Path], Path]:
    """Makes a file that holds this."""
    return lambda path: (path.write_bytes(content), path)[1]


WRONG: dict[str, tuple[Callable[[Path], Path], type[FsdpkitError], list[str]]] = {
    "nothing there": (lambda p: p, NotFoundError, ["there is nothing at", "torch.save"]),
    "an empty directory": (directory, NotFoundError, ["holds no complete checkpoint", "Lightning"]),
    "text": (of(b"hello world"), ConfigError, ["is neither of torch.save"]),
    "an empty file": (of(b""), ConfigError, ["is empty", "Lightning"]),
    "a pickle": (of(pickle.dumps(1)), ConfigError, ["is a pickle", "torch.save its state dict"]),
    "another zip file": (zipped, ConfigError, ["cannot be read as a file of torch.save"]),
    "cut torch": (lambda p: damaged(p, "torch"), ConfigError, ["torch.save", "cut short"]),
    "cut safetensors": (lambda p: damaged(p, "safetensors"), ConfigError, ["safetensors"]),
    "cut index": (lambda p: damaged(p, "dcp"), ConfigError, ["cannot be read as", "cut short"]),
    "code": (code, ConfigError, ["holds argparse.Namespace", "not unpickled", '["state_dict"]']),
    "a list": (lambda p: saved(p, [1, 2]), ConfigError, ["holds a list, where a state dict"]),
    "no tensors": (lambda p: saved(p, {"a": 1}), ConfigError, ["holds no tensors"]),
    "another model": (
        lambda p: saved(p, {"encoder.weight": torch.ones(2, 3)}),
        ConfigError,
        ["is of another model: it has encoder.weight; this model has seen, embed.weight"],
    ),
    "another size": (
        lambda p: saved(p, state("net.", layers__0__bias=torch.ones(13))),
        ConfigError,
        ["is of another model: layers.0.bias is [13] float32 there and [12] float32 here."],
    ),
    "a layer less": (
        lambda p: saved(p, state(layers__3__weight=None, layers__3__bias=None)),
        ConfigError,
        ["layers.3.weight is missing there and [12, 12] float32 here"],
    ),
    "a layer more": (
        lambda p: saved(p, {"model": state(layers__4__weight=torch.ones(2))}),
        ConfigError,
        ["model.layers.4.weight is [2] float32 there and missing here"],
    ),
    "whole numbers": (
        lambda p: saved(p, state(gate__weight=torch.ones(1, 12, dtype=torch.int8))),
        ConfigError,
        ["gate.weight is [1, 12] int8 there"],
    ),
    "a pipe": (
        lambda p: [os.mkfifo(p), p][1],
        NotFoundError,
        ["cannot be read"],
    ),
    "two models": (
        lambda p: saved(p, {"model": state(), "ema": state()}),
        ConfigError,
        ["more than once, under ema., model.:", "a file of their own"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_begun_with_is_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], Path], kind: type[FsdpkitError], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        matched(make(tmp_path / "start"))
    said = str(caught.value)
    for word in [str(tmp_path), *words]:
        assert word in said
    assert "\n" not in said
    assert len(said) < 400 + 2 * len(str(tmp_path))
