"""`fsdpkit checkpoint`, as a person runs it, on what the real trainer wrote on two ranks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fsdpkit.cli.main import main
from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import RunPaths, TaskPaths
from tests.conftest import Completed, answer_of
from tests.runs.trained import STEPS, copied, flip, measure, trained_run
from tests.training.launch import EXAMPLE

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch
SHARD = "__0_0.distcp"
Command = Callable[..., Completed]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TaskPaths:
    return trained_run(tmp_path_factory)


@pytest.fixture
def run(trained: TaskPaths, tmp_path: Path) -> TaskPaths:
    """A run's directory with a copy of the checkpoints, among others in `runs`."""
    paths = copied(trained, tmp_path / "runs" / "t5-20261121-101500-3f2a")
    RunPaths(paths.dir).record.write_text("{}")
    return paths


@pytest.fixture
def checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs `fsdpkit checkpoint ARGS…` in this process: torch is imported once for all exports."""
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> Completed:
        argv = ["fsdpkit", "checkpoint", *map(str, words)]
        monkeypatch.setattr(sys, "argv", argv)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        status = ended.value.code
        assert isinstance(status, int)
        return Completed(argv, status, out, err)

    return command


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def size_of(run: TaskPaths, step: int = STEPS[-1]) -> str:
    """Of one checkpoint; all have the same."""
    about = run.checkpoints / f"step-{step}" / "checkpoint.json"
    listed = json.loads(about.read_text())["files"]
    return f"{sum(listed.values()) / 1e3:.1f} kB"


def test_ls_shows_each_checkpoint_and_which_one_a_resume_takes(
    run: TaskPaths, checkpoint: Command
) -> None:
    (run.checkpoints / "step-6" / SHARD).unlink()
    flip(run.checkpoints / "step-2" / SHARD)  # only reading shows that
    done = checkpoint("ls", run.dir)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = lines(done.stdout)
    assert head == "CHECKPOINT SAVED SIZE RANKS STATE"
    assert [row.split()[0] for row in rows] == ["step-2", "step-4", "step-6"]
    assert [" ".join(row.split()[3:]) for row in rows] == [
        f"{size_of(run)} 2 complete",
        f"{size_of(run)} 2 complete, a resume takes it",
        f"{size_of(run)} 2 refused: {SHARD} is missing",
    ]

    config = (run.checkpoints / "step-2" / "config.json").stat().st_size
    (run.checkpoints / "step-4" / "checkpoint.json").unlink()
    (run.checkpoints / "step-2" / "config.json").write_text("{}")
    assert [row.split("refused: ")[1] for row in lines(checkpoint("ls", run.dir).stdout)[1:]] == [
        f"config.json has 2 bytes instead of {config}",
        "checkpoint.json is missing: not a whole checkpoint of fsdpkit",
        f"{SHARD} is missing",
    ]


def test_ls_as_json(run: TaskPaths, checkpoint: Command) -> None:
    (run.checkpoints / "step-6" / "SHA256SUMS").unlink()
    (run.checkpoints / "step-2" / "checkpoint.json").unlink()
    first, second, third = answer_of(checkpoint("ls", run.dir, "--json"))["checkpoints"]
    path = run.checkpoints / "step-4"
    unlisted = ("checkpoint.json", "SHA256SUMS")
    size = sum(file.stat().st_size for file in path.iterdir() if file.name not in unlisted)
    about = json.loads((path / "checkpoint.json").read_text())
    assert second == {
        "name": "step-4",
        "path": str(path),
        "task": None,
        "step": 4,
        "saved_at": about["saved_at"],
        "bytes": size,
        "ranks": 2,
        "problem": None,
        "resumes": True,
        "measured": {},
        "best": False,
        "best_by": None,
    }
    assert (third["step"], third["bytes"], third["resumes"]) == (6, size, False)
    assert third["problem"].startswith("SHA256SUMS is missing")
    assert (first["step"], first["saved_at"], first["bytes"]) == (2, None, None)


def test_verify_reads_every_byte_and_agrees_with_sha256sum(
    run: TaskPaths, checkpoint: Command
) -> None:
    def agree() -> list[int]:
        answers = []
        for step in STEPS:
            done = checkpoint("verify", run.dir, "--step", step)
            by_hand = subprocess.run(
                ["sha256sum", "-c", "--strict", "--status", "SHA256SUMS"],
                cwd=run.checkpoints / f"step-{step}",
                stderr=subprocess.DEVNULL,
                check=False,
            )
            assert (done.returncode == 0) == (by_hand.returncode == 0)
            answers.append(done.returncode)
        return answers

    done = checkpoint("verify", run.dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"step-{step}: whole, {size_of(run)}" for step in STEPS]
    assert agree() == [0, 0, 0]
    flip(run.checkpoints / "step-4" / SHARD)
    (run.checkpoints / "step-4" / "config.json").unlink()
    (run.checkpoints / "step-6" / "SHA256SUMS").write_text("")
    assert agree() == [0, 74, 74]
    done = checkpoint("verify", run.dir)
    assert done.returncode == StorageError.exit_code
    assert done.stdout.splitlines() == [
        f"step-2: whole, {size_of(run)}",
        f"step-4: {SHARD} is not what was written (SHA-256 differs)",
        "step-4: config.json is missing",
        "step-6: SHA256SUMS is incomplete or was changed: it does not list the files here",
    ]
    assert "2 of 3 checkpoints are not whole" in done.stderr
    unknown = checkpoint("verify", run.dir, "--step", 5)
    assert unknown.returncode == 66
    assert "no checkpoint of step 5; the newest are step-2, step-4, step-6" in unknown.stderr


def tensors_in(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    files = [load_file(file) for file in directory.glob("*.safetensors")]
    return {name: tensor for file in files for name, tensor in file.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit, types included."""
    import torch

    return one.keys() == other.keys() and all(
        a.dtype == other[n].dtype and torch.equal(a, other[n]) for n, a in one.items()
    )


