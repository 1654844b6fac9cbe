"""One list of options: what the command line takes, Python takes, and `resume` and `check` share;
and how `submit --help` shows them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

import fsdpkit as package
from fsdpkit.cli import check, resume, submit
from fsdpkit.config.job_loading import load_job
from fsdpkit.scheduling.resuming import ResumeRequest
from fsdpkit.scheduling.submission import SubmitRequest
from fsdpkit.scheduling.wanted import Wanted, key_of
from tests.conftest import Completed

WHERE_FROM = {"said_in"}  # which nobody types
REQUEST = {one.name for one in fields(SubmitRequest)} - WHERE_FROM
OF_JOB = {"module"}  # `-m lab.train` is the job "-m lab.train"
ABOUT_THE_ANSWER = {"soonest", "trust", "dry_run", "check", "wait", "follow", "keep_s", "as_json"}


def names_of(command: click.Command) -> set[str]:
    return {str(parameter.name) for parameter in command.params}


def parameters_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_every_option_of_a_submission_is_on_the_command_line_and_in_python() -> None:
    assert names_of(submit.command) - ABOUT_THE_ANSWER - OF_JOB == REQUEST - {"args"}
    assert parameters_of(package.submit) == REQUEST


def test_resuming_takes_what_may_change() -> None:
    changes = {one.name for one in fields(ResumeRequest)} - WHERE_FROM
    own = {"run", "runs"}
    assert names_of(resume.command) - ABOUT_THE_ANSWER - own == changes
    assert parameters_of(package.Run.resume) - {"self"} == changes
    assert names_of(check.command) - {"avoid", "trust", "dry_run", "as_json"} <= REQUEST


def test_each_is_short_for_a_key_of_the_job_and_reaches_it() -> None:
    given: dict[str, Any] = {"nodes": 3, "gpus": 2, "time": "7", "partition": "p", "spare": 1}
    assert {one.name for one in fields(Wanted)} - WHERE_FROM == {*given, "account", "sets"}
    asked = SubmitRequest("t5", **given, account="a", snapshot=True)
    job = load_job("t5", options=asked.options)
    for name, value in {**given, "account": "a", "snapshot": True}.items():
        key = key_of(name)
        assert key is not None
        table, _, leaf = key.partition(".")
        assert getattr(getattr(job.spec, table), leaf) == value, key
        assert job.origin(key) == "command line"


def test_help_has_groups_in_the_order_of_a_submission(fsdpkit: Callable[..., Completed]) -> None:
    said = fsdpkit("submit", "--help").stdout
    headings = re.findall(r"^(\w[\w ]*):$", said, re.MULTILINE)
    assert headings == [
        *("What to run", "Resources", "How to submit", "Afterwards", "Options"),
    ]
    below = said.partition("\nResources:\n")[2].partition("\nHow to submit:\n")[0]
    assert re.findall(r"^  (?:-\w, )?(--\S+)", below, re.MULTILINE) == [
        *("--nodes", "--gpus", "--time", "--cluster", "--partition", "--account", "--spare"),
        "--sbatch-option",
    ]
    assert max(map(len, said.splitlines())) <= 80
