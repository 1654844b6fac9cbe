"""What `[retry]`, spare nodes and a resume ask of Slurm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.template import Template
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.script import Plan, render

TEMPLATE = """\
#!/bin/bash
{% for line in origins %}
#   {{ line | note }}
{% endfor %}
{% for d in directives %}
{% if d.value is none %}
#SBATCH --{{ d.name | sb }}
{% else %}
#SBATCH --{{ d.name | sb }}={{ d.value | sb }}
{% endif %}
{% endfor %}
on_crash={{ retry.on_crash | sh }}
echo {{ run.first_attempt }} {{ nodes }} {{ spare }} "$on_crash" {{ retry.restarts }}
"""

NEVER = {f"retry.on_{what}": "stop" for what in ("time_limit", "preemption", "node_failure")}


@pytest.fixture
def script(tmp_path: Path, write_template: Callable[..., Template]) -> Callable[..., str]:
    """A script for 2 nodes; `policy` is the site's for requeueing, `plan` changes the plan."""
    entry = tmp_path / "train.py"
    entry.touch()

    def rendered(
        options: dict[str, Any] | None = None, *, policy: bool | None = None, **plan: Any
    ) -> str:
        profile = tmp_path / "mine.toml"
        rule = "" if policy is None else f"[policy]\nrequeue = {str(policy).lower()}\n"
        profile.write_text(f'schema = "fsdpkit.site/1"\ntitle = "Mine"\n{rule}')
        site = load_site(str(profile))
        job = load_job(str(entry), options={"resources.nodes": 2, **(options or {})})
        template = write_template(TEMPLATE)
        made = Plan(job, site, template, place(job.spec.resources, site), tmp_path)
        return render(dataclasses.replace(made, **plan), tmp_path / "run")

    return rendered


def asked(script: str) -> dict[str, str | None]:
    return dict(read_directives(script))


def test_spare_nodes_are_asked_for_and_a_lost_one_does_not_end_the_job(
    script: Callable[..., str],
) -> None:
    without, text = script(), script({"resources.spare": 1})
    assert (asked(without)["nodes"], "no-kill" in asked(without)) == ("2", False)
    assert (asked(text)["nodes"], asked(text)["no-kill"]) == ("3", None)
    assert text.endswith('on_crash=restart\necho 0 2 1 "$on_crash" 3\n')
    assert "#   spare = 1 (command line)" in text
    assert "#   spare" not in without


@pytest.mark.parametrize(
    ("options", "policy", "flag"),
    [
        ({}, None, "requeue"),
        ({}, True, "requeue"),
        ({}, False, "no-requeue"),
        (NEVER, None, "no-requeue"),
        (NEVER, True, "no-requeue"),
        (NEVER, False, "no-requeue"),
        ({**NEVER, "retry.on_hang": "requeue"}, True, "requeue"),
    ],
)
def test_slurm_may_queue_the_job_again_if_site_and_job_want_it(
    script: Callable[..., str], options: dict[str, Any], policy: bool | None, flag: str
) -> None:
    found = {"requeue", "no-requeue"} & asked(script(options, policy=policy)).keys()
    assert found == {flag}


def test_a_chained_job_starts_only_if_those_before_it_failed(script: Callable[..., str]) -> None:
    found = asked(script(chained=("7", "9"), first_attempt=100))
    assert found["dependency"] == "afternotok:7:9"
    assert found["kill-on-invalid-dep"] == "yes"
    assert script(first_attempt=4).endswith('on_crash=restart\necho 4 2 0 "$on_crash" 3\n')


def test_avoided_nodes_join_those_that_the_job_excludes(script: Callable[..., str]) -> None:
    avoided = (("n1", "until noon: it hung"), ("n2", "until one: it's gone"))
    text = script({"resources.exclude": "n[7-9]"}, avoided=avoided)
    assert asked(text)["exclude"] == "n[7-9],n1,n2"
    assert "#   exclude = n[7-9] (command line)\n" in text
    assert "#   without n2: until one: it's gone\n" in text
    assert asked(script(avoided=avoided))["exclude"] == "n1,n2"
