"""What is looked at of `[stage]` before a job queues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpkit.config.site import load_site
from fsdpkit.errors import ConfigError, FsdpkitError, UsageError
from fsdpkit.rendering.script import Plan, render
from fsdpkit.scheduling import stage_checks
from fsdpkit.scheduling.submission import SubmitRequest, plan

PROFILE = """
schema = "fsdpkit.site/1"
title = "C"
kind = "local"
gpu_request.form = "none"
node_types.loopback.vendor = "none"
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory beside the script: two files of 600 bytes, and a link that would be a third."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "data" / name).write_bytes(bytes(600))
    (tmp_path / "data" / "link").symlink_to("a.txt")
    return tmp_path / "data"


def planned(
    stage: dict[str, object], *, storage: str = 'local = "$TMPDIR"', more: str = "", **asked: object
) -> Plan:
    Path("c.toml").write_text(f"{PROFILE}[storage]\n{storage}\n{more}", encoding="utf-8")
    sets = [
        f"stage.{key}={value if key == 'share' else json.dumps(value)}"
        for key, value in stage.items()
    ]
    image = ["environment.container=i.sif"] if more else []
    request = SubmitRequest(
        "train.py", sets=[*sets, *image], cluster="c.toml", runs="work/runs", **asked
    )
    return plan(request)[0]


@pytest.mark.parametrize(
    "stage",
    [
        {"data": ["data/none"]},
        {"data": ["data/*.csv"]},
        {"data": ["."]},  # the runs are in there
        {"data": ["work"]},
        {"data": ["data", "data/*.txt"]},
        {"data": ["data"], "back": ["./data/a.txt"]},
    ],
)
def test_data_that_cannot_be_copied_is_refused(stage: dict[str, object]) -> None:
    Path("work/runs").mkdir(parents=True)
    assert planned({"data": ["data/[ab].txt"], "back": ["logs"]})
    with pytest.raises(ConfigError, match=r"job train: stage\."):
        planned(stage)


def test_what_does_not_fit_a_node_is_refused_and_what_a_share_of_fits_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little = 'local = "$TMPDIR"\nlocal_gb = 1e-6'
    with pytest.raises(ConfigError, match=r"storage\.local_gb"):
        planned({"data": ["data"]}, storage=little)
    shared = {"data": ["data"], "share": "sharded"}
    with pytest.raises(ConfigError, match=r"storage\.local_gb"):  # on one node it is the whole
        planned(shared, storage=little)
    assert planned(shared, storage=little, nodes=2).warnings == []
    enough = 'local = "$TMPDIR"\nlocal_gb = 1'
    monkeypatch.setattr(stage_checks, "_MOST_ENTRIES", 1)
    assert "at least" in planned({"data": ["data"]}, storage=enough).warnings[0]


def test_a_cluster_that_does_not_say_where_is_not_guessed_at(data: Path) -> None:
    for asked in ({"data": ["data"]}, {"environment": True}, {"back": ["x"]}):
        with pytest.raises(ConfigError, match=r"c\.toml"):
            planned(asked, storage="")
    assert planned({"environment": False}, storage="")
    assert load_site("local").profile.storage.local is not None


def test_the_word_for_its_directory_needs_one() -> None:
    assert planned({"back": ["logs"]}, args=["--out", "{stage}/logs"])
    with pytest.raises(UsageError, match=r"\{stage\}"):
        planned({"environment": True}, args=["--in={stage}/data"])


def test_a_container_is_no_environment_to_copy_and_one_by_srun_sees_no_copy() -> None:
    def engine(name: str) -> str:
        return f'[container]\nengine = "{name}"\n'

    assert planned({"data": ["data"]}, more=engine("apptainer"))
    for stage, name in (({"data": ["data"]}, "pyxis"), ({"environment": True}, "apptainer")):
        with pytest.raises(FsdpkitError, match=r"stage"):
            planned(stage, more=engine(name))


def test_a_run_does_not_copy_what_it_writes(data: Path) -> None:
    decided = planned({"data": ["data/*.txt"]})
    assert render(decided, data.parent / "run")
    with pytest.raises(UsageError, match=r"stage\.data"):
        render(decided, data)
