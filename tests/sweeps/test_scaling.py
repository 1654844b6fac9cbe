"""Efficiency, cost and the knee, from measured speeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, NotFoundError, SchedulerError, UsageError
from fsdpkit.planning.cards import card_of
from fsdpkit.planning.remembered import Remembered, name_of, remember
from fsdpkit.rendering.script import Plan
from fsdpkit.reporting.series import read_metrics
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.predicted import Predicted, Span, save_predicted
from fsdpkit.scheduling.job_checks import training_of
from fsdpkit.sweeps import scaling_study
from fsdpkit.sweeps.scaling import MeasuredSize, Mode, RunSpeed, Size, compared, knee, speed_of
from fsdpkit.sweeps.scaling_study import CheckedStudy, StudyRequest, prepare
from fsdpkit.sweeps.scaling_tables import as_csv, as_latex, rows
from tests.conftest import answer_of
from tests.programs import Fsdpkit


def sizes(mode: Mode, rates: dict[int, float | None], *, steps: bool = False) -> list[Size]:
    """By nodes, tokens or steps per second; None: not measured."""
    found = []
    for nodes, rate in rates.items():
        speed = RunSpeed()
        if rate is not None:
            speed = (
                RunSpeed(samples=5, step_time_s=1 / rate) if steps else RunSpeed(tokens_per_s=rate)
            )
        state = "COMPLETED" if rate else "FAILED"
        found.append(MeasuredSize(nodes, 4 * nodes, "r", state, speed, None))
    return compared(mode, found)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSDPKIT_RUNS", str(tmp_path / "runs"))


def test_efficiency_is_the_speed_of_a_node_of_that_on_the_smallest_size() -> None:
    found = sizes("weak", {2: 100.0, 4: 180.0, 8: 300.0})
    assert [one.efficiency for one in found] == pytest.approx([1, 0.9, 0.75])
    assert [one.speedup for one in found] == pytest.approx([1, 1.8, 3])
    # 8 GPUs that do 100 tokens a second need 10^7 seconds for 10^9 of them.
    assert found[0].gpu_hours_per_billion_tokens == pytest.approx(8 * 1e7 / 3600)


def test_without_tokens_steps_tell_and_mean_more_work_only_in_weak_scaling() -> None:
    assert [one.efficiency for one in sizes("weak", {1: 2.0, 2: 1.8}, steps=True)] == pytest.approx(
        [1, 0.9]
    )
    strong = sizes("strong", {1: 2.0, 2: 3.6}, steps=True)
    assert [one.efficiency for one in strong] == pytest.approx([1, 0.9])


@pytest.mark.parametrize(
    ("rates", "where"),
    [
        ({1: 1.0, 2: 1.9, 4: 3.6, 8: 6.2, 16: 7.5}, 8),
        ({1: 1.0, 2: 1.7, 4: 2.6, 8: 2.9}, 2),
        ({1: 1.0, 2: 2.1, 4: 4.3}, None),
        ({1: 1.0, 2: 0.9}, 1),
        ({4: 1.0, 8: 1.6, 16: 2.0}, 8),
        ({1: 1.0, 2: None, 4: 3.0}, None),
        ({1: None, 2: 3.0, 4: 4.0}, None),
        ({1: 1.0}, None),
    ],
)
def test_the_knee_is_the_last_size_before_a_step_that_brings_less_than_half(
    rates: dict[int, float | None], where: int | None
) -> None:
    assert knee(sizes("weak", rates)) == where


def test_the_first_half_of_a_run_is_warm_up_and_steps_done_again_count_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rates = [1, 1, 1, 1, 100, 110, 120, 130]
    lines = [{"time_s": k, "step": k, "loss": 1, "tokens_per_s": r} for k, r in enumerate(rates, 1)]
    again = [{**lines[-1], "tokens_per_s": 90}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *again]))
    assert speed_of(read_metrics(path)) == RunSpeed(samples=4, tokens_per_s=105.0)
    assert speed_of(read_metrics(tmp_path / "none")) == RunSpeed()


def test_a_prediction_stands_beside_the_speed_of_its_own_size() -> None:
    speed = RunSpeed(tokens_per_s=1000.0)
    one = MeasuredSize(1, 4, "a", "COMPLETED", speed, None)
    two = MeasuredSize(2, 8, "b", "COMPLETED", speed, 1900.0)
    found = compared("weak", [one, two])
    assert [one.predicted_tokens_per_s for one in found] == [None, 1900.0]
    assert as_csv(found).splitlines()[2].split(",")[8] == "1900.0"
    assert "1\\,000 & 1\\,900 &" in as_latex(found)
    assert [row[6] for row in rows(found)] == ["–", "1,900"]


@pytest.fixture
def states(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """States of runs by name; a run is there once it is in this."""
    found: dict[str, str] = {}

    def opened(where: Path) -> SimpleNamespace:
        word = found[where.name]
        state = SimpleNamespace(word=word, over=word != "RUNNING", succeeded=word == "COMPLETED")
        record = SimpleNamespace(ranks_per_node=4)
        return SimpleNamespace(paths=RunPaths(where), record=record, state=lambda: state)

    monkeypatch.setattr(scaling_study, "Run", SimpleNamespace(open=opened))
    return found


def made(states: dict[str, str], name: str, state: str) -> RunPaths:
    states[name] = state
    directory = Path("runs").absolute() / name
    directory.mkdir(parents=True)
    (directory / "run.json").touch()
    return RunPaths(directory)


def test_a_study_is_the_newest_run_of_each_size_that_bears_its_name(
    states: dict[str, str],
) -> None:
    made(states, "s-weak-2-20260101-000001-aaaa", "FAILED")
    two = made(states, "s-weak-2-20260101-000002-aaaa", "COMPLETED")
    made(states, "s-weak-10-20260101-000000-aaaa", "RUNNING")
    made(states, "s-strong-1-20260101-000000-aaaa", "PENDING")
    made(states, "s-weak-1-more-20260101-000000-aaaa", "RUNNING")
    made(states, "not-s-weak-1-20260101-000000-aaaa", "RUNNING")
    plan = Predicted(
        name="a" * 64,
        made_s=1.0,
        nodes=2,
        gpus=4,
        card="H100",
        allocated_bytes=1,
        reserved_bytes=1,
        tokens_per_s=Span(1.0, 2.0, 3.0),
    )
    save_predicted(two, plan)
    found = scaling_study.measured("s", Path("runs").absolute())
    assert [(m, one.nodes, one.ranks, one.state) for m in found for one in found[m]] == [
        ("weak", 2, 8, "COMPLETED"),
        ("weak", 10, 40, "RUNNING"),
        ("strong", 1, 4, "PENDING"),
    ]
    assert [one.predicted_tokens_per_s for one in found["weak"]] == [2.0, None]
    with pytest.raises(NotFoundError, match="no study 's-weak'"):
        scaling_study.measured("s-weak", Path("runs").absolute())


def test_tables_leave_empty_what_nobody_measured() -> None:
    found = sizes("strong", {1: 1000.0, 2: None})
    assert as_csv(found).splitlines()[2] == "strong,2,8,r,FAILED,0,,,,,,"
    assert "strong & 2 & 8 & -- & -- & -- & --" in as_latex(found)
    assert rows(found)[1] == ["strong", "2", "8", "FAILED", *["–"] * 6]
    assert "s/step" not in as_latex(found)


def test_a_dry_run_tells_what_plan_said_of_each_size(
    fsdpkit: Fsdpkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    site = ("--cluster", "osc-cardinal", "--account", "PAS0001")
    words = ("scale", "t5", "--nodes", "1,2,4", "--gpus", "4", *site, "--dry-run", "--json")
    told = answer_of(fsdpkit(*words))
    assert [(one["nodes"], one["ranks"], one["state"]) for one in told["sizes"]] == [
        (nodes, 4 * nodes, "not submitted") for nodes in (1, 2, 4)
    ]
    assert [one["predicted_tokens_per_s"] for one in told["sizes"]] == [None] * 3
    most_h = {size: asks["most_gpu_hours"] for size, asks in told["asks"].items()}
    assert most_h == {f"weak {nodes}": nodes * most_h["weak 1"] for nodes in (1, 2, 4)}
    sets = ["resources.gpus=4", "resources.account=PAS0001"]
    asked = prepare(StudyRequest((1, 2, 4), ("weak",), "t5", sets=sets, cluster="osc-cardinal"))
    decided = asked.plans["weak", 2]
    card = card_of(place(decided.job.spec.resources, load_site("osc-cardinal")).node_type, "")
    settings = training_of(decided.job, tmp_path)
    assert settings is not None
    name = name_of(settings, 2, 4, card, decided.job.entry.path)
    planned = Predicted(
        name=name,
        made_s=1.0,
        nodes=2,
        gpus=4,
        card=card.name,
        allocated_bytes=1,
        reserved_bytes=1,
        tokens_per_s=Span(1.0, 2.0, 4.0),
    )
    kept = Remembered(fit="fits", total=1, usable=10, card=card.name, made_s=1.0, predicted=planned)
    remember(name, kept)
    told = answer_of(fsdpkit(*words))
    assert [one["predicted_tokens_per_s"] for one in told["sizes"]] == [None, 2.0, None]
    assert not (tmp_path / "runs").exists()


# ---- The batch of a script that reads no [training]


def prepared(*modes: Mode, batch: str | None, nodes: Sequence[int] = (1, 2, 4)) -> CheckedStudy:
    Path("own.py").touch()
    return prepare(StudyRequest(nodes, modes, "own.py", batch=batch, cluster="local"))


def words_of(found: CheckedStudy) -> dict[tuple[Mode, int], list[str]]:
    return {size: plan.job.spec.args for size, plan in found.plans.items()}


@pytest.mark.usefixtures("here")
def test_a_script_is_told_its_share_of_a_batch_that_stays_the_same() -> None:
    assert words_of(prepared("weak", "strong", batch="args.batch-size=8")) == {
        **{("weak", nodes): ["--batch-size=8"] for nodes in (1, 2, 4)},
        ("strong", 1): ["--batch-size=8"],
        ("strong", 2): ["--batch-size=4"],
        ("strong", 4): ["--batch-size=2"],
    }
    assert words_of(prepared("weak", batch=None)) == {("weak", nodes): [] for nodes in (1, 2, 4)}


@pytest.mark.usefixtures("here")
def test_a_batch_that_a_size_cannot_share_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"strong.*--bs 6 on 1 nodes.*4 times as many"):
        prepared("strong", batch="args.bs=6")


@pytest.mark.usefixtures("here")
def test_strong_scaling_of_a_script_asks_for_the_name_of_its_batch() -> None:
    with pytest.raises(ConfigError, match=r"--batch args\.batch-size=64"):
        prepared("strong", batch=None)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "said", ["bs=8", "args.bs", "args.bs=0", "args.b s=8", "args.bs=8; x", "args.-x=8", "args.=8"]
)
def test_a_batch_in_other_words_is_wrong_usage(said: str) -> None:
    with pytest.raises(UsageError, match=r"write args\.NAME=N"):
        prepared("strong", batch=said)


@pytest.mark.usefixtures("here")
def test_a_job_with_training_has_its_batch_there() -> None:
    with pytest.raises(UsageError, match=r"reads no \[training\]"):
        prepare(StudyRequest((1, 2), ("strong",), "t5", batch="args.bs=8", cluster="local"))


# ---- Sizes that are added later


def added(*nodes: int, mode: Mode = "strong") -> dict[tuple[Mode, int], list[str]]:
    Path("own.py").touch()
    request = StudyRequest(nodes, (mode,), "own.py", "mine", cluster="local", batch="args.bs=8")
    return words_of(prepare(request))


def test_added_sizes_share_the_batch_of_the_smallest(states: dict[str, str]) -> None:
    assert added(2, 4) == {("strong", 2): ["--bs=8"], ("strong", 4): ["--bs=4"]}
    made(states, "mine-strong-2-20260101-000000-aaaa", "COMPLETED")
    assert added(8) == {("strong", 8): ["--bs=2"]}


@pytest.mark.parametrize(
    ("nodes", "state", "why"),
    [(4, "COMPLETED", "has 4 nodes"), (4, "RUNNING", "has 4 nodes"), (1, "RUNNING", "fewer")],
)
def test_a_size_that_would_change_what_others_are_compared_with_is_refused(
    states: dict[str, str], nodes: int, state: str, why: str
) -> None:
    for known in (2, 4):
        made(states, f"mine-strong-{known}-20260101-000000-aaaa", state)
    with pytest.raises(UsageError, match=why):
        added(nodes)


def test_a_size_whose_run_failed_is_tried_again(states: dict[str, str]) -> None:
    made(states, "mine-strong-2-20260101-000000-aaaa", "COMPLETED")
    made(states, "mine-strong-4-20260101-000000-aaaa", "FAILED")
    assert added(4) == {("strong", 4): ["--bs=4"]}


def test_a_size_that_slurm_refuses_leaves_the_others_submitted(
    states: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(plan: Plan, *_: object) -> SimpleNamespace:
        if plan.job.spec.resources.nodes == 4:
            raise SchedulerError("too many jobs")
        return SimpleNamespace(id=plan.job.spec.name)

    monkeypatch.setattr(scaling_study, "submit_plan", submit)
    sizes = scaling_study.submit(prepared("weak", batch=None), Consent())
    assert [next(sizes) for _ in range(2)] == [
        (f"weak {nodes}", f"scale-own-weak-{nodes}") for nodes in (1, 2)
    ]
    with pytest.raises(SchedulerError, match="too many"):
        next(sizes)
