"""What is wrong with a script is told before it queues, and nothing that nobody can know."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.scheduling.submission import SubmitRequest, plan, script_of

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


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module",
        "import os, no_such_module.part as x",
        "from no_such_module.part import x",
        "import json\nif True:\n    import other_such\nimport no_such_module\n",
        "class A:\n    @staticmethod\n    def f(): ...\nimport no_such_module",
        "from functools import partial\nA = partial(dict, a=1)\nimport no_such_module",
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
        "import sys\ndef f():\n    sys.path.append('/opt')\nf()\nimport no_such_module",
        "def f(): ...\nf()\nimport no_such_module",
        "def print(): exit()\nprint()\nimport no_such_module",
        "def f(): ...\nf().go()\nimport no_such_module",
        "def f(a):\n    def g(b): exit()\n    return g\n@f(1)\ndef h(): ...\nimport no_such_module",
        "import sys\nsys.path += ['/opt']\nimport no_such_module",
        "import os.path as path_of\nfrom sys import *\nimport no_such_module",
        "(lambda: None)()\nimport no_such_module",
        "import lab_paths\nimport no_such_module",
        "import json as sys\nprint(sys.path)\nimport no_such_module",
        "with open('x'):\n    import no_such_module",
        "if not input:\n    raise SystemExit\nimport no_such_module",
        "try:\n    import lab_half\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import no_such_module",
        "__package__ = 'json'\nfrom . import tool",
        "import json.tool, lab_shadow",
        "from lab_pkg import anything\nimport lab_pkg.hidden",
        "import os.path, torch, yaml_like_beside, package_beside.inner",
        "",
        "'''" + "x" * (5 << 20) + "'''\nimport no_such_module",
    ],
)
def test_what_may_well_run_is_let_through(planned: Submitted, tmp_path: Path, source: str) -> None:
    (tmp_path / "yaml_like_beside.py").touch()
    (tmp_path / "lab_paths.py").write_text("import sys\nsys.path.insert(0, '/opt')")
    (tmp_path / "lab_shadow.py").write_text("import abc\nimport no_such_module")
    (tmp_path / "abc.py").write_text("import no_such_module")
    (tmp_path / "lab_half.py").write_text("import no_such_module")
    (tmp_path / "lab_pkg").mkdir()
    (tmp_path / "lab_pkg" / "__init__.py").write_text("__path__.append('/opt')")
    (tmp_path / "package_beside").mkdir()
    planned(source)


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with one package of its own and nothing of ours."""
    where = tmp_path_factory.mktemp("environment") / "its env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    (packages,) = where.glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text("raise SystemExit('it is never imported')")
    return where


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


# ---- The script's own modules


def write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"own.py": "\nimport gone"}, r"own\.py imports .* gone \(line 2\)"),
        ({"own.py": "from deeper import x", "deeper.py": "import gone"}, r"deeper\.py imports"),
        ({"own/__init__.py": "from .part import x", "own/part.py": "import gone"}, r"part\.py imp"),
        ({"own/__init__.py": "", "own/part.py": "import gone.x"}, r"part\.py imports .* gone "),
        ({"own/part.py": "from .. import x\nfrom own import gone\nimport gone"}, r""),
        ({"own/__init__.py": "import own.gone"}, r"own\.gone \(line 1\)"),
        ({"own/__init__.py": "def f(:"}, r"own/__init__\.py:1: .*cannot compile"),
        (
            {"own.py": "import logging, os\nx = os.path.join(os.environ['A'], 'x')\nimport gone"},
            r"own\.py imports .* gone \(line 3\)",
        ),
        ({"own.py": "if __name__ == '__main__':\n    import gone, sys; sys.exit()"}, r""),
        ({"own.py": "if __name__ == '__main__':\n    x()\nimport gone"}, r"gone \(line 3\)"),
        ({"own/__init__.py": "part = 1", "own/part.py": "import gone"}, r""),
        ({"own.py": "logging = open('x')\nlogging.info('')\nimport gone"}, r""),
    ],
)
def test_the_scripts_own_modules_are_followed(
    planned: Submitted, tmp_path: Path, files: Mapping[str, str], told: str
) -> None:
    write(tmp_path, files)
    source = "from own import part\nimport torch"
    if not told:
        planned(source)
        return
    with pytest.raises(ConfigError, match=told):
        planned(source)


