"""Plans learn from what runs measured: of such GPUs, this torch and this cluster, if it agrees."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.profile import NodeType
from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.cards import card_named, card_of
from fsdpkit.planning.efficiency import UncertainValue, machine_for
from fsdpkit.planning.forecast import By, rests_on, work_of_run
from fsdpkit.planning.speed import predict
from fsdpkit.planning.speed_learned import (
    PUBLISHED,
    Basis,
    MeasuredMachine,
    keep_work,
    kept_work,
    name_of_step,
    step_of,
)
from fsdpkit.planning.speed_learned import basis_of as basis_from
from fsdpkit.planning.speed_measured import (
    MeasuredSpeed,
    directory,
    learn,
    measured_by,
    preflight_figures,
    recorded,
)
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork
from fsdpkit.runs import node_report
from fsdpkit.runs.node_report import GpuState, NodeReport, Pair, RankSpeed, ReportedNode
from fsdpkit.runs.predicted import Predicted, Span, save_predicted
from fsdpkit.scheduling.run import Run
from tests.planning.made_work import made_work
from tests.reporting.made_run import T0, ends, launches, made_run, starts, trains, write_lines

TORCH = "2.13.0+cu130"
NVML = "NVIDIA H100 80GB HBM3"
CARD = card_named("h100-80")
HERE = MeasuredMachine("H100-80", "delta", TORCH, 60)
TRUE = (
    machine_for("h100", 60)
    .replace(
        matmul_share=UncertainValue(0.55, 1, ""),
        memory_bytes=UncertainValue(2.3e12, 1, ""),
        node_bytes=UncertainValue(40e9, 1, ""),
    )
    .rates()
)
"""A machine that is not what figures say: what is learned has to find it."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settings(preset: str = "small", batch: int = 8) -> TrainingSettings:
    layers = ["model.num_layers=2", "model.num_decoder_layers=2"]
    return load_settings({}, [f"model.preset=t5-v1.1-{preset}", f"batch_size={batch}", *layers])


def work(training: TrainingSettings, nodes: int, gpus: int) -> StepWork:
    """Of a step that was put together by hand, larger for a larger model."""
    layers = {"t5-v1.1-small": 4, "t5-v1.1-base": 12, "t5-v1.1-large": 48}
    preset = training.model.preset or ""
    return made_work(layers=layers[preset], rows=training.batch_size, nodes=nodes, gpus=gpus)


def basis_of(records: list[MeasuredSpeed], machine: MeasuredMachine) -> Basis:
    def work_of(run: MeasuredSpeed) -> StepWork:
        assert run.training is not None
        return work(run.training, run.nodes, run.gpus)

    return basis_from(records, machine, work_of)


def record(name: str, nodes: int = 2, gpus: int = 4, slower: float = 1.0, **how) -> MeasuredSpeed:
    training = settings(**{k: how.pop(k) for k in ("preset", "batch") if k in how})
    step = work(training, nodes, gpus)
    plain = MeasuredSpeed(
        run=name,
        made_s=T0,
        site="delta",
        gpu=NVML,
        torch=TORCH,
        nodes=nodes,
        gpus=gpus,
        training=training,
        lines=20,
        step_s=slower * simulate(step, TRUE).step_s,
        tokens_per_step=step.tokens * step.ranks,
    )
    return msgspec.structs.replace(plain, **how)


SHAPES = {
    "a": {"nodes": 2, "gpus": 4, "preset": "large"},
    "b": {"nodes": 1, "gpus": 1, "preset": "base", "batch": 64},
    "c": {"nodes": 8, "gpus": 8, "preset": "base", "batch": 16},
}
UNSEEN = ({"preset": "large", "batch": 16}, 4, 4)


def forecast_of(basis: Basis) -> Span:
    """The step of a job that nobody has run."""
    how, nodes, gpus = UNSEEN
    return predict(work(settings(**how), nodes, gpus), basis.calibration).step_s


def error(basis: Basis) -> float:
    how, nodes, gpus = UNSEEN
    step = work(settings(**how), nodes, gpus)
    return forecast_of(basis).middle / simulate(step, TRUE).step_s - 1


def spread(basis: Basis) -> float:
    found = forecast_of(basis)
    return math.log(found.high / found.low)


def three(**slower: float) -> list[MeasuredSpeed]:
    return [record(name, slower=slower.get(name, 1.0), **SHAPES[name]) for name in SHAPES]


