"""What `fsdpkit init` proposes and understands, and that it writes new files only."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.config.job import Environment
from fsdpkit.config.new_job import Answers
from fsdpkit.config.site import load_site
from fsdpkit.errors import UsageError
from fsdpkit.scheduling.first_job import (
    OWN,
    account_in_defaults,
    propose_environment,
    propose_scripts,
    write,
)

GUARD = "if __name__ == '__main__':\n    pass\n"


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conda environment `torch`, where conda keeps those of this person."""
    made = tmp_path / "envs" / "torch"
    (made / "conda-meta").mkdir(parents=True)
    monkeypatch.setenv("CONDA_ENVS_PATH", str(made.parent))
    return made


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    made = tmp_path / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "activate").touch()
    return made


def test_the_active_environment_is_proposed(conda: Path, venv: Path, tmp_path: Path) -> None:
    system = Path("/usr")
    active = {"CONDA_PREFIX": str(conda), "CONDA_DEFAULT_ENV": "torch"}
    base = {**active, "CONDA_DEFAULT_ENV": "base"}
    modules = {"LOADEDMODULES": "gcc/13:pytorch/2.13:cuda/12"}
    assert propose_environment({**active, "VIRTUAL_ENV": str(venv)}, system, system) == str(venv)
    assert propose_environment(active, venv, system) == str(conda)
    assert propose_environment(base, venv, system) == str(venv)
    assert propose_environment(base, system, system) == str(conda)
    assert propose_environment(modules, system, system) == "module:pytorch/2.13"
    gone = {"VIRTUAL_ENV": str(tmp_path / "gone")}
    assert propose_environment(gone, system, system) == OWN


def test_scripts_are_what_does_something_when_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GUARD)
    (tmp_path / "turned.py").write_text('if "__main__" == __name__: pass\n')
    (tmp_path / "layers.py").write_text("NAME = '__main__'\n")
    (tmp_path / "broken.py").write_text(f"def (\n{GUARD}")
    (tmp_path / "deep.py").mkdir()
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    assert [path.name for path in propose_scripts(tmp_path)] == ["train.py", "turned.py"]
    for name in ("train.py", "turned.py", "broken.py"):
        (tmp_path / name).unlink()
    assert [path.name for path in propose_scripts(tmp_path)] == ["layers.py"]  # it is alone
    (tmp_path / "more.py").write_text("")
    assert propose_scripts(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the defaults that were written before are taken back."""
    monkeypatch.chdir(tmp_path)
    script, job = tmp_path / "train.py", tmp_path / "train.toml"
    script.write_text(GUARD)
    job.write_text("somebody's")
    answers = Answers(script, Environment(), "pas0007")
    with pytest.raises(UsageError):
        write(answers, load_site("generic"), job, cluster="generic")
    assert job.read_text() == "somebody's"
    assert account_in_defaults() is None
    job.unlink()
    write(answers, load_site("generic"), job, cluster="generic")
    found = account_in_defaults()
    assert found is not None
    assert found[0] == "pas0007"
