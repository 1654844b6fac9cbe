"""A fine-tuning of one's own beside the Trainer's: the same losses, stopped, resumed, exported."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fsdpkit.errors import STOPPED_EARLY
from tests.conftest import ROOT
from tests.script.ranks_of_a_run import Attempt, attempt
from tests.training.small_transformers import loaded, made

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("other trainers")]
STEPS = 20
Start = Callable[..., Attempt]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models of the example")
    for kind in ("llama", "t5"):
        made(kind, folder / kind)
    return folder


@pytest.fixture
def start(models: Path, tmp_path: Path) -> Start:
    """Starts a program of the example, `change` made in its source: again in the same run, if that
    and the words are the same."""

    def call(program: str, kind: str, *words: str, change: tuple[str, str] = ("", "")) -> Attempt:
        copy = tmp_path / "example"
        shutil.copytree(ROOT / "examples" / "huggingface", copy, dirs_exist_ok=True)
        source = (copy / program).read_text()
        assert not change[0] or source.count(change[0]) == 1
        (copy / program).write_text(source.replace(*change) if change[0] else source)
        options = ("--model", str(models / kind), "--steps", str(STEPS), "--save-steps", "10")
        run = tmp_path / f"{Path(program).stem}-{kind}-{len(change[1])}"
        return attempt(run, copy / program, *options, *words)

    return call


@functools.cache
def _kept() -> dict[str, Attempt]:
    return {}


def uninterrupted(start: Start, kind: str) -> Attempt:
    """A run of our loop that is not disturbed, made once."""
    if kind not in _kept():
        _kept()[kind] = start("sharded.py", kind, "--in-order")
    return _kept()[kind]


def losses(run: Attempt) -> dict[int, float]:
    """Step → mean loss of the ten steps up to it."""
    assert run.status == 0, run.said
    return {line["step"]: line["loss"] for line in run.lines if "loss" in line}


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_trainer_under_fsdp2_and_our_loop_have_the_same_losses(start: Start, kind: str) -> None:
    """The same rows in the same order, the same optimizer: float32 sums differ in their order
    alone, which twenty steps of Adam let grow to no more than 1e-5. Another batch, another mean
    over ranks, or clipping at another norm would be seen in the second digit."""
    theirs = losses(start("train.py", kind, "--in-order", "--fsdp"))
    ours = losses(uninterrupted(start, kind))
    assert [*ours] == [*theirs] == [10, 20]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[20] < ours[10]


STEP = "            progress.step += 1\n"
STOPS_AFTER_7 = """\
            progress.step += 1
            if progress.step == 7 and ranks.is_first:
                stop._file.touch()  # as the agent does
"""


def test_stopped_and_resumed_it_exports_the_same_weights(start: Start, models: Path) -> None:
    whole = uninterrupted(start, "llama").task
    stopped = start("sharded.py", "llama", "--in-order", change=(STEP, STOPS_AFTER_7))
    assert stopped.status == STOPPED_EARLY, stopped.said
    run = stopped.task
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert saved in (["step-7"], ["step-8"]), "the step in which it was asked"
    assert not (run / "export").exists(), "it is not done"

    resumed = start("sharded.py", "llama", "--in-order", change=(STEP, STOPS_AFTER_7))
    assert resumed.status == 0, resumed.said
    weights, expected = (load_file(r / "export" / "model.safetensors") for r in (run, whole))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    before, after = (dict(loaded(path, "llama").named_parameters()) for path in
                     (models / "llama", run / "export"))  # fmt: skip
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert (run / "export" / "tokenizer_config.json").exists()
