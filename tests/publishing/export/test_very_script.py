"""An exported script is the script of `submit`: with a form's values written in place of the
variables, its lines are those that the same job's own script has."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.entry import Entry
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.errors import RenderError
from fsdpkit.publishing.export import checks
from fsdpkit.publishing.export.bash_quotes import unexpanded
from fsdpkit.publishing.export.places import MINUTES, places_of, told
from fsdpkit.publishing.export.script import ExportedScript, _plan, export_script
from fsdpkit.publishing.export.shared_job import plain_job
from fsdpkit.publishing.template_cases import sites
from fsdpkit.publishing.template_named import open_template
from fsdpkit.rendering.script import PythonEnvironment, trace
from tests.publishing.export import made

ENTRY, RUN = Path("/home/alex/work/a b/train.py"), Path("/home/alex/work/runs/train-7")
SITES = ("osc-cardinal", "csc-lumi", "olcf-frontier", "generic", "drac-fir")


def own_script(
    exported: ExportedScript, nodes: int, gpus: int, python: str, args: list[str]
) -> list[str]:
    """The body that `submit` makes of the job, and its job.json's checksum."""
    (place,) = (
        p for p in exported.places if p.gpus == gpus and p.partition == exported.place.partition
    )
    plan = _plan(exported.template, exported.site, place, python)
    spec = msgspec.structs.replace(
        plan.job.spec,
        args=args,
        parameters={"wait_s": 90},
        resources=msgspec.structs.replace(plan.job.spec.resources, nodes=nodes),
    )
    job = LoadedJob(spec, plan.job.layered, (), Entry.of_file(ENTRY))
    plan = replace(plan, job=job, python=PythonEnvironment(plan.python.kind, "/opt/my env"))
    lines = trace(plan, RUN).script.split("\n")
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    return [line.replace(job.resolved_sha256, "0" * 64) for line in lines[last + 1 :]]


def filled_in(exported: ExportedScript, nodes: int, gpus: int, args: list[str]) -> list[str]:
    several = exported.body.split("# ---- Several nodes")
    body = several[-1].partition("\n")[2] if nodes > 1 or len(several) == 1 else several[0]
    if len(several) > 1 and nodes == 1:
        body = body.split("== 1 )); then\n", 1)[1].rsplit("\nfi\n", 1)[0]
    texts = {
        checks.RUN_DIR: str(RUN),
        checks.SHA256: "0" * 64,
        "FSDPKIT_FORM_SCRIPT": str(ENTRY),
        "FSDPKIT_FORM_ENVIRONMENT": "/opt/my env",
    }
    numbers = {checks.NODES: nodes, "FSDPKIT_FORM_GPUS": gpus, "FSDPKIT_FORM_P_WAIT_S": 90}
    numbers |= {"FSDPKIT_FORM_P_SAMPLE_S": 10, "FSDPKIT_FORM_P_MIN_FREE_GB": 1.0}
    body = body.replace(f'"${{{checks.WORDS}[@]}}"', shlex.join(args))
    for name, text in texts.items():
        body = body.replace(f'"${name}"', shlex.quote(text))
    for name, number in numbers.items():
        body = body.replace(f"${{{name}}}", str(number))
    return body.split("\n")


@pytest.mark.parametrize("python", ["venv", "conda"])
@pytest.mark.parametrize("name", SITES)
def test_its_lines_are_those_of_submit(name: str, python: str) -> None:
    (site,), _ = sites([name])
    exported = export_script(open_template("torchrun"), site, python=python)
    args = ["--text", 'it\'s a "run" $(id)', "x"]
    for nodes, gpus in ((1, 1), (1, 4), (2, 2), (4, 4)):
        shown = filled_in(exported, nodes, gpus, args)
        own = own_script(exported, nodes, gpus, python, args)
        assert [line for line in shown if line] == [line for line in own if line]
        assert "FSDPKIT_FORM_" not in "\n".join(shown)


def test_directives_are_those_of_submit_for_every_place() -> None:
    (site,), _ = sites(["csc-roihu"])
    exported = export_script(open_template("torchrun"), site)
    assert {place.value: told(place) for place in exported.places} == {
        "gpumedium:1": "1 to 4 nodes, up to 36 h",
        "gpumedium:2": "1 to 2 nodes, up to 36 h",
        "gpumedium:3": "1 node, up to 36 h",
        "gpumedium:4": "1 node, up to 36 h",
        "gpularge:1": "4 to 10 nodes, up to 36 h",
        "gpularge:2": "2 to 10 nodes, up to 36 h",
        "gpularge:3": "2 to 10 nodes, up to 36 h",
        "gpularge:4": "1 to 10 nodes, up to 36 h",
        **{f"gputest:{gpus}": "1 to 2 nodes, up to 15 min" for gpus in (1, 2, 3, 4)},
    }
    assert dict(exported.options["gpumedium:2"])["gres"] == "gpu:gh200:2"
    assert dict(exported.options["gpularge:4"])["partition"] == "gpularge"
    assert exported.left_out == ()


