"""From where a cluster takes jobs: said in a dry run, refused in a submission."""

from __future__ import annotations

import os
import platform
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fsdpkit.config.profile import Login, NodeType, SiteProfile
from fsdpkit.config.submit_place import Here, reasons_against
from fsdpkit.errors import UsageError
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from tests.programs import Write


def reasons(login: Login, directory: str = "/", node: NodeType | None = None, **other: Any) -> str:
    profile = SiteProfile(schema="fsdpkit.site/1", title="C", login=login)
    environ = other.get("environ", {})
    here = Here(PurePosixPath(directory), environ, ("login1", "login1.example.org"), "x86_64")
    found = reasons_against(profile, node or NodeType(), here, own_python=other.get("own", True))
    return "; ".join(found)


@pytest.mark.parametrize(
    ("patterns", "directory", "fits"),
    [
        (["$SCRATCH"], "/scratch/me", True),
        (["$SCRATCH"], "/scratch/me/deep/er", True),
        (["$SCRATCH"], "/scratch/me2", False),
        (["$SCRATCH"], "/scratch", False),
        (["$SCRATCH/runs"], "/scratch/me/runs", True),
        (["$SCRATCH/runs"], "/scratch/me", False),
        (["/lustre/*/projects"], "/lustre/fs1/projects/x", True),
        (["/lustre/*/projects"], "/lustre/a/b/projects", False),
        (["$ODD"], "/a[b]*/c", True),
        (["$ODD"], "/ab/c", False),
        (["$UNSET", "/lustre/*"], "/lustre/fs1", True),
        (["$RELATIVE"], "/relative", False),
    ],
)
def test_the_directory_is_held_to_the_profile(
    patterns: list[str], directory: str, fits: bool
) -> None:
    environ = {"SCRATCH": "/scratch/me/", "ODD": "/a[b]*", "RELATIVE": "relative"}
    told = reasons(Login(submit_from=patterns), directory, environ=environ)
    assert (told == "") is fits, told


def test_a_python_of_another_processor_is_told_unless_the_job_names_its_own() -> None:
    node = NodeType(arch="aarch64")
    assert "this Python is for x86_64 and the nodes are aarch64" in reasons(Login(), node=node)
    assert reasons(Login(), node=node, own=False) == ""
    assert reasons(Login(), node=NodeType(arch="x86_64")) == ""
    assert reasons(Login(), node=NodeType()) == ""


OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ('[login]\nsubmit_from = ["/nowhere/else"]', "takes jobs only from below /nowhere/else"),
        ('[login]\nhosts = "elsewhere"', "from login nodes that match elsewhere"),
        (f'[node_types.n]\narch = "{OTHER}"', "this Python is for"),
    ],
)
def test_a_plan_warns_and_a_submission_is_refused_before_anything_is_made(
    user_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str, told: str
) -> None:
    user_file("site/profiles/here.toml", f'schema = "fsdpkit.site/1"\ntitle = "H"\n{facts}\n')
    monkeypatch.chdir(tmp_path)
    runs = str(tmp_path / "runs")
    planned, _ = plan(SubmitRequest(cluster="here", nodes=1, gpus=1, runs=runs))
    assert any(told in warning for warning in planned.placement.warnings)
    with pytest.raises(UsageError, match=told):
        submit_plan(planned, runs)
    assert not os.path.exists(runs)
