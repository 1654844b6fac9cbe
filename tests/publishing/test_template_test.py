"""`fsdpkit template test` as a command: what it tries without a cluster, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.publishing.called import TEMPLATE, Call, answer

TWO_SITES = ("--no-run", "--site", "generic", "--site", "local")


def test_the_packaged_template_passes_and_no_job_is_started(call: Call) -> None:
    done = call("template", "test", "torchrun", *TWO_SITES, "--json")
    assert done.exit_code == 0, done.output
    told = answer(done)
    assert (told["ok"], told["name"]) == (True, "torchrun")
    tried = {step["name"]: step["told"] for step in told["steps"] if not step["skipped"]}
    assert {"rendering", "bash -n", "golden"} <= set(tried)
    assert "for 2 profiles" in tried["rendering"]
    skipped = {step["name"]: step["told"] for step in told["steps"] if step["skipped"]}
    assert skipped["local job"] == "--no-run"
    assert "canary" not in {*tried, *skipped}


def test_what_bash_does_not_read_fails_with_the_case_and_the_line(
    call: Call, small: Callable[..., Path]
) -> None:
    small(script=TEMPLATE.replace('exit "$status"', 'if true\nexit "$status"'))
    done = call("template", "test", "small", *TWO_SITES)
    assert done.exit_code == 65, done.output
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if " bash -n " in line)
    assert lines[at].startswith("failed")
    assert "generic, one rank (1 x 1): line 22: " in lines[at + 1]
    assert "syntax error" in lines[at + 1]


def test_a_change_of_what_it_makes_fails_until_its_golden_scripts_are_written_anew(
    call: Call, small: Callable[..., Path]
) -> None:
    folder = small()
    only = ("--no-run", "--site", "generic")
    done = call("template", "test", "small", *only, "--update")
    assert done.exit_code == 0, done.output
    assert (folder / "golden" / "generic.sbatch").exists()
    assert call("template", "test", "small", *only).exit_code == 0
    small(script=TEMPLATE.replace("set -euo", "set -xeuo"))
    done = call("template", "test", "small", *only)
    assert done.exit_code == 65, done.output
    assert "+set -xeuo pipefail" in done.stdout
    assert call("template", "test", "small", *only, "--update").exit_code == 0
    assert call("template", "test", "small", *only).exit_code == 0


def test_no_run_and_a_canary_exclude_each_other(call: Call, small: Callable[..., Path]) -> None:
    small()
    with pytest.raises(click.UsageError, match="choose one"):
        call("template", "test", "small", "--no-run", "--canary")