def test_an_export_has_the_bits_of_the_run_s_own(
    trained: TaskPaths, run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    import torch

    done = checkpoint("export", run.dir, "my model")
    assert (done.returncode, done.stderr) == (0, "")
    first, *ways = done.stdout.splitlines()
    assert re.fullmatch(r"my model: weights of step-6, \d+\.\d kB in 5 files", first)
    assert ways == [
        "  fsdpkit generate 'my model' \"some text\"",
        "  transformers.T5ForConditionalGeneration.from_pretrained('my model')",
    ]
    theirs = {p.name: p.read_bytes() for p in trained.export.iterdir()}
    assert json.loads(theirs["tokenizer_config.json"])["tokenizer_class"] == "ByT5Tokenizer"
    assert {p.name: p.read_bytes() for p in (tmp_path / "my model").iterdir()} == theirs

    weights = tensors_in(trained.export)
    done = checkpoint("export", run.dir, "model.pt", "--format", "file")
    assert done.stdout.splitlines()[1:] == ["  torch.load('model.pt', weights_only=True)"]
    assert equal(torch.load(tmp_path / "model.pt", weights_only=True), weights)

    assert checkpoint("export", run.dir, "my model", "--step", 4).returncode == 0  # replaces it
    assert not equal(tensors_in(tmp_path / "my model"), weights)

    assert checkpoint("export", run.dir, "half", "--dtype", "bfloat16").returncode == 0
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    assert equal(tensors_in(tmp_path / "half"), halves)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_an_export_with_its_optimizer_goes_on_in_one_process(
    run: TaskPaths, checkpoint: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is what torch's own converter makes of the checkpoint."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    from fsdpkit.config.training.optimizer import OptimizerSettings
    from fsdpkit.config.training.presets import read_config_json
    from fsdpkit.training.optimizers import make_optimizer

    done = checkpoint("export", run.dir, "all.pt", "--format", "file", "--with-optimizer")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all.pt: weights and optimizer of step-6, " in done.stdout
    assert 'set_optimizer_state_dict(model, optimizer,\n      saved["optimizer"]' in done.stdout
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    assert sorted(saved) == ["model", "optimizer", "step"]
    assert saved["step"] == STEPS[-1]

    newest = run.checkpoints / f"step-{STEPS[-1]}"
    dcp_to_torch_save(newest, tmp_path / "torch.pt")
    theirs = torch.load(tmp_path / "torch.pt", weights_only=False)
    assert equal(saved["model"], theirs["model"])
    assert saved["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    assert saved["optimizer"]["state"].keys() == saved["model"].keys()
    for name, own in theirs["optimizer"]["state"].items():
        assert equal(saved["optimizer"]["state"][name], own)

    monkeypatch.syspath_prepend(str(EXAMPLE))
    from model import T5, T5Config  # type: ignore[import-not-found]

    model = T5(T5Config(**read_config_json(newest / "config.json")))
    optimizer = make_optimizer(model, OptimizerSettings())
    model.load_state_dict(saved["model"])
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=options)
    taken = get_optimizer_state_dict(model, optimizer, options=options)
    for name, own in saved["optimizer"]["state"].items():
        assert equal(taken["state"][name], own)

    refused = checkpoint("export", run.dir, "model", "--with-optimizer")
    assert refused.returncode == 2
    assert "add --format file" in refused.stderr
    assert not (tmp_path / "model").exists()


def test_only_what_is_whole_is_exported(
    run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    flip(run.checkpoints / "step-6" / SHARD)
    named = checkpoint("export", run.dir, "out", "--step", 6)
    assert (named.returncode, named.stdout) == (74, "")
    assert f"step-6 is refused: {SHARD} is not what was written" in named.stderr
    assert "the one of step 6 is not whole; nothing was exported" in named.stderr
    newest = checkpoint("export", run.dir, "out")
    assert newest.returncode == 0
    assert "step-6 is refused" in newest.stderr
    assert newest.stdout.startswith("out: weights of step-4,")
    shutil.rmtree(tmp_path / "out")
    for step in (2, 4):
        (run.checkpoints / f"step-{step}" / "SHA256SUMS").unlink()
    none = checkpoint("export", run.dir, "out")
    assert none.returncode == 74
    assert "no checkpoint is whole; nothing was exported" in none.stderr
    assert not (tmp_path / "out").exists()


def test_the_best_is_marked_in_the_list_and_exported_when_asked(
    run: TaskPaths, checkpoint: Command
) -> None:
    for step, loss in zip(STEPS, (3.5, 2.25, 8.0), strict=True):
        measure(run.checkpoints / f"step-{step}", eval_loss=loss)
    rows = lines(checkpoint("ls", run.dir).stdout)[1:]
    assert [row.partition(" 2 ")[2] for row in rows] == [
        "complete",
        "complete, best by eval_loss 2.25",
        "complete, a resume takes it",
    ]
    listed = answer_of(checkpoint("ls", run.dir, "--json"))["checkpoints"]
    assert [entry["best"] for entry in listed] == [False, True, False]
    assert [entry["measured"]["eval_loss"] for entry in listed] == [3.5, 2.25, 8.0]
    done = checkpoint("export", run.dir, "model", "--best")
    assert done.stdout.startswith("model: weights of step-4, ")
