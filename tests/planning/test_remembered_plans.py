"""What `fsdpkit plan` found is what `fsdpkit submit` goes by, for the very same job alone."""

from __future__ import annotations

import os

import msgspec
import pytest

from fsdpkit.cli.plan_question import PlanQuestion
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.remembered import Remembered, name_of, recall, remember
from fsdpkit.runs.predicted import Predicted, Span
from fsdpkit.scheduling.job_checks import check_settings, prediction_of, training_of
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.scheduling.wanted import Wanted
from tests.training.launch import REPOSITORY

GIB = 2**30
ASKED = {"cluster": "osc-ascend", "account": "PAS1234", "nodes": 1, "gpus": 4}
CARD = card_named("a100-80")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "fsdpkit" / "plans"


def request(*sets: str, **changed: object) -> SubmitRequest:
    return SubmitRequest(**(ASKED | {"sets": sets} | changed))  # type: ignore[arg-type]


def name(*sets: str, nodes: int = 1, gpus: int = 4, card: str = "a100-80") -> str:
    job = load_job(None, sets=sets)
    training = job.spec.training
    assert not isinstance(training, type(None))
    return name_of(training, nodes, gpus, card_named(card), job.entry.path)  # type: ignore[arg-type]


def made(fit: str, share: float, *would_fit: str) -> Remembered:
    return Remembered(
        fit=fit,  # type: ignore[arg-type]
        total=round(share * 76 * GIB),
        usable=76 * GIB,
        card=CARD.name,
        would_fit=list(would_fit),
        made_s=1_790_000_000.0,
    )


def test_a_job_whose_plan_does_not_fit_is_refused_with_what_would_fit():
    remember(name(), made("does not fit", 1.2, "training.loss=chunked"))
    with pytest.raises(ConfigError, match=r"does not fit") as caught:
        plan(request())
    said = str(caught.value)
    assert "--set training.loss=chunked" in said
    assert "91.2 GiB of 76.0 GiB" in said
    assert "--no-plan" in said


def test_who_insists_submits_it():
    remember(name(), made("does not fit", 1.2))
    plan(request(by_plan=False))


def test_a_job_that_hardly_fits_is_submitted_with_a_warning():
    remember(name(), made("tight", 1.1))
    decided, _ = plan(request())
    assert any("barely fits" in text for text in decided.placement.warnings)


def test_a_run_that_finds_its_own_batch_is_never_refused():
    word = "training.micro_batch=auto"
    remember(name(word), made("does not fit", 1.2))
    decided, _ = plan(request(word))
    assert any("barely fits" in text for text in decided.placement.warnings)


@pytest.mark.parametrize(
    "other",
    [
        {"sets": ("training.batch_size=5",)},
        {"sets": ("training.data.source_length=64",)},
        {"sets": ("training.sharding.strategy=shard_grad_op",)},
        {"sets": ("training.optimizer.name=sgd",)},
        {"sets": ("training.model.preset=t5-v1.1-small",)},
        {"nodes": 2},
        {"gpus": 2},
        {"card": "a100-40"},
    ],
    ids=lambda other: "/".join(map(str, other.values())),
)
def test_a_plan_is_of_nothing_but_what_was_planned(other):
    assert name(*other.pop("sets", ()), **other) != name()


def test_who_edits_the_trainer_or_a_module_beside_it_has_another_job(tmp_path):
    training = load_job(None).spec.training
    entry, beside = tmp_path / "train.py", tmp_path / "model.py"
    names = set()
    for file, text in ((entry, "one"), (beside, "two"), (beside, "three"), (entry, "four")):
        file.write_text(text)
        names.add(name_of(training, 1, 4, CARD, entry))  # type: ignore[arg-type]
    assert len(names) == 4


@pytest.mark.parametrize(
    "word",
    ["training.steps=7", "training.optimizer.lr=0.1", "training.checkpoint.every_steps=3",
     "training.evaluation.batches=2", "training.data.workers=3", "training.seed=1"],
)  # fmt: skip
def test_what_takes_no_memory_of_a_gpu_leaves_the_plan_the_same(word):
    assert name(word) == name()


