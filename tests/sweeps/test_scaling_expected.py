"""What `fsdpkit scale` says of each size before anything is submitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.trust import Consent
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import card_of
from fsdpkit.planning.forecast import By, forecast
from fsdpkit.planning.remembered import Remembered, name_of, remember
from fsdpkit.runs.predicted import Predicted, Span
from fsdpkit.scheduling.job_checks import training_of
from fsdpkit.sweeps.scaling_expected import Expected, where_it_would_stop, with_efficiency
from fsdpkit.sweeps.scaling_study import StudyRequest, prepare
from tests.conftest import Completed, answer_of

SITE = ("--cluster", "osc-cardinal", "--account", "PAS0001")
LARGE = ("--set", "training.model.preset=t5-v1.1-xl")
SIZES = ("--nodes", "1,2,4", "--gpus", "4")


def of(mode: str, rates: dict[int, float | None]) -> list[Expected]:
    return with_efficiency(
        [
            Expected(
                mode=mode,  # type: ignore[arg-type]
                nodes=nodes,
                ranks=nodes,
                rate=None if rate is None else Span(rate / 2, rate, rate * 2),
            )
            for nodes, rate in rates.items()
        ]
    )


def test_efficiency_is_against_the_smallest_size_and_of_nothing_unknown() -> None:
    assert [one.efficiency for one in of("weak", {2: 100.0, 4: 160.0, 8: None})] == [1, 0.8, None]
    assert [one.efficiency for one in of("weak", {2: None, 4: 160.0})] == [None, None]
    mixed = of("weak", {1: 100.0, 2: 160.0})
    mixed[1] = msgspec.structs.replace(mixed[1], unit="samples", efficiency=None)
    assert with_efficiency(mixed)[1].efficiency is None


@pytest.mark.parametrize(
    ("rates", "stop"),
    [
        ({1: 100.0, 2: 190.0, 4: 260.0, 8: 300.0}, "4 nodes are expected at 65%"),
        ({1: 100.0, 2: 190.0, 4: 360.0}, None),
        ({1: 100.0, 2: 190.0, 4: 200.0}, None),  # the last size: there is none behind it
        ({1: None, 2: 1.0, 4: 1.0}, None),
    ],
)
def test_where_a_bound_would_stop_is_told(rates: dict[int, float | None], stop: str | None) -> None:
    told = where_it_would_stop(of("weak", rates), 0.7)
    assert (told is None) == (stop is None)
    assert (stop or "") in (told or "")
    assert where_it_would_stop(of("weak", rates), None) is None


def test_a_dry_run_tells_the_closed_forms_estimate_of_each_size_and_a_plans_where_there_is_one(
    fsdpkit: Callable[..., Completed],
    isolated_user: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("scale", "t5", *SIZES, *SITE, "--bound", "0.99", "--dry-run", *LARGE)
    told = answer_of(fsdpkit(*words, "--json"))["sizes"]
    assert [(one["nodes"], one["ranks"], one["source"]) for one in told] == [
        (1, 4, "estimate"),
        (2, 8, "estimate"),
        (4, 16, "estimate"),
    ]
    # As `fsdpkit plan` computes it.
    sets = ["resources.gpus=4", "resources.account=PAS0001", LARGE[1]]
    monkeypatch.chdir(tmp_path)
    asked = prepare(StudyRequest((1, 2, 4), ("weak",), "t5", sets=sets, cluster="osc-cardinal"))
    decided = asked.plans["weak", 2]
    card = card_of(place(decided.job.spec.resources, load_site("osc-cardinal")).node_type, "")
    settings = training_of(decided.job, tmp_path)
    assert settings is not None
    speed = forecast(
        AskedStep(settings, 2, 4, card, Consent().to_script(decided.job.entry.path)), By()
    ).speed
    assert speed is not None
    assert speed.tokens_per_s is not None
    assert told[1]["rate"]["middle"] == pytest.approx(speed.tokens_per_s.middle)
    assert told[0]["efficiency"] == 1
    assert 1 >= told[1]["efficiency"] >= told[2]["efficiency"] > 0.1
    assert not (tmp_path / "runs").exists()

    # Somebody asks plan about two nodes: that is what counts, here and in the run.
    name = name_of(settings, 2, 4, card, decided.job.entry.path)
    middle = told[0]["rate"]["middle"]
    planned = Predicted(
        name=name,
        made_s=1.0,
        nodes=2,
        gpus=4,
        card=card.name,
        allocated_bytes=1,
        reserved_bytes=1,
        tokens_per_s=Span(middle, 1.5 * middle, 2 * middle),
        rests_on="a test",
    )
    kept = Remembered(fit="fits", total=1, usable=10, card=card.name, made_s=1.0, predicted=planned)
    remember(name, kept)
    shown = fsdpkit(*words)
    assert shown.returncode == 0
    head, *rows = [line.split() for line in shown.stdout.splitlines()[:4]]
    assert head[-2:] == ["EFFICIENCY", "BY"]
    assert [row[-2:] for row in rows][:2] == [["100%", "estimate"], ["75%", "plan"]]
    assert "2 nodes are expected at 75%, under the bound of 99%: 4 nodes would not" in shown.stdout
    assert "computed, not measured: a test" in shown.stdout


def test_of_gpus_or_a_script_that_nobody_knows_nothing_is_said(
    fsdpkit: Callable[..., Completed], isolated_user: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    done = fsdpkit("scale", "train.py", "--nodes", "1,2", "--cluster", "local", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "no prediction" in done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:]] == ["–", "–"]
    own = answer_of(fsdpkit("scale", "train.py", *SIZES, *SITE, "--dry-run", "--json"))
    assert [one["rate"] for one in own["sizes"]] == [None] * 3
    assert json.dumps(own)  # plain data
