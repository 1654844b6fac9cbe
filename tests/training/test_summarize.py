"""The packaged job that teaches T5 to summarise, from CSV files to scored summaries."""

from __future__ import annotations

import json
import math

import generate as command
import pytest
from launch import EXAMPLE, REPOSITORY, run_ranks

from fsdpkit.config.loading import read_toml
from fsdpkit.runs.checkpoints import checkpoints_in
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths
from tests.data.conftest import write_csv

pytestmark = pytest.mark.torch
SMALL = [
    "model.d_model=16", "model.d_ff=24", "model.d_kv=8", "model.num_heads=2",
    "model.num_layers=1", "model.num_decoder_layers=1", "optimizer.lr=0.02",
    "data.source_length=64", "data.target_length=12", "metrics.every_steps=1",
    "evaluation.rouge=true",
]  # fmt: skip


def rows(first: int, last: int) -> list[dict[str, str]]:
    return [
        {"text": f"Take {n} eggs, and boil them.", "headline": f"boil {n} eggs"}
        for n in range(first, last)
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskPaths, str]:
    """Two epochs of 21 rows, of which one has no text, on two ranks of four samples."""
    folder = tmp_path_factory.mktemp("summarize")
    write_csv(folder / "train.csv", [*rows(0, 20), {"text": "", "headline": "nothing"}])
    write_csv(folder / "validation.csv", rows(20, 26))
    job = read_toml(REPOSITORY / "jobs" / "summarize.toml")
    data = job["training"]["data"]
    for key in ("source", "held_out_source"):
        data[key] = str(folder / data[key])
    (folder / "job.json").write_text(json.dumps(job))
    paths = TaskPaths(folder / "run")
    sets = [word for each in SMALL for word in ("--set", each)]
    done = run_ranks(
        2, EXAMPLE / "fsdp_t5.py", "--job", str(folder / "job.json"), *sets,
        FSDPKIT_TASK_DIR=str(paths.dir), status=0)  # fmt: skip
    return paths, done.stdout


def test_its_settings_are_those_of_the_founding_script():
    """Two epochs, "summarize: ", 512 and 150 tokens: pytorch/examples, T5_training.py."""
    training = read_toml(REPOSITORY / "jobs" / "summarize.toml")["training"]
    data = training["data"]
    found = (training["epochs"], data["source_prefix"], data["source_length"])
    assert (*found, data["target_length"]) == (2, "summarize: ", 512, 150)


def test_each_epoch_is_told_evaluated_scored_and_saved(trained):
    paths, said = trained
    assert "length     6 steps; an epoch has 3, training.epochs is 2" in said
    assert "bad rows   1 left out" in said
    evaluations = [line for line in read_json_lines(paths.metrics) if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [3, 6]
    assert evaluations[1]["eval_loss"] < evaluations[0]["eval_loss"] < math.log(384)
    assert all({"eval_rouge1", "eval_rouge2", "eval_rougeL"} <= set(line) for line in evaluations)
    assert [path.name for path in checkpoints_in(paths.checkpoints)] == ["step-3", "step-6"]
    assert (paths.export / "model.safetensors").is_file()


def test_what_it_learned_writes_and_is_scored_as_while_training(trained, tmp_path, capsys):
    """From the run's directory: prefix, fields and tokenizer are those of its training."""
    paths, _ = trained
    table = paths.dir.parent / "validation.csv"
    words = ["--input", str(table), "--rouge", "--max-new-tokens", "12"]
    command.main(["--weights", str(paths.dir), *words, "--output", str(tmp_path / "out.jsonl")])
    printed = capsys.readouterr().out
    *_, last = [line for line in read_json_lines(paths.metrics) if "eval_loss" in line]
    scores = "  ".join(f"{kind} {last[f'eval_{kind}']:.2f}" for kind in ("rouge1", "rouge2"))
    assert printed.startswith(scores)
    assert last["eval_rouge1"] > 0, "the comparison means something"
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["source"] for row in written] == [row["text"] for row in rows(20, 26)]
