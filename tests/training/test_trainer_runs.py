"""The whole trainer: what survives a kill, a stop request and another world size."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from launch import EXAMPLE, RANKS, environment, run_ranks, torchrun

from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.runs.checkpoints import checkpoints_in, describe, problems_of
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import answer_to, ask
from tests.programs import until

pytestmark = pytest.mark.torch
TRAINER = EXAMPLE / "fsdp_t5.py"
STEPS, FATAL_STEP, SAVE_EVERY = 9, 7, 3


def small(data: Path) -> list[str]:
    """42 samples in global batches of 8: an epoch is six steps, the last of them uneven."""
    settings = {
        "steps": STEPS, "metrics.every_steps": 1, "data.source": data, "data.task": "pairs",
        "data.held_out": 0.05, "model.d_model": 16, "model.d_ff": 24, "model.d_kv": 8,
        "model.num_heads": 2, "model.num_layers": 1, "model.num_decoder_layers": 1,
        "optimizer.lr": 0.01, "checkpoint.every_steps": SAVE_EVERY,
        "checkpoint.background": "false",
    }  # fmt: skip
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def losses(paths: TaskPaths) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_json_lines(paths.metrics) if "loss" in line}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {"source": f"count to {i}", "target": " ".join(map(str, range(i % 7 + 1)))}
        for i in range(1, 45)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory):
    """An undisturbed run on four ranks."""
    paths = TaskPaths(tmp_path_factory.mktemp("whole"))
    done = run_ranks(
        4, TRAINER, *small(data), "--set", "batch_size=2", FSDPKIT_TASK_DIR=str(paths.dir), status=0
    )
    return paths, done.stdout


@pytest.fixture(scope="module")
def killed_and_resumed(data: Path, tmp_path_factory: pytest.TempPathFactory):
    """The same run, rank 1 killed at step 7, then resumed on two ranks with the other engine."""
    paths = TaskPaths(tmp_path_factory.mktemp("killed"))
    done = run_ranks(
        4, RANKS / "killed.py", str(FATAL_STEP), *small(data), "--set", "batch_size=2",
        FSDPKIT_TASK_DIR=str(paths.dir),
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    left = {p.name for p in paths.checkpoints.iterdir()}
    (paths.checkpoints / "step-8").mkdir()  # as a copy that was interrupted would leave it
    (paths.checkpoints / "step-8" / "checkpoint.json").write_text('{"step": 8}')
    (paths.checkpoints / ".step-7.abc").mkdir()
    before = losses(paths)
    paths.metrics.unlink()
    done = run_ranks(
        2, TRAINER, *small(data), "--set", "batch_size=4", "--set", "sharding.engine=fsdp1",
        FSDPKIT_TASK_DIR=str(paths.dir), status=0)  # fmt: skip
    return paths, before, left, done.stdout


def test_a_default_configuration_saves_resumes_and_evaluates(whole):
    paths, output = whole
    assert sorted(losses(paths)) == list(range(1, STEPS + 1))
    assert [p.name for p in checkpoints_in(paths.checkpoints)] == ["step-6", "step-9"]
    progress = describe(paths.checkpoints / "step-9").progress
    assert (progress["step"], progress["epoch"], progress["position"]) == (9, 1, 24)
    (evaluation,) = [x for x in read_json_lines(paths.metrics) if "eval_loss" in x]
    assert evaluation["step"] == STEPS
    assert f"held-out loss {evaluation['eval_loss']:.4f}" in output


def test_the_start_tells_how_many_samples_there_are(whole):
    said = " ".join(whole[1].split())  # a long path breaks the line anywhere
    assert "pairs: 42 samples, 2 held out, tokenizer bytes" in said


def test_a_metrics_line_has_its_fields_and_tokens_add_up(whole):
    paths, _ = whole
    lines = [x for x in read_json_lines(paths.metrics) if "loss" in x]
    for line in lines:
        assert {
            "time_s",
            "grad_norm",
            "lr",
            "step_time_s",
            "loading_s",
            "tokens_per_s",
            "memory_bytes",
        } <= set(line)
        assert line["memory_bytes"] > 10_000_000
    # An epoch holds every training sample's target once: its bytes and one end of text each.
    targets = [" ".join(map(str, range(i % 7 + 1))) for i in range(1, 45) if i % 20]
    assert lines[5]["tokens"] == sum(len(t) + 1 for t in targets)
    assert all(a["tokens"] < b["tokens"] for a, b in itertools.pairwise(lines))


def test_one_rank_with_the_whole_batch_takes_the_same_steps(data, whole, tmp_path):
    """A token weighs the same on four ranks with unequal numbers of them as in one process."""
    sets = ["--set", "batch_size=8", "--set", "checkpoint.every_steps=0"]
    run_ranks(1, TRAINER, *small(data), *sets, FSDPKIT_TASK_DIR=str(tmp_path), status=0)
    alone, spread = (
        [x for x in read_json_lines(paths.metrics) if "loss" in x]
        for paths in (TaskPaths(tmp_path), whole[0])
    )
    assert [x["tokens"] for x in alone] == [x["tokens"] for x in spread]
    # Of the same weights; later gradients differ by what AdamW makes of rounding.
    assert alone[0]["grad_norm"] == pytest.approx(spread[0]["grad_norm"], rel=1e-5)
    for one, other in zip(alone, spread, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-4), one["step"]
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-2), one["step"]


def test_a_killed_run_resumes_on_other_ranks_and_engine_with_the_same_losses(
    whole, killed_and_resumed
):
    paths, before, _, output = killed_and_resumed
    reference, after = losses(whole[0]), losses(paths)
    assert max(before) == FATAL_STEP
    assert "resumed    after step 6" in output
    assert sorted(after) == [7, 8, 9]
    # Float32 sums in another order, then AdamW's division: a few parts in 10^5 after nine steps.
    for step, loss in {**before, **after}.items():
        assert loss == pytest.approx(reference[step], rel=2e-4), step


def test_a_checkpoint_exists_in_full_or_not_at_all(killed_and_resumed):
    paths, _, left, _ = killed_and_resumed
    assert left == {"writer.json", "step-3", "step-6"}
    after = {p.name for p in paths.checkpoints.iterdir()}
    assert after == {"writer.json", "step-6", "step-8", "step-9"}  # 8 was refused, and left alone
    assert problems_of(paths.checkpoints / "step-9") == []


def test_a_run_saves_when_asked_and_goes_on_and_stops_when_asked(data, tmp_path):
    """A stop has a status of its own."""
    paths = TaskPaths(tmp_path)
    settings = [*small(data), "--set", "steps=1000000", "--set", "checkpoint.every_steps=0"]
    process = subprocess.Popen(
        torchrun(2, TRAINER, *settings),
        env=environment(FSDPKIT_TASK_DIR=str(tmp_path)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: losses(paths))
        asked = ask(paths)
        told = until(lambda: answer_to(paths, asked))
        saved = [p.name for p in checkpoints_in(paths.checkpoints)]
        paths.stop_requested.touch()
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    # torchrun ends the other rank when the first has left; the first one's status is the answer.
    root_cause = output.partition("Root Cause")[2]
    assert re.findall(r"exitcode  : (\d+)", root_cause) == [str(STOPPED_EARLY)], output[-3000:]
    last = max(losses(paths))
    assert f"stopped on request after step {last};" in output
    assert saved == [f"step-{told.step}"]
    assert told.step < last
    assert [p.name for p in checkpoints_in(paths.checkpoints)] == [*saved, f"step-{last}"]
    assert not paths.stop_requested.exists()  # answered: the next attempt goes on


def test_training_ends_with_the_step_that_spends_the_tokens_and_goes_on_with_more(data, tmp_path):
    paths = TaskPaths(tmp_path)
    sets = [*small(data), "--set", "steps=1000000", "--set", "checkpoint.every_steps=0"]
    ends = []
    for budget in (150, 150, 400):
        run_ranks(
            2, TRAINER, *sets, "--set", f"tokens={budget}", FSDPKIT_TASK_DIR=str(tmp_path), status=0
        )
        newest = checkpoints_in(paths.checkpoints)[-1]
        progress = describe(newest).progress
        ends.append(progress["step"])
        assert progress["tokens"] >= budget
    assert ends[0] == ends[1] < ends[2]
    tokens = [r["tokens"] for r in read_json_lines(paths.metrics) if "loss" in r]
    assert tokens[ends[0] - 2] < 150 <= tokens[ends[0] - 1]
    assert tokens[-2] < 400 <= tokens[-1]


def test_a_checkpoint_of_another_model_or_run_is_not_trained_over(data, whole):
    paths, _ = whole
    before = sorted(p.name for p in paths.checkpoints.iterdir())
    claimed = (paths.checkpoints / "writer.json").read_text()
    other = r"of another model: decoder\..* is \[.*16\] there and \[.*32\] here"
    for sets, status, said in [
        (["model.d_model=32"], 65, other),
        (["optimizer.name=sgd"], 65, "of another optimizer: AdamW there, SGD here"),
        (["checkpoint.resume=never"], 65, "holds checkpoints of an earlier run"),
    ]:
        arguments = [part for item in sets for part in ("--set", item)]
        done = run_ranks(1, TRAINER, *small(data), *arguments, FSDPKIT_TASK_DIR=str(paths.dir))
        assert re.search(f"^fsdp_t5: .*{said}", done.stdout, re.M), done.stdout[-3000:]
        assert done.returncode == status
    assert sorted(p.name for p in paths.checkpoints.iterdir()) == before
    assert (paths.checkpoints / "writer.json").read_text() == claimed  # its writer may go on


def test_a_new_run_goes_on_from_an_earlier_one_and_leaves_it_alone(data, whole, tmp_path):
    earlier, _ = whole
    before = sorted(p.name for p in earlier.checkpoints.iterdir())
    sets = ["--set", "steps=11", "--set", f"checkpoint.start={earlier.dir}"]
    paths = TaskPaths(tmp_path / "later")
    done = run_ranks(1, TRAINER, *small(data), *sets, FSDPKIT_TASK_DIR=str(paths.dir), status=0)
    assert sorted(losses(paths)) == [10, 11]
    assert sorted(p.name for p in earlier.checkpoints.iterdir()) == before

    nowhere = ["--set", f"checkpoint.start={tmp_path}"]
    done = run_ranks(
        1, TRAINER, *small(data), *nowhere, FSDPKIT_TASK_DIR=str(tmp_path / "x"), status=66
    )
    assert "holds no complete checkpoint" in done.stdout
