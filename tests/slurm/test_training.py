"""What people submit to train, on a real Slurm cluster: T5, and prepared data."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.runs.events import read_json_lines
from tests.programs import Fsdpkit, Submit
from tests.slurm.conftest import T5_LANE, everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch, T5_LANE]


@pytest.fixture
def submit(submit: Submit) -> Submit:
    return functools.partial(submit, warm=True)


def trained(answer: dict[str, Any]) -> Run:
    """The run, when it has ended well."""
    run = Run.open(answer["dir"])
    run.wait(poll_s=0.2)
    state = run.state()
    assert state is not None, everything_said(run.dir)
    assert state.succeeded, everything_said(run.dir)
    return run


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in read_json_lines(run.paths.task().metrics) if "loss" in line]


def sets(**settings: object) -> list[str]:
    items = (f"training.{key.replace('__', '.')}={value}" for key, value in settings.items())
    return [word for item in items for word in ("--set", item)]


def test_two_nodes_of_four_ranks_train_t5_on_real_text(submit: Submit) -> None:
    quick = sets(steps=6, metrics__every_steps=1, data__limit=300)
    run = trained(submit("--nodes", "2", "--gpus", "4", *quick))
    assert len(losses(run)) == 6
    assert losses(run)[-1] < losses(run)[0] - 0.5
    assert [r["node"] for r in run.results()] == ["node1", "node2"]
    assert "2 nodes" in run.rank_log(0).read_text()


def test_prepared_pairs_train_a_pretrained_model_and_come_back_as_one(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, submit: Submit, tmp_path: Path
) -> None:
    """Two jobs: the first exports a model, the second starts from it on the same prepared data,
    split over nodes in groups."""
    rows = [{"source": f"count to {i}", "target": "one two"} for i in range(60)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = tmp_path / "prepared"
    fsdpkit("data", "prepare", str(pairs), "--output", str(prepared), status=0)
    data = sets(data__source=prepared, data__task="pairs", steps=4, metrics__every_steps=1)
    small = sets(model__num_layers=1, model__num_decoder_layers=1, checkpoint__export="true")
    first = trained(submit("--nodes", "2", "--gpus", "1", *data, *small))
    model = first.paths.task().export
    assert {p.name for p in model.iterdir()} >= {"config.json", "model.safetensors"}

    second = trained(
        submit(
            *("--nodes", "2", "--gpus", "2", *data),
            *sets(model__pretrained=model, sharding__strategy="hybrid_shard", data__buckets=2),
        )
    )
    assert losses(second)[0] < losses(first)[0]


def test_a_run_goes_on_with_more_nodes_and_ranks_and_the_same_global_batch(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, submit: Submit
) -> None:
    """`fsdpkit resume --nodes`: the same run with other resources, and the losses of a run that
    always had as many samples a step. More ranks, on more nodes, of which each has fewer."""
    plain = sets(
        optimizer__schedule="constant",
        metrics__every_steps=1,
        evaluation__batches=0,
        data__limit=200,
    )
    short, whole = sets(steps=3, batch_size=3), sets(steps=6, batch_size=3)
    undisturbed = trained(submit("--nodes", "2", "--gpus", "1", *plain, *whole))
    run = trained(submit("--nodes", "1", "--gpus", "2", *plain, *short))
    wider = ["--nodes", "3", "--gpus", "1", *sets(steps=6, batch_size=2)]
    fsdpkit("resume", str(run.dir), *wider, "--wait", timeout_s=300, status=0)
    run = Run.open(run.dir)
    assert run.record.nodes == 3
    assert "3 (3 nodes" in run.rank_log(0).read_text()
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-4)
    assert run.paths.task().attempts() == [0, 1]
    assert (run.dir / f"job.{run.record.earlier[0].job_id}.sbatch").exists()