# ---- Modules and commands


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("lab", r"lab is a package without __main__\.py"),
        ("email", r"email is a package without __main__\.py"),
        ("json.nothing", "no module json.nothing"),
        ("lab.trian", "no module lab.trian"),
        ("nowhere.train", "no module nowhere "),
        ("lab.needs", r"needs\.py imports .* gone \(line 1\)"),
        ("lab.train", ""),
        ("lab.loose.train", ""),
        ("lab.with_main", ""),
        pytest.param("torch.utils.collect_env", "", marks=pytest.mark.torch),
    ],
)
def test_a_module_is_looked_for_as_python_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv: Path, module: str, told: str
) -> None:
    files = dict.fromkeys(
        ("__init__.py", "train.py", "loose/train.py", "with_main/__main__.py"), ""
    )
    write(tmp_path / "lab", {**files, "needs.py": "import gone"})
    monkeypatch.chdir(tmp_path)
    request = SubmitRequest(f"-m {module}", cluster="local")
    in_container = replace(request, sets=["environment.container=x.sif"], cluster="osc-ascend")
    in_container = replace(in_container, account="PAS2136")
    if not told:
        plan(request)
        plan(in_container)
        return
    with pytest.raises(ConfigError, match=told):
        plan(request)
    with pytest.raises(ConfigError, match=told):
        plan(replace(request, sets=[f"environment.venv={venv}"]))
    if module == "lab":  # all of it is here, whatever the container has
        with pytest.raises(ConfigError, match=told):
            plan(in_container)


@pytest.mark.parametrize("key", ["venv", "conda"])
def test_an_environment_that_is_not_there_is_refused_before_queueing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv: Path, key: str
) -> None:
    write(tmp_path, {"train.py": "", "empty/README": ""})
    monkeypatch.chdir(tmp_path)
    request = SubmitRequest("train.py", cluster="local")
    for gone in ("./gone", tmp_path / "empty"):
        lacks = [f"environment.{key}={gone}"]
        with pytest.raises(ConfigError, match=f"environment.{key}: "):
            plan(replace(request, sets=lacks))
        plan(replace(request, sets=[*lacks, "launch.check=false"]))
    plan(replace(request, sets=[f"environment.{key}={venv}"]))


def test_a_conda_environment_that_this_conda_has_not_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"train.py": "", "conda/envs/torch/conda-meta/history": ""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    request = SubmitRequest("train.py", cluster="local", sets=["environment.conda=gone"])
    plan(request)  # no conda is known here
    monkeypatch.setenv("CONDA_EXE", str(tmp_path / "conda/bin/conda"))
    plan(replace(request, sets=["environment.conda=torch"]))
    plan(replace(request, sets=[*request.sets, 'environment.modules=["anaconda"]']))
    with pytest.raises(ConfigError, match="'gone'"):
        plan(request)
    write(tmp_path, {".condarc": "envs_dirs:\n  - /elsewhere"})
    plan(request)


# ---- Time


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("print(3)", False),
        ("import fsdpkit", True),
        ("from fsdpkit.script.huggingface import attach", True),
        ("def f():\n    import beside", True),
        ("import importlib\nimportlib.import_module('fsdpkit')", True),
    ],
)
def test_a_few_minutes_are_enough_for_a_script_that_does_not_look_at_the_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, is_refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"train.py": source, "beside.py": "import fsdpkit"})
    request = SubmitRequest("train.py", cluster="local", time="3")
    if is_refused:
        with pytest.raises(UsageError, match="--time 3 leaves no time"):
            plan(request)
        return
    short = plan(request)[0]
    assert "#SBATCH --signal=B:USR1@45\n" in script_of(short)
    assert any("45 s early" in warning for warning in short.placement.warnings)
    assert "#SBATCH --signal=B:USR1@120\n" in script_of(plan(replace(request, time="6"))[0])
