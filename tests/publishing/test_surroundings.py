"""What a script takes from a shell is one record, which can stand in for a shell."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.config.surroundings import (
    VARIABLES,
    PythonEnvironment,
    Surroundings,
    of_this_process,
    stand_in,
    stood_in,
)
from fsdpkit.publishing.catalogue.bundle import own_modules
from fsdpkit.scheduling.submission import SubmitRequest, plan, script_of

NOT_OF_A_SCRIPT = {
    "FSDPKIT_ALLOWED_SIGNERS": "which of a centre's files count; those of a page were looked at",
    "FSDPKIT_STATE_DIR": "what the person has seen of a centre before",
    "XDG_STATE_HOME": "the same",
    "XDG_CACHE_HOME": "where the person's own plans lie; a page has those of its catalogue",
    "PATH": "whether there is a command of that name, not what the script says",
    "PYTHONPATH": "where a person's own modules lie; a page has none",
    "SLURM_CLUSTERS": "which cluster takes the script, not what it says",
    "FSDPKIT_TASK_DIR": "where a rank of a running job writes",
    "FSDPKIT_HOST": "which machine runs the command",
    "FSDPKIT_REMOTE": "how it is called there",
    "FSDPKIT_VIA": "how the person calls it",
}
"""Variables that are read by what a dry run imports, and cannot reach what it writes."""


def variables_read(source: bytes) -> Iterator[str]:
    """Every name that is looked up in os.environ, or handed to os.getenv."""
    for node in ast.walk(ast.parse(source)):
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            if called in ("os.environ.get", "os.getenv", "os.environ.pop"):
                name = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            name = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            name = node.left
        if isinstance(name, ast.Constant):
            yield str(name.value)


def test_every_variable_that_a_dry_run_reads_is_in_the_record() -> None:
    read = {name for source in own_modules().values() for name in variables_read(source)}
    assert read - {*NOT_OF_A_SCRIPT} == {*VARIABLES} - {"HOME"}  # which expanduser reads


def test_a_record_of_this_process_standing_in_writes_the_same_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSDPKIT_RUNS", "somewhere")
    request = SubmitRequest(cluster="osc-cardinal", account="PAS2136")
    here, expected = of_this_process(), script_of(plan(request)[0])
    monkeypatch.chdir("/")
    monkeypatch.setenv("FSDPKIT_RUNS", "elsewhere")
    with stand_in(here):
        assert script_of(plan(request)[0]) == expected
    assert (os.getcwd(), os.environ["FSDPKIT_RUNS"], stood_in()) == ("/", "elsewhere", None)


def test_standing_in_ends_where_it_began_though_the_command_fails(tmp_path: Path) -> None:
    before = os.getcwd()
    elsewhere = Surroundings(
        work_dir=str(tmp_path),
        variables={"SBATCH_ACCOUNT": "PAS1"},
        python=PythonEnvironment("conda", "/opt/env", "/opt/conda"),
        packaged=of_this_process().packaged,
    )
    with pytest.raises(RuntimeError), stand_in(elsewhere):  # noqa: PT012
        assert of_this_process() == elsewhere
        raise RuntimeError
    assert os.getcwd() == before
    assert "SBATCH_ACCOUNT" not in os.environ


def test_a_slurm_that_expedites_is_asked_to_only_where_the_record_says_so(tmp_path: Path) -> None:
    profile = tmp_path / "zoo.toml"
    profile.write_text('schema = "fsdpkit.site/1"\ntitle = "Zoo"\n[policy]\nrequeue = true\n')
    request = SubmitRequest(cluster=str(profile))
    for expedites in (False, True):
        with stand_in(of_this_process(expedites=expedites)):
            script = script_of(plan(request)[0])
        assert ("#SBATCH --requeue=expedite" in script) is expedites