def test_of_many_trials_the_one_whose_plan_does_not_fit_is_refused(tmp_path):
    word = "training.batch_size=64"
    remember(name(word), made("does not fit", 1.2))
    node = plan(request())[0].placement.node_type
    options = {"resources": {"nodes": 1, "gpus": 4}}
    check_settings(load_job(None, options=options), node, tmp_path)
    with pytest.raises(ConfigError, match="does not fit"):
        check_settings(load_job(None, options=options, sets=[word]), node, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"fit":"maybe"}', b"\xff" * 9])
def test_a_file_that_is_no_plan_is_as_good_as_none(cache, content):
    remember(name(), made("does not fit", 1.2))
    (file,) = cache.iterdir()
    file.write_bytes(content)
    assert recall(name()) is None
    plan(request())


def test_the_cache_is_for_its_owner(cache):
    remember(name(), made("fits", 0.5))
    assert os.stat(cache).st_mode & 0o077 == 0


# What a run keeps of it


def kept(*sets: str, nodes: int = 1) -> Predicted | None:
    """By a run of the job that is submitted now."""
    decided, _ = plan(request(*sets, nodes=nodes))
    return prediction_of(decided, training_of(decided.job, decided.work_dir))


def predicted(*sets: str, nodes: int = 1) -> Predicted:
    return Predicted(
        name=name(*sets, nodes=nodes),
        made_s=1_790_000_000.0,
        nodes=nodes,
        gpus=4,
        card=CARD.name,
        allocated_bytes=GIB,
        reserved_bytes=2 * GIB,
        step_s=Span(1.0, 2.0, 3.0),
    )


def remembered(*sets: str, nodes: int = 1) -> Predicted:
    found = predicted(*sets, nodes=nodes)
    remember(found.name, msgspec.structs.replace(made("fits", 0.5), predicted=found))
    return found


def test_a_run_keeps_what_was_predicted_of_its_very_job():
    found = remembered()
    assert kept() == found
    assert kept("training.batch_size=5") is None
    assert kept(nodes=2) is None


def test_a_job_that_nobody_planned_gets_no_prediction():
    assert kept() is None
    remember(name(), made("fits", 0.5))  # by a release that predicted no speed
    assert kept() is None


def test_a_resumed_run_keeps_its_own_prediction_when_the_cache_is_gone_but_not_another_jobs():
    own = predicted()
    decided, _ = plan(request())
    training = training_of(decided.job, decided.work_dir)
    assert prediction_of(decided, training, own) == own
    wider, _ = plan(request(nodes=2))
    assert prediction_of(wider, training, own) is None
    newer = remembered(nodes=2)
    assert prediction_of(wider, training, own) == newer


def test_a_script_of_ones_own_is_known_by_all_that_it_is_told():
    training = TrainingSettings()
    entry = load_job(None).entry.path
    names = {
        name_of(training, 1, 4, CARD, entry, args)
        for args in (None, [], ["--batch=8"], ["--batch=16"], ["--batch", "8"])
    }
    assert len(names) == 5


def test_steps_that_are_said_for_a_plan_leave_a_script_of_ones_own_what_it_is():
    def told(job: str | None) -> list[str] | None:
        said = Wanted(sets=("training.steps=30",))
        return PlanQuestion(
            job, None, "a model", None, said, ("30",), False, Consent()
        ).args_alone()

    assert told(str(REPOSITORY / "examples" / "own-model" / "train.py")) == ["30"]
    assert told(None) is None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("training.steps=100",), "finishes in"),
        (("training.steps=1500",), "may not finish"),
        (("training.steps=100000",), "does not finish"),
        (("training.epochs=1", "training.data.task=span-corruption"), ""),
    ],
)
def test_whether_it_finishes_is_said_before_it_queues(sets, said):
    word = [one for one in sets if not one.startswith("training.steps")]
    remembered(*word)
    decided, _ = plan(request(*sets))
    notes = [text for text in decided.placement.warnings if "finish" in text]
    assert [said in text for text in notes] == ([True] if said else [])
    unasked, _ = plan(request(*sets, by_plan=False))
    assert not any("finish" in text for text in unasked.placement.warnings)
