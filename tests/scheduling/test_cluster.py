"""One protocol for whatever runs jobs: chosen by kind in one place, and kept by both kinds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fsdpkit.errors import UsageError
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.local.client import LocalClient
from fsdpkit.scheduling.slurm import Round, SlurmClient
from tests.packaging.installation import ROOT

KINDS = {"local", "slurm"}
ASK_FOR_A_KIND: Mapping[str, str] = {
    "scheduling/cluster.py": "the place that chooses",
    "cli/init.py": "a job file is written for a profile: which questions it makes sense to ask",
    "cli/site_diff.py": "compares a profile with Slurm's own configuration",
    "cli/template_test.py": "the last part of the test is sbatch's",
    "config/new_job.py": "which keys of a job file a profile has a use for",
    "publishing/catalogue/reading.py": "a catalogue shows clusters to submit to from elsewhere",
    "publishing/catalogue/rendering.py": "as above",
    "publishing/export/script.py": "a portal submits to Slurm",
    "scheduling/checks.py": "the login node's checks of Slurm's commands and clock",
    "scheduling/first_job.py": "accounts are Slurm's",
}
"""Files that compare a kind, and why that is no question of how a job is run."""


def comparisons(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            words = [one.value for one in [node.left, *node.comparators] if _is_word(one)]
            names = [one for one in ast.walk(node) if _names_a_kind(one)]
            if names and KINDS.intersection(map(str, words)):
                yield ast.unparse(node)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _names_a_kind(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "kind"


def test_only_one_place_chooses_by_kind() -> None:
    package = ROOT / "fsdpkit"
    found = {
        path.relative_to(package).as_posix(): list(comparisons(path))
        for path in sorted(package.rglob("*.py"))
    }
    assert sorted(name for name, each in found.items() if each) == sorted(ASK_FOR_A_KIND)


@pytest.mark.parametrize(
    ("kind", "name", "client"),
    [("local", None, LocalClient), ("slurm", "c1,c2", SlurmClient), ("slurm", None, SlurmClient)],
)
def test_a_kind_has_its_cluster(kind: str, name: str | None, client: type) -> None:
    cluster = cluster_of(kind, name)
    assert isinstance(cluster, client)
    assert getattr(cluster, "cluster", None) == name


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
    assert local.states(["1", "2_3"], asked, "1000") == {}
    assert local.details("1", asked) == {}
    assert local.config_text(asked) is None
    assert local.find_by_comments(["fsdpkit:some-run"], asked) == {}
    assert local.forgot("1")
    assert asked.answered
    assert not asked.unread


def test_a_job_too_large_for_this_machine_is_refused_before_its_memory_is_looked_at() -> None:
    from fsdpkit.config.job import Resources

    local = cluster_of("local", None)
    with pytest.raises(UsageError):
        local.check(Resources(nodes=10_000, gpus=1, time="1:00:00"), here=False)
    cluster_of("slurm", None).check(Resources(nodes=10_000, gpus=1, time="1:00:00"), here=True)
