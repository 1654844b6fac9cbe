"""Renamed keys are read by their old names; keys of a newer release are named, not refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import fsdpkit
from fsdpkit.config import key_changes
from fsdpkit.config.explain import alternatives, fields_of, struct_in
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.key_changes import CHANGED_KEYS, KeyChange, release_of, with_new_names
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import load_site
from fsdpkit.config.template import TemplateManifest, load_template
from fsdpkit.config.trainers import job_type
from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.errors import ConfigError
from fsdpkit.rendering.script import context_of
from fsdpkit.scheduling.submission import SubmitRequest, plan

Write = Callable[[str, str], Path]
KINDS = {
    kind.__name__: kind for kind in (job_type(), SiteProfile, TemplateManifest, TrainingSettings)
}
SITE = 'schema = "fsdpkit.site/1"\ntitle = "T"\n'


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def change(kind: type[msgspec.Struct], **keys: KeyChange) -> None:
        by_key = {key.replace("__", "."): change for key, change in keys.items()}
        monkeypatch.setattr(
            key_changes, "CHANGED_KEYS", {**key_changes.CHANGED_KEYS, kind.__name__: by_key}
        )

    return change


def has(kind: type[msgspec.Struct], key: str) -> bool:
    here: object = kind
    for part in key.split("."):
        struct = struct_in(here)
        if struct is None:
            (here,) = [alternative.__args__[1] for alternative in alternatives(here)]
        elif part in fields_of(struct):
            here = fields_of(struct)[part]
        else:
            return False
    return True


@pytest.mark.parametrize(
    ("kind", "old", "change"),
    [(kind, old, change) for kind, keys in CHANGED_KEYS.items() for old, change in keys.items()],
)
def test_the_table_leads_to_keys_that_there_are(kind: str, old: str, change: KeyChange) -> None:
    assert not has(KINDS[kind], old)
    assert bool(change.name) != bool(change.instead)
    assert not change.name or has(KINDS[kind], change.name)
    assert release_of(change.since) <= release_of(fsdpkit.__version__)


def test_a_job_with_an_old_key_is_read_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'schema = "fsdpkit.job/1"\nname = "own"\nentry = "examples/T5-fsdp/fsdp_t5.py"\n'
        '[resources]\nnodes = 1\ngpus = 1\ntime = "1:00:00"\n'
        "[training]\nlog_every = 7\naccumulate = 2\n"
    )
    job = load_job(str(tmp_path / "own.toml"))
    assert isinstance(job.spec.training, TrainingSettings)
    assert job.spec.training.metrics.every_steps == 7
    assert job.origin("training.metrics.every_steps").endswith("own.toml")
    removed, renamed = job.layered.warnings
    assert "training.accumulate" in removed
    assert "training.micro_batch" in removed
    assert "training.log_every" in renamed
    assert "training.metrics.every_steps" in renamed
    assert "0.1.0" in renamed


def test_the_nearest_layer_wins_by_whichever_name() -> None:
    job = load_job("t5", sets=["training.metrics.every_steps=3", "training.log_every=9"])
    assert isinstance(job.spec.training, TrainingSettings)
    assert job.spec.training.metrics.every_steps == 3  # of one layer, the new name's
    settings = load_settings({"metrics": {"every_steps": 3}}, ["log_every=9"])
    assert settings.metrics.every_steps == 9


def test_a_value_under_an_old_name_is_checked_as_that_of_the_new() -> None:
    with pytest.raises(ConfigError, match=r"training\.log_every"):
        load_job("t5", sets=["training.log_every=0"])
    with pytest.raises(ConfigError, match=r"metrics\.every_steps"):
        load_settings({"log_every": 0})


def test_a_key_below_names_of_the_files_own_is_renamed_in_each(
    changed: Callable[..., None],
) -> None:
    changed(SiteProfile, **{"partitions__*__most": KeyChange("0.1.0", "partitions.*.max_nodes")})
    values = {"partitions": {"a": {"most": 1}, "b": {"max_nodes": 2}, "c.d": {"most": 3}, "e": 4}}
    read, warnings = with_new_names("SiteProfile", values, "profile")
    tables = {"a": {"max_nodes": 1}, "b": {"max_nodes": 2}, "c.d": {"max_nodes": 3}, "e": 4}
    assert read == {"partitions": tables}
    assert [text.split()[1] for text in warnings] == ["partitions.a.most", "partitions.c.d.most"]
    assert values["partitions"]["a"] == {"most": 1}, "the file as it was read stays as it was"


def test_what_one_array_task_has_is_read_by_the_new_name() -> None:
    own = {"0": {"training": {"log_every": 3}, "retry": {"restarts": 1}}}
    read, warnings = with_new_names("JobSpec", {"array_settings": own}, "job.json")
    new = {"training": {"metrics": {"every_steps": 3}}, "retry": {"restarts": 1}}
    assert read == {"array_settings": {"0": new}}
    assert "array_settings.0.training.metrics.every_steps" in warnings[0]
    foreign = with_new_names("JobSpec", {"array_settings": own}, "job.json", "somebody's")
    assert foreign == ({"array_settings": own}, [])


def test_a_template_reads_a_renamed_key_by_its_old_name(
    changed: Callable[..., None], tmp_path: Path
) -> None:
    changed(job_type(), retry__tries=KeyChange("0.1.0", "retry.restarts"))
    changed(SiteProfile, **{"nodes__*__cores": KeyChange("0.1.0", "node_types.*.cpus")})
    planned, _ = plan(SubmitRequest(job="t5", cluster="osc-ascend", account="PAS1234"))
    context = context_of(planned, tmp_path)
    assert context["retry"]["tries"] == context["retry"]["restarts"]
    for name, node in context["site"]["node_types"].items():
        assert context["site"]["nodes"][name]["cores"] == node["cpus"]


def test_a_manifests_warning_travels_with_the_template(
    changed: Callable[..., None], tmp_path: Path
) -> None:
    changed(TemplateManifest, about=KeyChange("0.1.0", "description"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/template.toml").write_text(
        'schema = "fsdpkit.template/1"\nname = "mine"\nversion = "1.0.0"\nabout = "It is mine."\n'
    )
    template = load_template(f"{tmp_path}/mine")
    assert template.manifest.description == "It is mine."
    assert len(template.warnings) == 1


NEWER = "comet = true\n[policy]\norbit = 3\nrequeue = true\n[node_types.gpu]\ntail = 1\n"


def test_a_profile_for_a_newer_release_is_used_without_what_that_brought(user_file: Write) -> None:
    path = user_file("site/profiles/new.toml", SITE + 'requires = "99.1"\n' + NEWER)
    for site in (load_site("new"), load_site(str(path))):
        assert site.profile.policy.requeue is True
        (warning,) = site.layered.warnings
        assert all(key in warning for key in ("comet", "policy.orbit", "node_types.gpu.tail"))
        assert "99.1" in warning
        assert fsdpkit.__version__ in warning


@pytest.mark.parametrize("requires", ["", f'requires = "{fsdpkit.__version__}"\n'])
def test_a_key_that_no_newer_release_explains_is_refused(user_file: Write, requires: str) -> None:
    user_file("site/profiles/new.toml", SITE + requires + NEWER)
    with pytest.raises(ConfigError, match=r"comet|orbit|tail"):
        load_site("new")


def test_what_a_newer_profile_says_wrongly_is_still_refused(user_file: Write) -> None:
    user_file("site/profiles/new.toml", SITE + 'requires = "99"\n[policy]\nwarning_s = 1\n')
    with pytest.raises(ConfigError, match=r"policy\.warning_s"):
        load_site("new")


def test_releases_compare_as_numbers() -> None:
    assert release_of("0.2") == release_of("0.2.0") < release_of("0.10.0rc1") < release_of("1")
