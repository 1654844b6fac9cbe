"""A second trainer: its settings are read, checked and described like fsdpkit's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from fsdpkit.config import trainers
from fsdpkit.config.job_loading import LoadedJob, load_job, reload_job
from fsdpkit.config.partition import NodeType
from fsdpkit.config.trainer import CheckpointSize, GpuVerdict, Trainer
from fsdpkit.errors import ConfigError
from fsdpkit.scheduling import job_checks
from fsdpkit.scheduling.room import room_for
from tests.programs import Write


class DiffusionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_every: int = 1  # which fsdpkit's own has under another name
    rounds: Annotated[int, Meta(ge=1, description="Rounds of noise.")] = 3
    images: Annotated[str, Meta(description="A folder of images.")] = "images"


class DiffusionTrainer(Trainer):
    Settings = DiffusionSettings

    def problems(self, settings: Any, ranks: int, ranks_per_node: int) -> list[str]:
        return ["rounds must be a multiple of the ranks"] if settings.rounds % ranks else []

    def file_problems(self, settings: Any, ranks: int, work_dir: Path) -> list[str]:
        found = (work_dir / settings.images).is_dir()
        return [] if found else [f"there is no folder {settings.images}"]

    def on_gpus(
        self, settings: Any, ranks: int, ranks_per_node: int, node: NodeType, *, files: bool
    ) -> GpuVerdict:
        return GpuVerdict("that GPU is too small" if settings.rounds > 100 else None, ("slow",))

    def checkpoints(self, settings: Any) -> CheckpointSize | None:
        return CheckpointSize("a diffusion model", 10**18, 2)


TRAINER = DiffusionTrainer()
NO_TRAINER = "a text"


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [
        EntryPoint("diffusion", f"{__name__}:TRAINER", trainers.GROUP),
        EntryPoint("mistaken", f"{__name__}:NO_TRAINER", trainers.GROUP),
    ]
    monkeypatch.setattr(trainers, "_offered", lambda: points)
    trainers.trainer_of.cache_clear()
    trainers.job_type.cache_clear()
    yield
    trainers.trainer_of.cache_clear()
    trainers.job_type.cache_clear()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedJob]:
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)

    def load(*sets: str, training: str = "rounds = 4") -> LoadedJob:
        Path("draw.toml").write_text(
            'schema = "fsdpkit.job/1"\nname = "draw"\nentry = "train.py"\ntrainer = "diffusion"\n'
            '[resources]\nnodes = 1\ngpus = 2\ntime = "1:00:00"\n'
            f"[training]\n{training}\n"
        )
        return load_job("draw.toml", sets=sets)

    return load


def test_its_settings_are_read_as_its_own_type(job: Callable[..., LoadedJob]) -> None:
    loaded = job("training.rounds=8", "training.log_every=2", training="log_every = 3")
    assert loaded.spec.training == DiffusionSettings(rounds=8, log_every=2)
    assert loaded.layered.warnings == []
    assert loaded.origin("training.rounds") == "--set"


@pytest.mark.parametrize(
    ("training", "sets", "about"),
    [
        ("round = 4", [], "Did you mean 'rounds'"),
        ("rounds = 0", [], r"at least 1, not 0 \(Rounds of noise\)"),
        ("rounds = 4", ["training.batch_size=4"], "there is no key 'batch_size'"),
    ],
)
def test_its_keys_are_checked_in_the_same_words(
    job: Callable[..., LoadedJob], training: str, sets: list[str], about: str
) -> None:
    with pytest.raises(ConfigError, match=about):
        job(*sets, training=training)


def test_what_it_says_of_settings_files_and_gpus_is_asked_before_a_job_queues(
    job: Callable[..., LoadedJob], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="multiple of the ranks"):
        job_checks.check_training(job("training.rounds=3"), tmp_path)
    with pytest.raises(ConfigError, match="no folder images"):
        job_checks.check_training(job(), tmp_path)
    (tmp_path / "images").mkdir()
    job_checks.check_training(job(), tmp_path)
    assert job_checks.check_on(job(), NodeType(), tmp_path) == ["slow"]
    with pytest.raises(ConfigError, match="too small"):
        job_checks.check_on(job("training.rounds=102"), NodeType(), tmp_path)
    room = room_for(job(), tmp_path, job().spec.training)
    assert room.too_small
    assert "a diffusion model" in room.note


def test_settings_of_fsdpkits_trainer_in_defaults_are_not_for_it(
    job: Callable[..., LoadedJob], user_file: Write
) -> None:
    user_file("jobs/defaults.toml", "[training]\nseed = 7\n[training.optimizer]\nlr = 0.1\n")
    assert job().spec.training == DiffusionSettings(rounds=4)


def test_its_run_goes_on_as_its_run(job: Callable[..., LoadedJob], tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(job().resolved)
    again = reload_job(tmp_path / "job.json", "run r", work_dir=tmp_path)
    assert again.spec.training == DiffusionSettings(rounds=4)


@pytest.mark.parametrize(
    ("name", "about"), [("difusion", "Did you mean 'diffusion'"), ("mistaken", "is no")]
)
def test_a_trainer_that_nobody_offers_is_refused(
    job: Callable[..., LoadedJob], name: str, about: str
) -> None:
    with pytest.raises(ConfigError, match=about):
        job(f"trainer={name}")
