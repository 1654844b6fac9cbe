"""A module and a command are started by torchrun's own options; an older template refuses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdpkit.config.entry import Entry
from fsdpkit.errors import RenderError
from fsdpkit.rendering.script import Plan, render
from fsdpkit.scheduling.submission import SubmitRequest, plan

MODULE, COMMAND = Entry("module", "lab.train"), Entry("command", "litgpt")


def planned(entry: Entry) -> Plan:
    decided = plan(SubmitRequest(cluster="local"))[0]
    return replace(decided, job=replace(decided.job, entry=entry))


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        (Entry("script", "/lab/train.py"), []),
        (MODULE, ["--module"]),
        (COMMAND, ["--no-python"]),
    ],
)
def test_torchrun_is_told_the_kind(tmp_path: Path, entry: Entry, options: list[str]) -> None:
    script = render(planned(entry), tmp_path / "run")
    launch = script[script.index("\ntorchrun \\\n") :].split("</dev/null")[0]
    assert [word for word in launch.split() if word != "\\"][-2 - len(options) :] == [
        *options,
        "--",
        '"$@"',
    ]
    assert f"FSDPKIT_PROGRAM=({entry.name})" in script


@pytest.mark.parametrize("entry", [MODULE, COMMAND])
def test_a_template_that_knows_scripts_alone_refuses_others(tmp_path: Path, entry: Entry) -> None:
    decided = planned(entry)
    old = {
        name: text.replace(b"job.kind", b"job.name")
        for name, text in decided.template.parts.items()
    }
    decided = replace(decided, template=replace(decided.template, parts=old))
    with pytest.raises(RenderError, match=f"starts scripts only, and .*{entry.name} is a"):
        render(decided, tmp_path / "run")