def test_runs_of_other_shapes_teach_what_an_unseen_job_takes_and_the_range_narrows():
    before, after = basis_of([], HERE), basis_of(three(), HERE)
    assert before.words == PUBLISHED
    assert after.words == "calibrated by 3 runs on delta"
    assert set(after.used) == {"a", "b", "c"}
    assert abs(error(before)) > 0.2
    assert abs(error(after)) < 0.05
    assert spread(after) < spread(before)


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_on_a_broken_node_is_left_out_and_named(name):
    found = basis_of(three(**{name: 3.0}), HERE)
    assert name not in found.used
    assert len(found.used) == 2
    assert any(f"{name}: " in sentence and "slower" in sentence for sentence in found.left_out)
    assert abs(error(found)) < 0.1


def test_a_single_run_far_beyond_what_figures_allow_teaches_nothing():
    found = basis_of([record("a", slower=8.0, **SHAPES["a"])], HERE)
    assert found.words == PUBLISHED
    assert "times slower" in found.left_out[0]
    assert spread(found) == spread(basis_of([], HERE))


def test_of_one_job_the_median_counts():
    runs = [record(f"r{n}", slower=s, **SHAPES["a"]) for n, s in enumerate((1, 1.02, 0.99, 2.5))]
    alone = basis_of(runs[:1], HERE)
    assert error(basis_of(runs, HERE)) == pytest.approx(error(alone), abs=0.02)


def test_a_step_that_cannot_be_recorded_teaches_nothing_and_that_is_said():
    def work_of(run: MeasuredSpeed) -> StepWork:
        raise ConfigError("its model is gone")

    found = basis_from([record("a")], HERE, work_of)
    assert found.words == PUBLISHED
    assert "its model is gone" in found.left_out[0]


def test_a_recorded_step_is_kept_by_what_decides_how_long_it_takes():
    step = work(settings(), 2, 4)
    name = name_of_step(settings(), 2, 4)
    assert kept_work(name) is None
    keep_work(name, step)
    assert kept_work(name) == step
    other_steps = msgspec.structs.replace(settings(), steps=7)
    assert name_of_step(other_steps, 2, 4) == name
    assert len({name, name_of_step(settings(batch=9), 2, 4), name_of_step(settings(), 1, 4)}) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.12.1"}, "1 record of torch 2.12.1: this is 2.13.0+cu130"),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, "1 record of NVIDIA A100-SXM4-80GB: this is H100-80"),
        ({"site": "other"}, "1 record of other: this is delta"),
        ({"gpu": ""}, "of a machine without a known GPU"),
        ({"torch": ""}, "not on record"),
        ({"problem": "too short: 3 steps were logged"}, "too short: 3 steps"),
        ({"tokens_per_step": 10.0}, "of the tokens that its settings say"),
        ({"step_s": 1e-9}, "faster than the GPU's peak"),
        ({"step_s": None}, "not timed"),
    ],
    ids=["torch", "GPU", "cluster", "no GPU", "no torch", "short", "tokens", "impossible", "none"],
)
def test_what_is_of_something_else_is_left_out_and_that_is_said(change, said):
    found = basis_of([record("a", **{**SHAPES["a"], **change})], HERE)
    assert found.words == PUBLISHED
    assert said in found.left_out[0]


def test_on_no_cluster_that_is_known_nothing_of_another_counts():
    assert basis_of(three(), MeasuredMachine("H100-80", None, TORCH)).words == PUBLISHED
    assert basis_of(three(), MeasuredMachine("H100-80", "delta", None)).words == PUBLISHED


def check(
    name: str, between: float, inside: float = 300.0, tflop_s: float = 600.0
) -> MeasuredSpeed:
    plain = record(name)
    return msgspec.structs.replace(
        plain,
        training=None,
        step_s=None,
        tokens_per_step=None,
        between_gb_s=between,
        in_node_gb_s=inside,
        tflop_s=tflop_s,
    )


def test_the_newest_check_of_nodes_takes_the_place_of_what_was_assumed():
    found = basis_of([check("k", 44.0), check("l", 4.0)], HERE)
    assert found.words == "calibrated by a check of nodes on delta"
    values = found.calibration.machine.values
    assert values["node_bytes"] == UncertainValue(44e9, 1.1, "fsdpkit check, k")
    assert values["matmul_share"].value == pytest.approx(600 / 989.4)
    both = basis_of([check("k", 45.0), *three()], HERE)
    assert both.words == "calibrated by 3 runs and a check of nodes on delta"


def test_the_documented_rate_of_a_nodes_links_counts_where_nothing_was_measured():
    node = NodeType(gpu="NVIDIA V100 16 GB", gpu_memory_gb=16, network_gbit_s=100)
    card = card_of(node, "site")
    assert By(site="x").machine(card).network_gb_s == pytest.approx(0.85 * 12.5)
    assert By(site="x", network_gb_s=9.0).machine(card).network_gb_s == 9.0
    assert (
        By()
        .machine(card_of(msgspec.structs.replace(node, network_gbit_s=None), "site"))
        .network_gb_s
        is None
    )


