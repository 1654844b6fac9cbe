"""What each setting does to the trainer's own loop, on two ranks."""

from __future__ import annotations

import math

import pytest
from launch import ranks_found

found = ranks_found(2, "loop")


def losses(found: dict, name: str) -> list[float]:
    return [line["loss"] for line in found[name]["lines"] if "loss" in line]


def eval_losses(found: dict, name: str) -> list[float]:
    return [line["eval_loss"] for line in found[name]["lines"] if "eval_loss" in line]


@pytest.mark.parametrize(
    "name",
    [
        "micro batches",
        "auto",
        "fsdp1",
        "zero2 in groups",
        "recomputed",
        "math",
        "deterministic",
        "exported",
        "chunked",
        "by the clock",
    ],
)
def test_what_should_not_change_the_training_does_not(found, name):
    # Four steps of AdamW from the same weights: float32 sums in another order.
    assert losses(found, name) == pytest.approx(losses(found, "plain"), rel=1e-4)


@pytest.mark.parametrize(
    "name", ["spans", "buckets", "packed", "adafactor", "scaled", "dropout", "float16"]
)
def test_what_changes_the_training_still_learns(found, name):
    of_step = losses(found, name)
    assert of_step[-1] < of_step[0] - 0.02
    assert of_step != losses(found, "plain")


def test_checkpoints_come_by_the_clock_too(found):
    saved = {file.split("/")[1] for file in found["by the clock"]["files"] if "/step-" in file}
    assert saved == {"step-1", "step-2", "step-3", "step-4"}


def test_two_runs_of_one_seed_are_the_same_to_the_bit(found):
    assert losses(found, "deterministic") == losses(found, "plain")


def test_held_out_loss_comes_every_so_many_steps_and_at_the_end(found):
    steps = [line["step"] for line in found["evaluated"]["lines"] if "eval_loss" in line]
    assert steps == [2, 4, 5]
    assert len(losses(found, "evaluated")) == 5, "evaluation leaves training alone"
    assert losses(found, "evaluated")[:2] == losses(found, "plain")[:2]


def test_rouge_of_held_out_samples_comes_with_their_loss_and_leaves_training_alone(found):
    lines = [line for line in found["scored"]["lines"] if "eval_loss" in line]
    assert [line["step"] for line in lines] == [2, 4, 5]
    assert eval_losses(found, "scored") == eval_losses(found, "evaluated")
    assert losses(found, "scored") == losses(found, "evaluated")
    for line in lines:
        assert all(0 <= line[f"eval_rouge{kind}"] <= 100 for kind in "12L")
    assert "rouge1" in found["scored"]["printed"]


def test_training_stops_when_the_held_out_loss_no_longer_falls(found):
    of_step = eval_losses(found, "patient")
    assert len(of_step) < 20
    best = min(of_step)
    assert of_step.index(best) == len(of_step) - 3, "two evaluations without a lower one"
    assert found["patient"]["status"] == 0
    assert "early" in found["patient"]["printed"]


def test_stopping_early_ends_with_the_best(found):
    run = found["best exported"]
    of_step = eval_losses(found, "best exported")
    best = of_step.index(min(of_step)) + 1
    assert best == len(of_step) - 2, "it went on and became worse"
    kept = {file.split("/")[1] for file in run["files"] if file.startswith("checkpoints/step-")}
    assert kept == {f"step-{best}", f"step-{len(of_step)}"}
    assert f"best: step-{best}, eval_loss {min(of_step):.6g}" in run["printed"]
    assert f"exported step-{best} to" in run["printed"]


def test_training_goes_on_with_other_data_or_another_seed_only_if_that_is_meant(found):
    assert 'may_differ = ["seed"]' in found["other seed"]["message"]
    assert 'may_differ = ["data"]' in found["other data"]["message"]
    printed = found["both, as meant"]["printed"]
    assert printed.count("the epoch begins anew") == 2
    assert found["both, as meant"]["status"] == 0
    assert "training.batch_size = 4 would keep it" in found["other batch"]["printed"]


def test_no_host_waits_between_logged_steps(found):
    assert found["host reads"] == [2]  # the votes to stop and to save, which are on the host
    assert found["host reads, fsdp1"] == [2]


def test_epochs_end_the_run_and_each_is_evaluated_and_saved(found):
    run = found["epochs"]
    assert "length     6 steps; an epoch has 3, training.epochs is 2" in run["printed"]
    assert [line["step"] for line in run["lines"] if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in run["lines"] if "eval_loss" in line] == [3, 6]
    saved = {file.split("/")[1] for file in run["files"] if "/step-" in file}
    assert saved == {"step-3", "step-6"}


def test_a_loss_that_is_not_finite_stops_before_the_update(found):
    assert "step 3 is not finite" in found["not finite, stop"]["message"]
    assert found["not finite, stop"]["weights unchanged"]


def test_or_its_step_is_skipped_and_counted_when_that_is_set(found):
    skipped = found["not finite, skip"]
    assert skipped["message"] == "no error"
    assert skipped["weights unchanged"]
    assert [line["skipped"] for line in skipped["lines"]] == [0, 0, 1, 1, 1]
    assert all(math.isfinite(line["loss"]) for line in skipped["lines"] if line["step"] != 3)
