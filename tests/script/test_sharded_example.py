"""A fine-tuning of one's own beside the Trainer's: the same losses, stopped, resumed, exported."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fsdpkit import Run
from fsdpkit.runs.events import read_json_lines
from tests.conftest import ROOT, Completed, answer_of
from tests.training.small_transformers import loaded, made

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("huggingface")]
STEPS = 20
Submit = Callable[..., Path]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models of the example")
    for kind in ("llama", "t5"):
        made(kind, folder / kind)
    return folder


@pytest.fixture
def submit(fsdpkit: Callable[..., Completed], models: Path, tmp_path: Path) -> Submit:
    """Runs a program of the example on two ranks to its end, `change` made in its source."""

    def call(program: str, kind: str, *words: str, change: tuple[str, str] = ("", "")) -> Path:
        copy = tmp_path / "example"
        shutil.copytree(ROOT / "examples" / "huggingface", copy, dirs_exist_ok=True)
        source = (copy / program).read_text()
        assert not change[0] or source.count(change[0]) == 1
        (copy / program).write_text(source.replace(*change) if change[0] else source)
        shape = ("--cluster", "local", "--nodes", "1", "--gpus", "2")
        options = ("--model", str(models / kind), "--steps", str(STEPS), "--save-steps", "10")
        done = fsdpkit("submit", str(copy / program), *shape, "--json", "--", *options, *words)
        run = Path(answer_of(done)["dir"])
        Run.open(run).wait(poll_s=0.2)
        return run

    return call


@functools.cache
def _kept() -> dict[str, Path]:
    return {}


def uninterrupted(submit: Submit, kind: str) -> Path:
    """A run of our loop that is not disturbed, made once."""
    if kind not in _kept():
        _kept()[kind] = submit("sharded.py", kind, "--in-order")
    return _kept()[kind]


def losses(run: Path) -> dict[int, float]:
    """Step → mean loss of the ten steps up to it."""
    return {line["step"]: line["loss"] for line in read_json_lines(run / "metrics.jsonl")
            if "loss" in line}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_trainer_under_fsdp2_and_our_loop_have_the_same_losses(
    submit: Submit, kind: str
) -> None:
    """The same rows in the same order, the same optimizer: float32 sums differ in their order
    alone, which twenty steps of Adam let grow to no more than 1e-5. Another batch, another mean
    over ranks, or clipping at another norm would be seen in the second digit."""
    theirs = losses(submit("train.py", kind, "--in-order", "--fsdp"))
    ours = losses(uninterrupted(submit, kind))
    assert [*ours] == [*theirs] == [10, 20]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[20] < ours[10]


STEP = "        progress.step += 1\n"
STOPS_AFTER_7 = """\
        progress.step += 1
        if progress.step == 7 and ranks.is_first:
            stop._file.touch()  # as the agent does
"""


def test_stopped_and_resumed_it_exports_the_same_weights(
    submit: Submit, fsdpkit: Callable[..., Completed], models: Path
) -> None:
    whole = uninterrupted(submit, "llama")
    run = submit("sharded.py", "llama", "--in-order", change=(STEP, STOPS_AFTER_7))
    state = Run.open(run).state()
    assert state is not None
    assert state.outcome == "stopped", state.describe()
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert saved in (["step-7"], ["step-8"]), "the step in which it was asked"
    assert not (run / "export").exists(), "it is not done"

    resumed = fsdpkit("resume", str(run), "--wait")
    assert resumed.returncode == 0, resumed.stderr
    weights, expected = (load_file(r / "export" / "model.safetensors") for r in (run, whole))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    before, after = (dict(loaded(path, "llama").named_parameters()) for path in
                     (models / "llama", run / "export"))  # fmt: skip
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert (run / "export" / "tokenizer_config.json").exists()