def test_a_limit_that_grows_with_the_nodes_is_told_by_steps() -> None:
    (site,), _ = sites(["olcf-frontier"])
    exported = export_script(open_template("torchrun"), site)
    (batch,) = (place for place in exported.places if place.value == "batch:8")
    assert batch.times == ((91, 2), (183, 6), (9472, 12))


@pytest.mark.parametrize("hours", [1.0, 7.0, 100.0])
def test_node_hours_leave_each_number_of_nodes_its_hours(folder: Path, hours: float) -> None:
    text = f"{made.EGRET}max_node_hours = {hours}\n"
    site = made.site(folder, "limited", text)
    found, _ = places_of(plain_job(), site)
    for place in found:
        assert place.high_nodes == min(8, 8 // place.gpus, int(hours))
        for nodes in range(place.low_nodes, place.high_nodes + 1):
            most = next(most for upto, most in place.times if nodes <= upto)
            assert most == min(24, int(hours / nodes))


def test_a_limit_that_shrinks_with_every_node_is_told_in_a_line(folder: Path) -> None:
    text = made.HERON.replace('max_time = "00:30:00"', "max_node_hours = 40.0\nmax_nodes = 64")
    places, _ = places_of(plain_job(), made.site(folder, "limited", text), MINUTES)
    (quick,) = (place for place in places if place.value == "quick:4")
    assert len(quick.times) == 60
    assert told(quick) == (
        "1 to 64 nodes, 40 h on 1 node, 20 h up to 2 nodes, 13 h 20 min up to 3 nodes, "
        "10 h up to 4 nodes, 8 h up to 5 nodes, 6 h 40 min up to 6 nodes, …, 37 min up to 64 nodes"
    )


QUOTED = [
    ("a='${X}'", True),
    ('a="${X}"', False),
    ('a="it\'s ${X}"', False),
    ("a='x\ny ${X}'", True),
    ("# it's ${X}\nb=1", False),
    ("a=\\'${X}\\'", False),
    ("a=\"$(b '${X}')\"", True),
    ('a="$(b "${X}") \'c ${Y}\'"', False),
    ("a=$(( ${X} + 1 )) b='c'", False),
    ("a=${#b} c='${X}'", True),
    ("echo a#b '${X}'", True),
    ("cat <<'E'\nit is ${X}\nE\n", True),
    ("cat <<E\nit doesn't say ${X}\nE\n", False),
    ("cat <<E\nit doesn't\nE\na='${X}'", True),
    ("cat <<-\\E\n\t${X}\n\tE\n", True),
    ("cat <<A <<'B'\n${X}\nA\nno\nB\n", False),
    ("cat <<'A' <<B\nit's\nA\n${X}\nB\n", False),
    ("cat <<<'a' ${X}", False),
    ("a=$'it\\'s ${X}'", True),
    ("a=$'it\\'s' b=${X}", False),
    ("a=\"$'${X}'\"", False),
]


@pytest.mark.parametrize(("text", "inside"), QUOTED)
def test_single_quotes_are_found_as_bash_finds_them(text: str, inside: bool) -> None:
    assert (text.index("${X}") in set(unexpanded(text))) == inside


def test_a_number_in_single_quotes_is_refused(folder: Path) -> None:
    script = made.SCRIPT.replace("set -euo", "echo 'waits {{ parameters.wait_s }} s'\nset -euo")
    template = made.template(folder, script)
    with pytest.raises(RenderError, match=r"a value stands in single quotes.*: echo"):
        export_script(template, made.site(folder, "heron"))
    made.template(folder)


def test_no_value_of_a_form_stands_outside_its_variable(folder: Path) -> None:
    """Whatever is printed is the variable's name, in quotes or as a number in braces."""
    exported = made.app(folder, "ondemand").exports[0]
    for use in re.findall(r".?\$\{?FSDPKIT_FORM_\w+[^\n]{0,5}", exported.body):
        assert re.match(r'"\$\{?\w+(\[@\])?\}?"|.\$\{\w+\}', use), use


RATES = [
    ("default = 1e-05", "0.00001", None),
    ("default = 0.1", "0.1", None),
    ("default = 1.0", "1", None),
    ("default = 1e-07", None, "it needs more than six decimals: 1e-07"),
]


@pytest.mark.parametrize(("default", "shown", "fixed"), RATES)
def test_a_form_shows_a_number_that_its_script_takes(
    folder: Path, default: str, shown: str | None, fixed: str | None
) -> None:
    rate = f'[parameters.rate]\ntype = "float"\n{default}\nminimum = 0\nmaximum = 1\nhelp = "x"\n'
    script = made.SCRIPT.replace("export TAG", "export RATE={{ parameters.rate }} TAG")
    template = made.template(folder, script, made.MANIFEST + rate)
    exported = export_script(template, made.site(folder, "heron"))
    made.template(folder)
    found = {field.key: field for field in exported.fields}
    assert exported.fixed.get("parameters.rate") == fixed
    assert (found["p_rate"].shown if "p_rate" in found else None) == shown
    assert shown is None or found["p_rate"].allows(shown)


@pytest.mark.parametrize("args", [["--name", "a b"], ["$(id)"], ["a", ""], ["x" * 5000]])
def test_arguments_that_no_field_can_say_are_told_and_not_changed(
    folder: Path, args: list[str]
) -> None:
    spec = msgspec.structs.replace(plain_job(), args=args)
    exported = export_script(made.template(folder), made.site(folder, "heron"), spec)
    (field,) = (field for field in exported.fields if field.key == "arguments")
    assert field.shown == ""
    assert "no field can say what the job says" in exported.fixed["default of arguments"]


def test_a_container_gets_the_directories_that_the_form_says() -> None:
    (site,), _ = sites(["osc-cardinal"])
    spec = plain_job()
    environment = msgspec.structs.replace(spec.environment, container="/apps/torch.sif")
    spec = msgspec.structs.replace(spec, environment=environment)
    exported = export_script(open_template("torchrun"), site, spec)
    assert "environment" not in {field.key for field in exported.fields}
    words = 'exec --nv "$FSDPKIT_FORM_BIND_RUN" "$FSDPKIT_FORM_BIND_SCRIPT" /apps/torch.sif)'
    assert f"FSDPKIT_CONTAINER=(apptainer {words}" in exported.body
    assert "export FSDPKIT_FORM_BIND_RUN=--bind=$FSDPKIT_FORM_RUN_DIR" in exported.checks
    assert "/home/alex" not in exported.script()


# ---- Directives of a template's own

DIRECTIVES = "RUN={{ run.dir | sh }}"


def with_lines(folder: Path, *lines: str) -> ExportedScript:
    script = made.SCRIPT.replace(DIRECTIVES, "\n".join([*lines, "", DIRECTIVES]))
    try:
        return export_script(made.template(folder, script), made.site(folder, "heron"))
    finally:
        made.template(folder)


def test_a_directive_that_the_template_adds_is_asked_for_everywhere(folder: Path) -> None:
    exported = with_lines(folder, "#SBATCH --licenses=matlab", '#SBATCH --comment="two words"')
    for options in exported.options.values():
        assert ("licenses", "matlab") in options
    assert "#SBATCH --licenses=matlab" in exported.script()


def test_a_parameter_in_a_directive_keeps_its_default(folder: Path) -> None:
    exported = with_lines(folder, "#SBATCH --wckey={{ parameters.tag | sb }}")
    assert exported.fixed["parameters.tag"] == "it stands in a directive: plain"
    assert all(("wckey", "plain") in options for options in exported.options.values())
    assert "FSDPKIT_FORM_P_TAG" not in exported.script()


def test_directives_that_differ_by_the_number_of_nodes_are_refused(folder: Path) -> None:
    lines = ("{% if nodes > 1 %}", "#SBATCH --switches=1", "{% endif %}")
    with pytest.raises(RenderError, match="directives differ for one node and for several"):
        with_lines(folder, *lines)


def test_arithmetic_on_the_gpus_fixes_them_and_only_such_places_remain(folder: Path) -> None:
    script = made.SCRIPT.replace("set -euo", "THREADS={{ 64 // gpus }}\nset -euo")
    exported = export_script(made.template(folder, script), made.site(folder, "heron"))
    made.template(folder)
    assert exported.fixed["gpus"] == "the script decides by it: 4"
    assert {place.gpus for place in exported.places} == {4}
    assert "THREADS=16" in exported.body
