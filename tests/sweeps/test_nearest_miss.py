"""Where no trial of a sweep fits, the nearest miss is shown: which, by how much, what would fit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.training.footprint import GIB, least_gpu_bytes, parameter_count
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.cards import card_of
from fsdpkit.planning.remembered import Remembered, name_of, remember
from fsdpkit.scheduling.job_checks import training_of
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.sweeps.file import load_file
from fsdpkit.sweeps.starting import CheckedTrials, SweepRequest, prepare
from tests.sweeps.trials import as_toml

SITE, ACCOUNT = "osc-pitzer", "resources.account=PAS0001"


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckedTrials]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def prepared(*sets: str, **keys: Any) -> CheckedTrials:
        told = {"schema": "fsdpkit.sweep/1", "name": "a", "sampler": "grid", **keys}
        path = tmp_path / "a.toml"
        path.write_text(as_toml(told))
        return prepare(*load_file(path), SweepRequest((ACCOUNT, *sets), SITE))

    return prepared


PRESETS = {"parameters": {"training.model.preset": ["t5-v1.1-xxl", "t5-v1.1-xl"]}}


def test_the_point_that_is_the_least_too_large_is_shown_with_what_would_be_accepted(
    sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    alone = ("training.sharding.strategy=no_shard", "resources.gpus=1", "resources.nodes=1")
    with pytest.raises(ConfigError) as refused:
        sweep(*alone, **PRESETS)
    told = str(refused.value)
    assert "2 of 2 trials would be refused, so none is submitted" in told
    # Counted here by itself: xl is the smaller of the two.
    job = load_job("t5", sets=[ACCOUNT, *alone, "training.model.preset=t5-v1.1-xl"])
    node = place(job.spec.resources, load_site(SITE)).node_type
    settings = training_of(job, tmp_path)
    assert settings is not None
    assert node.gpu_memory_gb is not None
    needed = least_gpu_bytes(settings, parameter_count(settings.model.dimensions()), 1, 1)
    excess = needed - round(node.gpu_memory_gb * GIB)
    assert "nearest miss: trial 1 (training.model.preset = t5-v1.1-xl)" in told
    assert f"({excess:,} bytes) too much" in told
    # What is offered is what submit takes.
    (line,) = re.findall(r"would be accepted: (.*)", told)
    offered = line.split()
    assert offered
    sets = [ACCOUNT, *alone, "training.model.preset=t5-v1.1-xl", *offered]
    plan(SubmitRequest(job="t5", cluster=SITE, sets=sets))


def test_a_plan_that_was_made_of_a_trial_says_by_how_much_it_misses(
    sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    keys = {"parameters": {"training.batch_size": [64, 32, 128]}}
    shape = ("resources.nodes=1", "resources.gpus=2")
    for rows, total in ((64, 40 * GIB), (32, 33 * GIB), (128, 70 * GIB)):
        job = load_job("t5", sets=[ACCOUNT, *shape, f"training.batch_size={rows}"])
        resources = job.spec.resources
        card = card_of(place(resources, load_site(SITE)).node_type, "")
        settings = training_of(job, tmp_path)
        assert settings is not None
        name = name_of(settings, resources.nodes, resources.gpus, card, job.entry.path)
        would = ["training.sharding.activation_checkpointing=full"]
        kept = Remembered(
            fit="does not fit",
            total=total,
            usable=15 * GIB,
            card="V100",
            would_fit=would,
            made_s=time.time(),
        )
        remember(name, kept)
    with pytest.raises(ConfigError) as refused:
        sweep(*shape, **keys)
    told = str(refused.value)
    assert "nearest miss: trial 1 (training.batch_size = 32)" in told
    assert "takes 33.0 GiB of each GPU (by its plan), which has 15.0 GiB" in told
    assert f"18.0 GiB ({18 * GIB:,} bytes) too much" in told
    assert "would be accepted: training.sharding.activation_checkpointing=full" in told
    # One more that fits, and there is no miss to tell of.
    with pytest.raises(ConfigError) as some:
        sweep(*shape, parameters={"training.batch_size": [64, 32, 16]})
    assert "2 of 3 trials" in str(some.value)
    assert "nearest miss" not in str(some.value)


def test_a_limit_of_the_site_that_all_trials_break_is_told_with_what_would_fit(
    sweep: Callable[..., CheckedTrials],
) -> None:
    keys = {"parameters": {"training.seed": [1, 2]}}
    with pytest.raises(UsageError) as refused:
        sweep("resources.nodes=4000", **keys)
    told = str(refused.value)
    assert told.startswith("sweep a: no trial can run, because all ask for the same: 4000 nodes")
    assert "would fit" in told


def test_a_job_that_does_not_fit_is_swept_over_what_makes_it_fit(
    sweep: Callable[..., CheckedTrials],
) -> None:
    """Its own settings are nobody's: each trial has others."""
    large = ("training.model.preset=t5-v1.1-xxl", "resources.gpus=2", "resources.nodes=1")
    with pytest.raises(ConfigError, match="billion parameters"):
        plan(SubmitRequest(job="t5", cluster=SITE, sets=[ACCOUNT, *large]))
    keys = {"parameters": {"training.sharding.cpu_offload": [True], "training.seed": [1, 2]}}
    assert len(sweep(*large, **keys).trials) == 2
