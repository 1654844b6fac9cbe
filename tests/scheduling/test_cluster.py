"""One protocol for whatever runs jobs: chosen by kind in one place, and kept by both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.local.client import LocalClient
from fsdpkit.scheduling.slurm import Round, SlurmClient


def test_both_have_every_fact_and_operation() -> None:
    wanted = {name for name in vars(Cluster) if not name.startswith("_")}
    assert wanted
    for client in (LocalClient, SlurmClient):
        assert {name for name in wanted if not hasattr(client, name)} == set()


def test_a_machine_that_is_the_cluster_answers_the_questions_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    local, asked = cluster_of("local", None), Round()
    mark = JobMark("fsdpkit:some-run", 1000)
    one, task = MarkedJob("1", mark), MarkedJob("2_3", mark)
    assert local.states([one, task], asked) == {}
    assert local.details(one, asked) == {}
    assert local.find_by_comments(["fsdpkit:some-run"], asked) == {}
    assert local.forgot(one)
    assert (local.name(asked), local.receipt(one)) == (None, (None, None))
    assert asked.answered
    assert not asked.unread
