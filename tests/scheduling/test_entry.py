"""What is wrong with a script is told before it queues, and nothing that nobody can know."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.errors import ConfigError
from fsdpkit.scheduling import entry as module
from fsdpkit.scheduling.submission import SubmitRequest, plan

Submitted = Callable[..., None]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """Plans the job of a script with this source, as `submit` and `--check` do."""
    monkeypatch.chdir(tmp_path)

    def call(source: str | bytes, *sets: str, cluster: str = "local") -> None:
        text = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
        (tmp_path / "train.py").write_bytes(text)
        plan(SubmitRequest("train.py", cluster=cluster, sets=sets, account="PAS2136"))

    return call


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os\n\nx = (1,\n", "train.py:3"),
        ("def f(:\n    pass\n", "\n    def f(:\n    "),
        ("\tif True:\n pass\n", "train.py:1"),
        ("x = '\x1b[31m' '\n", "train.py:1"),
        ("return 1\n", "train.py:1"),
        ("from __future__ import braces\n", "train.py:1"),
        (b"x = '\xff'\n", "train.py"),
    ],
)
def test_what_does_not_compile_is_refused_by_its_line(
    planned: Submitted, source: str | bytes, told: str
) -> None:
    with pytest.raises(ConfigError, match="cannot compile") as error:
        planned(source)
    assert told in str(error.value)
    assert "\x1b" not in str(error.value)


def test_the_mark_stands_below_what_is_wrong(planned: Submitted) -> None:
    with pytest.raises(ConfigError) as error:
        planned("if True:\n    x = 5 +* 3\n")
    *_, line, mark = str(error.value).split("\n")
    assert line[mark.index("^")] == "*"


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module",
        "import os, no_such_module.part as x",
        "from no_such_module.part import x",
        "import json\nif True:\n    import other_such\nimport no_such_module\n",
    ],
)
def test_what_is_not_installed_is_named(planned: Submitted, source: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(source)
    assert "no_such_module" in str(error.value)
    assert "other_such" not in str(error.value)
    planned(source, "launch.check=false")


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import no_such_module\nexcept ImportError:\n    pass",
        "def main():\n    import no_such_module",
        "if input:\n    import no_such_module",
        "import sys\nsys.path.append('/opt/lab')\nimport no_such_module",
        "from sys import path\npath.insert(0, '/opt')\nimport no_such_module",
        "import site\nsite.addsitedir('/opt')\nimport no_such_module",
        "from . import no_such_module",
        "import os.path, torch, yaml_like_beside, package_beside.inner",
        "",
        "'''" + "x" * (5 << 20) + "'''\nimport no_such_module",
    ],
)
def test_what_may_well_run_is_let_through(planned: Submitted, tmp_path: Path, source: str) -> None:
    (tmp_path / "yaml_like_beside.py").touch()
    (tmp_path / "package_beside").mkdir()
    planned(source)


@pytest.mark.parametrize(
    ("sets", "cluster"),
    [
        (["environment.container=x.sif"], "osc-ascend"),
        (["environment.conda=named"], "osc-ascend"),
        (["environment.venv=/no/such/venv"], "osc-ascend"),
        (['environment.modules=["python"]'], "osc-ascend"),
    ],
)
def test_of_an_environment_that_cannot_be_asked_nothing_is_said(
    planned: Submitted, sets: list[str], cluster: str
) -> None:
    planned("import no_such_module\nx = = 1\n", *sets, cluster=cluster)


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with one package of its own and nothing of ours."""
    where = tmp_path_factory.mktemp("environment") / "its env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    (packages,) = where.glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text("raise SystemExit('it is never imported')")
    return where


def test_the_jobs_own_environment_is_asked(planned: Submitted, venv: Path) -> None:
    own = f"environment.venv={venv}"
    planned("import only_there", own)
    with pytest.raises(ConfigError, match="only_there"):
        planned("import only_there")
    with pytest.raises(ConfigError, match="submitit"):
        planned("import only_there, submitit", own)
    with pytest.raises(ConfigError, match=r"train\.py:2"):
        planned("import only_there\nx = = 1", own)


def test_a_python_that_does_not_answer_stops_nobody(
    planned: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "slow" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for program in ("sleep 60", "echo '[]'", "echo $((1/0))", "head -c 1000000 /dev/urandom"):
        python.write_text(f"#!/bin/bash\n{program}\n")
        os.chmod(python, 0o755)
        monkeypatch.setattr(module, "_ANSWER_S", 0.5)
        planned("import no_such_module", f"environment.venv={tmp_path / 'slow'}")


def test_a_pythonpath_of_the_job_counts(planned: Submitted, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "only_in_the_lab.py").touch()
    place = f"{{PYTHONPATH = '/none:{tmp_path}/lab'}}"
    planned("import only_in_the_lab", f"environment.variables={place}")


@pytest.mark.parametrize("key", ["training.steps=4", "training.optimizer.lr=1e-3"])
def test_settings_of_the_trainer_are_refused_for_a_script_that_reads_none(
    planned: Submitted, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        planned("import argparse", key)
    assert key.partition("=")[0] in str(error.value)
    assert "-- --lr" in str(error.value)
    planned("from fsdpkit.training.command_line import read_settings", key)
    planned("from fsdpkit import training\ntraining.command_line.read_settings('x')", key)
    planned("p.add_argument('--job') if 0 else None\np = 0", key)
    (tmp_path / "beside.py").write_text("import further")
    (tmp_path / "further.py").write_text("import argparse")
    with pytest.raises(ConfigError):
        planned("def main():\n    import beside", key)
    (tmp_path / "further.py").write_text("from fsdpkit.training import read_settings")
    planned("def main():\n    import beside", key)
    planned("import runpy\nrunpy.run_path('/their/train.py')", key)


def test_a_script_in_the_place_of_our_trainer_may_take_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import argparse")
    request = SubmitRequest("t5", cluster="local", sets=["entry=mine.py", "training.steps=3"])
    assert plan(request)[0].job.spec.training.steps == 3  # type: ignore[union-attr]


def test_ones_own_defaults_for_the_trainer_do_not_reach_other_scripts(
    planned: Submitted, isolated_user: Path, tmp_path: Path
) -> None:
    defaults = isolated_user / "config" / "defaults.toml"
    defaults.parent.mkdir(parents=True)
    defaults.write_text("[training]\nsteps = 7\n")
    planned("import argparse")
    (tmp_path / "train.py").write_text("import argparse")
    assert "--job" not in repr(plan(SubmitRequest("train.py", cluster="local"))[0].job.spec)
    with pytest.raises(ConfigError):
        planned("import argparse", "training.seed=3")
    assert plan(SubmitRequest(None, cluster="local"))[0].job.spec.training.steps == 7  # type: ignore[union-attr]