@pytest.mark.parametrize("gpu", ["NVIDIA A100-SXM-64GB", "Somebody's GPU 48"])
def test_a_gpu_without_published_figures_is_unknown_until_one_run_has_measured_it(
    gpu: str, monkeypatch: pytest.MonkeyPatch
):
    card = card_of(NodeType(gpu=gpu, gpu_memory_gb=64 if "64" in gpu else 48), "site")
    monkeypatch.setattr(By, "records", lambda by: [])
    with pytest.raises(UsageError, match="one finished run"):
        By(site="delta").basis(card)
    where = MeasuredMachine(card.name, "delta", TORCH)
    mine = msgspec.structs.replace(record("a", preset="large"), gpu=gpu)
    others = msgspec.structs.replace(mine, gpu="NVIDIA Another GPU")
    assert not basis_of([others], where).used
    assert abs(error(basis_of([mine], where))) < 0.3


def test_what_a_site_says_of_its_network_counts_and_a_check_of_it_counts_more():
    told = MeasuredMachine("H100-80", "delta", TORCH, network_gb_s=23.0)
    assert basis_of([], told).calibration.machine.values["node_bytes"].value == 23e9
    found = basis_of([check("k", 44.0)], told)
    assert found.calibration.machine.values["node_bytes"].value == 44e9


# From runs


def run_of(top: Path, name: str, *, steps: int = 30, cause: str = "done", **how) -> Run:
    training = how.pop("training", settings("large"))
    step = work(training, 2, 4)
    seconds = how.pop("slower", 1.0) * simulate(step, TRUE).step_s
    rate = how.pop("tokens_per_s", step.tokens * step.ranks / seconds)
    job = how.pop("job", {"name": name, "training": json.loads(msgspec.json.encode(training))})
    run = made_run(top / name, ranks_per_node=4, job=job, site="delta", **how)
    task = run.paths.task()
    starts(task, 0, T0)
    for node in range(2):
        (task.attempt(0).node_events(node)).unlink()
        ready = {"event": "node-ready", "node": f"n{node}", "gpu_model": NVML}
        ready |= {"time_s": T0 + 5, "software": {"torch": TORCH}}
        write_lines(task.attempt(0).node_events(node), ready)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 1, steps, T0 + 10, step_s=seconds, tokens_per_s=rate) if steps else T0
    ends(task, 0, at_s, cause=cause)
    return run


