"""`fsdpkit plan --calibration` as it is typed: what counts, and why not."""

from __future__ import annotations

import json

import msgspec
import pytest
from click.testing import CliRunner

from fsdpkit.cli.plan import command
from fsdpkit.config.training import load_settings
from fsdpkit.errors import UsageError
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.speed_learned import keep_work, name_of_step
from fsdpkit.planning.speed_measured import MeasuredSpeed, keep
from fsdpkit.planning.speed_schedule import simulate
from tests.planning.made_work import made_work

CARD = card_named("h100-80")
TORCH = "2.13.0+cu130"
SITE = "osc-cardinal"
ASKED = ("--calibration", "--gpu", "h100-80", "--cluster", SITE)
RATES = msgspec.structs.replace(machine_for("h100").rates(), matmul_share=0.52)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fsdpkit.planning.forecast.installed_torch", lambda: TORCH)


def run(name: str, made_s: float = 1_760_000_000, batch: int = 8, **how) -> MeasuredSpeed:
    """What a run of T5-base on two nodes measured, on record as `learn` leaves it."""
    sets = ["model.preset=t5-v1.1-base", f"batch_size={batch}"]
    training = load_settings({}, sets)
    work = made_work(rows=batch, nodes=2, gpus=4)
    keep_work(name_of_step(training, 2, 4), work)
    plain = MeasuredSpeed(
        run=name,
        made_s=made_s,
        site=SITE,
        gpu="NVIDIA H100 80GB HBM3",
        torch=TORCH,
        nodes=2,
        gpus=4,
        training=training,
        lines=20,
        step_s=simulate(work, RATES).step_s,
        tokens_per_step=work.tokens * work.ranks,
    )
    found = msgspec.structs.replace(plain, **how)
    keep(found)
    return found


def said(*words: str) -> str:
    runner = CliRunner()
    result = runner.invoke(command, [*ASKED, *words], standalone_mode=False, catch_exceptions=False)
    assert not result.return_value
    return result.output


def rows(text: str) -> dict[str, str]:
    """The last word of each row of the table, by its first: whether the run is used."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: words[-1] for words in lines if words and words[-1] in ("yes", "no")}


def used(text: str) -> set[str]:
    return {name for name, last in rows(text).items() if last == "yes"}


def test_what_counts_and_what_does_not_is_shown_with_the_reason():
    run("t5-ab12")
    run("t5-cd34", batch=16)
    run("old-torch", torch="2.12.1")
    text = said()
    assert rows(text) == {"t5-ab12": "yes", "t5-cd34": "yes", "old-torch": "no"}
    assert f"speed on H100-80: calibrated by 2 runs on {SITE}" in text
    assert "left out: 1 record of torch 2.12.1: this is 2.13.0+cu130" in text


def test_a_cluster_that_asks_jobs_for_an_account_asks_none_of_a_plan():
    asked = ["--calibration", "--cluster", "osc-ascend"]
    given = {"standalone_mode": False, "catch_exceptions": False}
    shown = CliRunner().invoke(command, asked, **given)
    assert shown.output == "speed on A100-80: published figures only\n"
    with pytest.raises(UsageError, match="'nobody' is not an account of OSC Ascend"):
        CliRunner().invoke(command, [*asked, "--account", "nobody"], **given)


def test_the_answer_as_json_says_the_same():
    one = run("t5-ab12")
    answer = json.loads(said("--json"))
    assert answer["rests_on"] == f"calibrated by 1 run on {SITE}"
    (shown,) = answer["runs"]
    assert (shown["run"], shown["used"], shown["step_s"]) == ("t5-ab12", True, one.step_s)


@pytest.mark.parametrize(
    "words",
    [
        ("--calibration", "--no-calibration"),
        ("--calibration", "--tune"),
        ("--calibration", "--picture", "x.svg"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_and_nothing_is_done(words):
    run("t5-ab12")
    with pytest.raises(UsageError):
        CliRunner().invoke(
            command, ["--gpu", "h100-80", *words], standalone_mode=False, catch_exceptions=False
        )
    assert used(said()) == {"t5-ab12"}
