"""The wheel as a person gets it from `pip install`: it does what the checkout does, anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fsdpkit import __version__
from tests.packaging.installation import ROOT, Installation
from tests.programs import Fsdpkit
from tests.reporting.made_run import T0, made_run, starts
from tests.reporting.test_evidence import fails

ASSETS = ("templates", "jobs", "site", "skills", "examples", "docs/failures")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    directory = tmp_path / "empty"
    directory.mkdir()
    return directory


# What is in it.


def test_every_module_and_asset_of_the_checkout_is_in_the_wheel(wheel_names: list[str]) -> None:
    ours = (p.relative_to(ROOT) for p in ROOT.glob("fsdpkit/**/*") if p.is_file())
    wanted = {name.as_posix() for name in ours if "__pycache__" not in name.parts}
    for top in ASSETS:
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT)
            left_out = {"golden", "__pycache__"} & set(name.parts) or path.name == "demo-loss.svg"
            if path.is_file() and not left_out:
                wanted.add(f"fsdpkit/_shared/{name.as_posix()}")
    assert wanted - set(wheel_names) == set()


def test_nothing_else_is_in_the_wheel(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert tops == {"fsdpkit", f"fsdpkit-{__version__}.dist-info"}
    shared = {name.split("/")[2] for name in wheel_names if name.startswith("fsdpkit/_shared/")}
    assert shared == {top.partition("/")[0] for top in ASSETS}
    docs = {name for name in wheel_names if name.startswith("fsdpkit/_shared/docs/")}
    assert {name.split("/")[3] for name in docs} == {"failures"}
    parts = {part for name in wheel_names for part in name.split("/")}
    assert not parts & {"tests", "benchmarks", "golden", "__pycache__"}
    kinds = {Path(n).suffix for n in wheel_names if ".dist-info/" not in n and Path(n).suffix}
    assert kinds <= {
        ".py",
        ".toml",
        ".j2",
        ".css",
        ".js",
        ".mjs",
        ".md",
        ".json",
        ".typed",
        ".svg",
        ".txt",
        ".erb",
        ".rb",
        ".sh",
    }


def test_the_wheel_is_typed_and_says_what_it_is(wheel: Path, wheel_names: list[str]) -> None:
    assert "fsdpkit/py.typed" in wheel_names
    about = f"fsdpkit-{__version__}.dist-info"
    assert f"{about}/licenses/LICENSE" in wheel_names
    with zipfile.ZipFile(wheel) as archive:
        commit = archive.read("fsdpkit/commit.txt").decode()
        metadata = Parser().parsestr(archive.read(f"{about}/METADATA").decode())
        entry_points = archive.read(f"{about}/entry_points.txt").decode()
    assert metadata["Name"] == "fsdpkit"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Summary"]
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "dev",
        "docs",
        "gpu",
        "parquet",
        "plot",
        "rouge",
        "stacks",
        "sweeps",
        "tensorboard",
        "mlflow",
        "wandb",
        "tokenizers",
        "torch",
        "unit",
    }
    required = metadata.get_all("Requires-Dist", [])
    torch = [r for r in required if r.startswith("torch<2.16,>=2.13")]
    assert any(r.endswith("extra == 'torch'") for r in torch)
    assert all("extra ==" in r for r in torch), "who only submits needs none"
    assert "fsdpkit = fsdpkit.cli.main:main" in entry_points
    assert "[submitit]" in entry_points
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?\n", commit)


# What it does.


def test_it_says_of_which_commit_it_is(installation: Installation, empty: Path) -> None:
    asked = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    told = installation.fsdpkit("--version", cwd=empty).stdout
    assert told.startswith(f"fsdpkit, version {__version__} (commit {head[:12]}")


def test_the_dry_run_is_the_checkout_s_but_for_where_the_trainer_lies(
    installation: Installation, fsdpkit: Fsdpkit, empty: Path
) -> None:
    # The script activates the environment that submits; here it must be the same for both.
    words = ["submit", "--nodes", "2", "--gpus", "4", "--dry-run",
             "--set", f"environment.venv={sys.prefix}"]  # fmt: skip
    ours = installation.fsdpkit(*words, cwd=empty)
    theirs = fsdpkit(*words, cwd=empty)
    assert ours.returncode == 0, ours.stderr
    assert f"{installation.package}/_shared/examples/" in ours.stdout
    assert str(ROOT / "fsdpkit") not in ours.stdout
    moved = ours.stdout.replace(f"{installation.package}/_shared", str(ROOT))
    digest = re.compile(r"(FSDPKIT_JOB_SHA256=)[0-9a-f]{64}\n")  # of a job with the trainer's path
    assert digest.sub(r"\1", moved) == digest.sub(r"\1", theirs.stdout)


def test_a_diagnosis_brings_its_page_with_it(
    installation: Installation, tmp_path: Path, empty: Path
) -> None:
    run = made_run(tmp_path / "t5-1", state="FAILED", exit_code=74)
    task = run.paths.task()
    starts(task, 0, T0)
    fails(task, 0, T0 + 10, 0, "OSError: [Errno 28] No space left on device", rank=0)
    told = installation.fsdpkit("diagnose", str(run.dir), "--page", cwd=empty)
    assert told.returncode == 0, told.stderr
    assert "`fsdpkit diagnose` calls it `disk-full`" in told.stdout


@pytest.mark.parametrize("kind", ["sites", "jobs", "templates"])
def test_what_travels_with_the_package_is_listed(
    installation: Installation, fsdpkit: Fsdpkit, empty: Path, kind: str
) -> None:
    listed = installation.fsdpkit(kind, cwd=empty)
    assert listed.returncode == 0, listed.stderr
    assert "packaged" in listed.stdout
    assert listed.stdout == fsdpkit(kind, cwd=empty).stdout


@pytest.mark.torch
def test_the_default_job_trains_from_the_wheel_in_an_empty_directory(
    installation: Installation, empty: Path
) -> None:
    done = installation.fsdpkit(
        "submit", "--cluster", "local", "--nodes", "2", "--gpus", "1",
        "--set", "training.steps=2", "--wait",
        cwd=empty,
    )  # fmt: skip
    (run,) = (empty / "runs").iterdir()
    logs = [*run.glob("*.log"), *run.glob("submitit/*_log.*"), *run.glob("attempt-*/*.err")]
    said = "".join(f"{path.name}:\n{path.read_text()}" for path in logs)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{said}"
    assert (run / "metrics.jsonl").read_text().strip()
    script = (run / "job.sbatch").read_text()
    assert str(installation.prefix) in script
    assert f"{ROOT}/" not in script
