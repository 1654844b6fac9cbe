"""Every key of a job file can be swept and reaches its trial, or is refused in its own words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from fsdpkit.config.array_tasks import why_shared
from fsdpkit.config.explain import alternatives, fields_of, struct_in
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.launch import LaunchSettings
from fsdpkit.config.retry import Retry
from fsdpkit.config.trainers import job_type
from fsdpkit.errors import ConfigError, RenderError, UsageError
from fsdpkit.rendering.script import render
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.sweeps.file import SweepFile
from fsdpkit.sweeps.job_files import as_file
from fsdpkit.sweeps.space import Settings, parameters
from fsdpkit.sweeps.starting import CheckedTrials, array_job
from fsdpkit.sweeps.trial_checks import trial_job
from fsdpkit.training.command_line import read_settings

NAME = {"environment.variables": "SWEPT", "parameters": "sample_s"}
"""A name to try in a table whose names are a person's choice; 0 where they are numbers of tasks."""


def keys_of(kind: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a job's schema with its type, down to single values."""
    for name, annotation in fields_of(kind).items():
        key = f"{above}{name}"
        free = next((t for t in alternatives(annotation) if get_origin(t) is dict), None)
        if (struct := struct_in(annotation)) is not None:
            yield from keys_of(struct, f"{key}.")
        elif free is not None:
            yield f"{key}.{NAME.get(key, '0')}", get_args(free)[1]
        else:
            yield key, annotation


KEYS = dict(keys_of(job_type()))
SWEPT = [key for key in KEYS if why_shared(key) is None]


def test_a_key_that_all_trials_share_is_refused_in_its_own_words() -> None:
    said: dict[str, str] = {}
    for key in KEYS.keys() - {*SWEPT}:
        with pytest.raises(ConfigError) as refused:
            parameters({key: [1, 2]})
        told = str(refused.value)
        assert told.startswith(f"parameters.{key}: "), told
        # No key relies on the rule for tables that nobody has thought about.
        assert "all tasks of an array share it" not in told, key
        assert any(
            way in told
            for way in (
                "start a sweep",
                "fsdpkit ",
                "leave it out",
                "args.NAME",
                "--set",
                "name the key",
            )
        ), told
        said[key] = told.partition(": ")[2].replace(key, "KEY")
    assert "fsdpkit scale" in said["resources.nodes"]
    assert "--gpus N" in said["resources.gpus"]
    for asked in ("time", "partition", "account", "qos", "memory", "spare", "nodelist"):
        assert "Slurm is asked once" in said[f"resources.{asked}"]
    # What is said of one key is not said of another.
    assert len({*said.values()}) == len(said)


def test_a_table_that_nobody_has_thought_about_is_shared_and_a_known_one_decides_its_keys() -> None:
    assert why_shared("training.a_key_of_next_year") is None  # the schema refuses it, or has it
    assert "Did you mean" in (why_shared("retri.hang_s") or "")

    class Next(msgspec.Struct, frozen=True, kw_only=True):
        colour: str = ""

    kind = msgspec.defstruct("Next", [("schema", str), ("lights", Next, Next())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsdpkit.config.array_tasks.job_type", lambda: kind)
        assert "all tasks of an array share it" in (why_shared("lights.colour") or "")


# ---- Keys that trials may differ in


def tried(annotation: Any) -> Iterator[str]:
    """Values as `--set` has them, of which a key of this type takes one."""
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            yield from map(str, reversed(get_args(kind)))
        elif get_origin(kind) in (list, tuple):
            yield from ('["json"]', '["seed"]', '[{match = "*", lr_scale = 0.5}]', "[1, 2]")
    yield from ("2", "0.5", "7", "128", "0.01", "true", "false", "00:10:00", "swept", "t5-base")


@pytest.fixture(scope="module")
def values() -> dict[str, str]:
    """For each key a value that differs from what the T5 job has."""
    plain = msgspec.to_builtins(load_job("t5").spec)
    found: dict[str, str] = {}
    for key in SWEPT:
        for value in tried(KEYS[key]):
            try:
                changed = msgspec.to_builtins(load_job("t5", sets=[f"{key}={value}"]).spec)
            except ConfigError:
                continue
            if at(changed, key) != at(plain, key):
                found[key] = value
                break
    return found


def at(tables: Any, key: str) -> Any:
    for part in key.split("."):
        tables = tables.get(part) if isinstance(tables, dict) else None
    return tables


@pytest.fixture
def swept(values: dict[str, str], tmp_path: Path) -> CheckedTrials:
    """A sweep with one trial for each key."""
    trials: list[Settings] = [{key: values[key]} for key in values]
    decided, _ = plan(SubmitRequest(job="t5", cluster="local", array=f"0-{len(trials) - 1}"))
    told = {"schema": "fsdpkit.sweep/1", "name": "s", "parameters": {"training.seed": [1, 2]}}
    file = msgspec.convert(told, SweepFile)
    numbers = tuple(range(len(trials)))
    prepared = CheckedTrials(file, decided, numbers, tuple(trials), None, base=decided.job)
    return replace(prepared, plan=replace(decided, job=array_job(prepared)))


def test_every_other_key_reaches_its_trial(
    swept: CheckedTrials, values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [key for key in SWEPT if key not in values] == []
    script = render(swept.plan, tmp_path / "run")
    words = listed(script, "array_args")
    variables = listed(script, "array_variables")
    (tmp_path / "job.json").write_text(swept.plan.job.resolved)
    monkeypatch.delenv("FSDPKIT_JOB_SHA256", raising=False)
    for trial, (key, value) in enumerate(values.items()):
        wanted = at(msgspec.to_builtins(load_job("t5", sets=[f"{key}={value}"]).spec), key)
        # Its job file, as `fsdpkit submit` reads it.
        own = tmp_path / f"{trial}.toml"
        own.write_text(as_file(trial_job("t5", {key: value}, [])))
        assert at(msgspec.to_builtins(load_job(str(own)).spec), key) == wanted, key
        # Where the task reads it.
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(trial))
        table, _, name = key.partition(".")
        if table == "training":
            found = read_settings("", ["--job", str(tmp_path / "job.json"), *words[trial]])
            assert at(msgspec.to_builtins(found), name) == wanted, key
        elif table == "environment":
            assert variables[trial] == [f"SWEPT={wanted}"]
        else:
            kind: Any = {"launch": LaunchSettings, "retry": Retry}[table]
            assert getattr(table_of_job(tmp_path, table, kind), name) == wanted, key
        # And where another does not.
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(len(values)))
        if table in ("launch", "retry"):
            plain = getattr(table_of_job(tmp_path, table, kind), name)
            assert plain != wanted, key


def listed(script: str, name: str) -> dict[int, list[str]]:
    """By task, what the script's array of this name has for it."""
    found = {}
    for line in script.splitlines():
        if line.startswith(f"{name}+=("):
            task, count, *rest = shlex.split(line.removeprefix(f"{name}+=(").removesuffix(")"))
            assert int(count) == len(rest)
            found[int(task)] = rest
    return found


def test_no_script_is_made_with_a_key_that_its_tasks_may_differ_in(
    values: dict[str, str], tmp_path: Path
) -> None:
    """Else a task would have one value in its script and another where it reads its own."""

    def made(*sets: str) -> str:
        decided, _ = plan(SubmitRequest(job="t5", cluster="local", array="0-1", sets=sets))
        lines = render(decided, tmp_path / "run").splitlines()
        return "\n".join(
            line for line in lines if "SHA256" not in line and "# template" not in line
        )

    plain = made()
    agents = [key for key in values if key.startswith(("launch.", "retry."))]
    assert len(agents) > 5
    assert [key for key in agents if made(f"{key}={values[key]}") != plain] == []
    assert made("retry.restarts=7") != plain  # as a key that is refused would


def test_a_trial_that_alone_may_be_queued_again_is_not_forbidden_it(tmp_path: Path) -> None:
    names = [name for name in fields_of(Retry) if name.startswith("on_")]
    never = [f"retry.{name}=stop" for name in names]
    own = 'array_settings={1 = {retry = {on_hang = "requeue"}}}'
    for sets, forbidden in ((never, True), ([*never, own], False)):
        decided, _ = plan(SubmitRequest(job="t5", cluster="local", array="0-1", sets=sets))
        assert ("--no-requeue" in render(decided, tmp_path / "run")) is forbidden


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ("{0 = {resources = {nodes = 2}}}", "array_settings.0.resources.nodes: tasks of one array"),
        ("{0 = {training = {seed = 2}}}", "is told it in array_args.0"),
        ("{0 = {retry = {hang_s = -1}}}", "must be at least 0"),
        ("{0 = {retry = {hangs = 1}}}", "no key 'hangs'"),
        ('{0 = {environment = {variables = {PPID = "1"}}}}', "PPID"),
        ('{0 = {environment = {variables = {MY_TOKEN = "a1b2c3d4e5f6"}}}}', "secret"),
        ('{0 = {environment = {variables = "x"}}}', "must be a table"),
        ("{9 = {retry = {hang_s = 1}}}", "has no task 9"),
    ],
)
def test_what_a_job_gives_single_tasks_itself_is_checked_as_much(own: str, reason: str) -> None:
    with pytest.raises((UsageError, ConfigError)) as refused:
        plan(SubmitRequest(job="t5", cluster="local", array="0-1", sets=[f"array_settings={own}"]))
    assert reason in str(refused.value)


def test_a_template_that_hands_no_variables_to_single_tasks_is_refused(
    swept: CheckedTrials, tmp_path: Path
) -> None:
    parts = {n: b.replace(b"array_variables", b"x") for n, b in swept.plan.template.parts.items()}
    deaf = replace(swept.plan, template=replace(swept.plan.template, parts=parts))
    with pytest.raises(RenderError, match="does not pass on array_variables"):
        render(deaf, tmp_path / "run")
