"""`fsdpkit template lint`: each mistake is a line with its place, and what was not looked at is
said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.publishing.template_checklist import checklist
from tests.publishing.called import MANIFEST, TEMPLATE, Call, answer

Small = Callable[..., Path]


@pytest.fixture(autouse=True)
def shellcheck_is_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads only the script that is for it."""
    if "[shellcheck]" not in request.node.name:
        monkeypatch.setattr("fsdpkit.publishing.template_shell.has_shellcheck", lambda: False)


def problems(folder: Path) -> dict[str, tuple[str, str | None]]:
    """By check, what is wrong and where."""
    found = list(checklist(str(folder)))
    return {f.check: (f.told, f.where) for f in found if f.outcome == "problem"}


def parameter(text: str) -> str:
    return f"{MANIFEST}\n[parameters.x]\n{text}"


SCRIPT_PROBLEMS = {
    "syntax": (TEMPLATE.replace("{% endfor %}", "{% endfo %}", 1), "syntax", "job.sbatch.j2"),
    "a macro": (TEMPLATE + "{% macro m() %}{% endmacro %}", "syntax", "job.sbatch.j2:23"),
    "no quoter": (
        TEMPLATE.replace("{{ run.dir | sh }}", "{{ run.dir }}"),
        "rendering",
        "job.sbatch.j2:9",
    ),
    "a value in the body": (TEMPLATE.replace('"$RUN/', "{{ run.dir | sh }}/"), "rendering", None),
    "syntax of bash": (
        TEMPLATE.replace("status=0", "for x do done"),
        "bash -n",
        "job.sbatch.j2:20",
    ),
    "shellcheck": (
        TEMPLATE.replace("set -euo", "set -euo pipefail\nfor f in $(ls); do echo $f; done\nset -o"),
        "shellcheck",
        "job.sbatch.j2:18",
    ),
    "the status of srun": (
        TEMPLATE.replace('exit "$status"', "echo done"),
        "directives and status",
        "job.sbatch.j2:22",
    ),
    "no trap": (TEMPLATE.replace("trap '", "# '"), "traps", "job.sbatch.j2"),
    "--export": (TEMPLATE.replace(" SLURM_EXPORT_ENV=ALL", ""), "export", "job.sbatch.j2"),
    "--export with values": (
        TEMPLATE.replace("srun --nodes", "srun --export=ALL,A=b --nodes"),
        "export",
        "job.sbatch.j2:21",
    ),
    "a path of a person": (
        TEMPLATE.replace("status=0", "# /home/jdoe/env\\nstatus=0"),
        "personal data",
        "job.sbatch.j2:20",
    ),
    "an address": (
        TEMPLATE.replace("status=0", "# jdoe@hpc.university.edu\\nstatus=0"),
        "personal data",
        "job.sbatch.j2:20",
    ),
    "an account": (
        TEMPLATE.replace("status=0", "# such as PAS2136\\nstatus=0"),
        "personal data",
        "job.sbatch.j2:20",
    ),
    "an undefined name": (
        TEMPLATE.replace("status=0", "X={{ nobody }}"),
        "rendering",
        "job.sbatch.j2:20",
    ),
    "no arguments": (TEMPLATE.replace("job.args", "job.array_args"), "hands on", "job.sbatch.j2"),
}


@pytest.mark.parametrize(
    ("script", "check", "where"), SCRIPT_PROBLEMS.values(), ids=SCRIPT_PROBLEMS.keys()
)
def test_a_mistake_in_the_script_is_named_with_its_place(
    script: str, check: str, where: str | None, small: Small
) -> None:
    found = problems(small(script=script))
    assert where is None or (found[check][1] or "").startswith(where), found
    assert check in found


MANIFEST_PROBLEMS = {
    "no bounds": (parameter('type = "int"\nhelp = "How many there are."\n'), "parameters"),
    "text of any kind": (parameter('type = "str"\nhelp = "What it is."\n'), "parameters"),
    "no version": (MANIFEST.replace("1.0.0", "0.0.0"), "version"),
    "not TOML": (MANIFEST + "[", "manifest"),
    "an unknown key": (MANIFEST + "colour = 1\n", "manifest"),
    "another name": (MANIFEST.replace("small", "other"), "manifest"),
}


@pytest.mark.parametrize(
    ("manifest", "check"), MANIFEST_PROBLEMS.values(), ids=MANIFEST_PROBLEMS.keys()
)
def test_a_mistake_in_the_manifest_is_named(manifest: str, check: str, small: Small) -> None:
    told, where = problems(small(manifest=manifest))[check]
    assert told
    assert "template.toml" in (where or "")


def test_a_sound_template_has_no_problem_but_its_missing_goldens(small: Small) -> None:
    assert problems(small()) == {"golden": ("it has no golden scripts", "golden/")}


def test_what_cannot_be_looked_at_is_said_and_is_not_ok(small: Small) -> None:
    found = list(checklist(str(small(manifest="["))))
    assert [f.check for f in found if f.outcome == "problem"] == ["manifest"]
    assert {f.outcome for f in found[1:]} == {"not looked at"}
    assert len(found) > 10


def hostile(folder: Path, kind: str) -> None:
    script = folder / "job.sbatch.j2"
    if kind == "a part that is a link outside":
        (folder / "more.j2").symlink_to("/etc/passwd")
    elif kind == "a link in a circle":
        (folder / "more.j2").symlink_to("more.j2")
    elif kind == "no UTF-8":
        script.write_bytes(b"#!/bin/bash\n# \xff\n")
    elif kind == "a huge part":
        (folder / "more.j2").write_bytes(b"x" * 200_000)
    elif kind == "a pipe":
        import os

        script.unlink()
        os.mkfifo(script)
    elif kind == "no script":
        script.unlink()


@pytest.mark.parametrize(
    "kind",
    [
        *("a part that is a link outside", "a link in a circle", "no UTF-8", "a huge part"),
        *("a pipe", "no script"),
    ],
)
def test_a_hostile_folder_is_a_problem_and_harms_nobody(
    kind: str, small: Small, call: Call
) -> None:
    folder = small()
    hostile(folder, kind)
    result = call("template", "lint", str(folder), "--json", status=65)
    told = [f for f in answer(result)["findings"] if f["outcome"] == "problem"]
    assert told
    assert "root:" not in result.stdout


def test_json_and_text_agree_and_a_template_that_is_not_there_is_not_found(
    small: Small, call: Call
) -> None:
    folder = small()
    text = call("template", "lint", "small", status=65)
    assert "problem       golden" in text.stdout
    assert not answer(call("template", "lint", str(folder), "--json"))["ok"]
    call("template", "lint", "./nothing", status=66)
    call("template", "lint", "nothing", status=66)
