"""`fsdpkit template test` as a command: what it tries without a cluster, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from fsdpkit.config.site import load_site
from fsdpkit.config.trust import Consent
from fsdpkit.publishing.template_cases import cases_of
from fsdpkit.publishing.template_edges import value_sets
from fsdpkit.publishing.template_jobs import JobTrials
from fsdpkit.publishing.template_named import open_template
from fsdpkit.publishing.template_trials import TrialStep
from tests.publishing.called import TEMPLATE, Call, answer

TWO_SITES = ("--no-run", "--site", "generic", "--site", "local")


def test_what_bash_does_not_read_fails_with_the_case_and_the_line(
    call: Call, small: Callable[..., Path]
) -> None:
    small(script=TEMPLATE.replace('exit "$status"', 'if true\nexit "$status"'))
    done = call("template", "test", "small", *TWO_SITES, status=65)
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if " bash -n " in line)
    assert lines[at].startswith("failed")
    assert "generic, one rank (1 x 1): line 23: " in lines[at + 1]
    assert "syntax error" in lines[at + 1]


def test_a_change_of_what_it_makes_fails_until_its_golden_scripts_are_written_anew(
    call: Call, small: Callable[..., Path]
) -> None:
    folder = small()
    only = ("--no-run", "--site", "generic")
    done = call("template", "test", "small", *only, "--update", status=0)
    assert (folder / "golden" / "generic.sbatch").exists()
    call("template", "test", "small", *only, status=0)
    small(script=TEMPLATE.replace("set -euo", "set -xeuo"))
    done = call("template", "test", "small", *only, status=65)
    assert "+set -xeuo pipefail" in done.stdout
    call("template", "test", "small", *only, "--update", status=0)
    told = answer(call("template", "test", "small", *only, "--json"))
    assert (told["ok"], told["name"]) == (True, "small")
    assert {"rendering", "bash -n", "golden"} <= {s["name"] for s in told["steps"]}
    skipped = {step["name"]: step["told"] for step in told["steps"] if step["skipped"]}
    assert skipped["local job"] == "--no-run"
    assert "canary" not in {step["name"] for step in told["steps"]}


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **says: str) -> None:
    """Puts Slurm's commands on PATH that only complain, on standard error."""
    (folder / "bin").mkdir()
    for name, words in says.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{words}\nE\nexit 1\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def on_slurm(template: str, runs: Path, *, canary: bool) -> list[TrialStep]:
    jobs = JobTrials(open_template(template), Consent(), lambda run: [], lambda words: None)
    return list(jobs.on_slurm(jobs.request("generic", runs=str(runs)), None, canary=canary))


REFUSED = "sbatch: error: Batch job submission failed: Invalid account or account/partition"


def test_what_slurm_refuses_is_said_with_what_to_do_about_it(
    small: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = str(small())  # a canary is kept with its template
    lost = "x: error: fetch_config: DNS SRV lookup failed\nx: fatal: Could not establish a configur"
    fake_slurm(tmp_path, monkeypatch, sbatch=REFUSED, scontrol=f"{lost}ation source")
    (step,) = on_slurm(template, tmp_path, canary=False)
    assert step.skipped
    assert "Could not establish a configuration source. Slurm's commands" in step.told
    (failure,) = on_slurm(template, tmp_path, canary=True)[0].failures
    assert REFUSED in failure
    assert "sacctmgr -nP show assoc" in failure


def test_a_canary_that_slurm_refuses_is_kept_with_the_refusal_and_shown_as_data(
    call: Call, small: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small()
    assert answer(call("templates", "./small", "--json"))["canaries"] == []
    fake_slurm(tmp_path, monkeypatch, sbatch=REFUSED, scontrol="no", squeue="no", sacct="no")
    step = on_slurm(str(folder), tmp_path / "runs", canary=True)[-1]
    assert REFUSED in "".join(step.failures)
    (kept,) = answer(call("templates", "./small", "--json"))["canaries"]
    assert kept.startswith(f"generic: not submitted: sbatch refused: {REFUSED}")
    assert kept in " ".join(call("templates", "./small").stdout.split())
    small(script=TEMPLATE.replace("set -euo", "set -xeuo"))
    (again,) = answer(call("templates", "./small", "--json"))["canaries"]
    assert again.removeprefix(kept).startswith(" (not this")
    on_slurm(str(folder), tmp_path / "runs", canary=True)
    assert len((folder / "tested.txt").read_text().splitlines()) == 1
    (folder / "tested.txt").unlink()
    (folder / "tested.txt").symlink_to(tmp_path / "none")
    assert answer(call("templates", "./small", "--json"))["canaries"] == []


def test_no_run_and_a_canary_exclude_each_other(call: Call, small: Callable[..., Path]) -> None:
    small()
    with pytest.raises(click.UsageError, match="choose one"):
        call("template", "test", "small", "--no-run", "--canary")


def test_shapes_that_a_profile_refuses_alike_are_named_together(tmp_path: Path) -> None:
    """Its jobs of several nodes may take three hours; a case asks for four."""
    profile = 'schema = "fsdpkit.site/1"\ntitle = "Short"\n[node_types.a]\ngpus = 4\n'
    limits = '[partitions.p]\nnode_type = "a"\nmax_time_multinode = "03:00:00"\n'
    (tmp_path / "short.toml").write_text(profile + limits)
    _, left_out, _ = cases_of([load_site(str(tmp_path / "short.toml"))], value_sets({}))
    (told,) = (why for why in left_out if "partition" in why)
    assert told.startswith("two nodes, ")
    assert left_out[told] == ["short"]