def test_a_finished_run_is_read_kept_and_known_when_it_has_been_pruned(tmp_path):
    run = run_of(tmp_path / "runs", "t5-1")
    (found,) = learn(tmp_path / "runs")
    assert (found.gpu, found.torch, found.site) == (NVML, TORCH, "delta")
    assert basis_of([found], HERE).words == "calibrated by 1 run on delta"
    for path in sorted(run.dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.dir.rmdir()
    assert learn(tmp_path / "runs") == [found]
    assert os.stat(directory()).st_mode & 0o077 == 0


def test_a_run_of_another_release_with_keys_that_changed_is_learned_from(tmp_path):
    run = run_of(tmp_path / "runs", "t5-1")
    job = json.loads(run.paths.job.read_text())
    job["training"] |= {"of_a_later_release": True}
    job["training"]["metrics"]["tensorboard"] = False
    run.paths.job.write_text(json.dumps(job))
    (found,) = learn(tmp_path / "runs")
    assert found.training == settings("large")


def test_the_plan_of_the_same_machine_goes_by_it_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr("fsdpkit.planning.forecast.installed_torch", lambda: TORCH)
    run_of(tmp_path / "runs", "t5-1")
    keep_work(name_of_step(settings("large"), 2, 4), work(settings("large"), 2, 4))
    by = By(runs=tmp_path / "runs", site="delta")
    assert by.basis(CARD).words == "calibrated by 1 run on delta"
    assert [one.source for one in by.basis(CARD).calibration.samples] == ["t5-1"]
    published = By(learned=False, runs=tmp_path / "runs", site="delta")
    assert published.basis(CARD).words == PUBLISHED


def own_run(top: Path, *, planned: bool = True) -> Run:
    """Of a script of one's own, which printed what it measured; its model has no tokens."""
    job = {"name": "own", "entry": "train.py", "args": ["--wide"]}
    run = run_of(top, "own-1", job=job, tokens_per_s=None)
    plan = Predicted(
        name="a" * 64, made_s=T0, nodes=2, gpus=4, card="H100-80",
        allocated_bytes=1, reserved_bytes=1,
    )  # fmt: skip
    save_predicted(run.paths, plan if planned else None)
    return run


def test_a_run_of_ones_own_model_that_was_planned_calibrates_the_next_plan(tmp_path):
    own_run(tmp_path / "runs")
    step = work(settings("large"), 2, 4)
    keep_work("a" * 64, step)
    (found,) = learn(tmp_path / "runs")
    assert (found.plan, found.training, found.is_check) == ("a" * 64, None, False)
    basis = basis_from([found], HERE, lambda run: kept_work(step_of(run)))
    assert basis.used == ("own-1",)
    assert predict(step, basis.calibration).step_s.middle == pytest.approx(found.step_s)
    assert "your run own-1 of " in rests_on(step, basis)


def test_a_run_of_ones_own_model_without_a_plan_says_nothing(tmp_path):
    own_run(tmp_path / "runs", planned=False)
    assert learn(tmp_path / "runs") == []


def test_a_run_whose_recorded_step_is_gone_says_nothing(tmp_path):
    """Its recorded step is gone, with the cache that held it."""
    own_run(tmp_path / "runs")
    by = By(runs=tmp_path / "runs", site="delta")
    with pytest.raises(UsageError, match="no longer kept"):
        work_of_run(by.records()[0], CARD)


@pytest.mark.parametrize("cause", ["crash", "hang", "node-failure", "out-of-memory"])
def test_a_run_that_failed_is_no_measure(tmp_path, cause):
    assert measured_by(run_of(tmp_path, "t5-1", cause=cause).dir) is None


def test_a_run_that_goes_on_is_read_again(tmp_path):
    run = run_of(tmp_path / "runs", "t5-1", steps=3)
    learn(tmp_path / "runs")
    trains(run.paths.task(), 4, 30, T0 + 50, step_s=0.5, tokens_per_s=1000.0)
    later = T0 + 10_000_000
    os.utime(run.paths.task().metrics, (later, later))
    (found,) = learn(tmp_path / "runs")
    assert found.problem == ""
    assert found.lines == 20


def report(**changed) -> NodeReport:
    nodes = [
        ReportedNode(
            name=f"n{n}",
            cpus=8,
            memory_total_gb=100,
            memory_available_gb=90,
            clock_offset_s=0,
            clock_error_s=0,
            gpus=[GpuState(index=0, name=NVML)],
            ranks=[RankSpeed(rank=n, matmul_tflop_s=600.0)],
            in_node_gb_s=300.0,
        )
        for n in range(3)
    ]
    plain = NodeReport(created_s=0, device="cuda", message_mib=64, nodes=nodes, seconds=1)
    return msgspec.structs.replace(plain, all_nodes_gb_s=40.0, **changed)


def test_a_check_of_nodes_is_learned_without_the_node_that_it_calls_slow(tmp_path):
    run = run_of(tmp_path / "runs", "check-1", steps=0)
    slow = report().nodes[0]
    slow = msgspec.structs.replace(slow, name="bad", ranks=[RankSpeed(rank=9, matmul_tflop_s=60)])
    node_report.save(report(nodes=[*report().nodes, slow]), run.paths.task().attempt(0).dir)
    (found,) = learn(tmp_path / "runs")
    assert (found.tflop_s, found.in_node_gb_s) == (600.0, 300.0)
    assert found.between_gb_s is None  # all nodes together had the slow one among them
    assert "a check of nodes" in basis_of([found], HERE).words


def test_the_slowest_node_counts_and_all_nodes_at_once_more_than_pairs():
    slower = msgspec.structs.replace(report().nodes[0], name="slower", in_node_gb_s=280.0)
    nodes = [*report().nodes, slower]
    assert preflight_figures(report(nodes=nodes)) == (280.0, 40.0, 600.0)
    pairs = [Pair(nodes=("n0", "n1"), gb_s=20)]
    by_pairs = msgspec.structs.replace(report(pairs=pairs), all_nodes_gb_s=None)
    assert preflight_figures(by_pairs)[1] == 20


# Whatever lies there


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\x80\x04\x95pickle", b"[" * 99_999, b'{"schema":"fsdpkit.measured/9"}', b"null"],
)
def test_files_that_are_no_records_are_as_good_as_none(tmp_path, content):
    run_of(tmp_path / "runs", "t5-1")
    learn(tmp_path / "runs")
    (directory() / "t5-1.json").write_bytes(content)
    assert recorded() == []
    assert len(learn(tmp_path / "runs")) == 1


def test_a_record_under_another_name_or_behind_a_link_is_none(tmp_path):
    run_of(tmp_path / "runs", "t5-1")
    learn(tmp_path / "runs")
    (directory() / "t5-1.json").rename(directory() / "t5-9.json")
    (directory() / "t5-1.json").symlink_to(directory() / "t5-9.json")
    assert recorded() == []


def test_runs_behind_links_or_of_others_are_not_read(tmp_path, monkeypatch):
    run = run_of(tmp_path / "theirs", "t5-1")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "t5-1").symlink_to(run.dir)
    assert learn(tmp_path / "runs") == []
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert measured_by(run.dir) is None
