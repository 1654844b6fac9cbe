"""`fsdpkit init`: what it asks, what it writes, and what it leaves alone."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fsdpkit.config.job_loading import load_job
from tests.conftest import Completed
from tests.programs import Fsdpkit
from tests.terminals import Terminal

MAIN = "def main() -> None:\n    print('trained')\n\n\nif __name__ == '__main__':\n    main()\n"
PITZER = ("--cluster", "osc-pitzer", "--account", "PAS2136")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one script and a module that it uses."""
    directory = tmp_path / "my 'work' #1"
    directory.mkdir()
    (directory / "train.py").write_text(MAIN)
    (directory / "layers.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def defaults(isolated_user: Path) -> Path:
    return isolated_user / "config" / "defaults.toml"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """What looks like an environment, by a name to trip over; its Python is this one."""
    made = tmp_path / 'an "env" of $HOME'
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "activate").touch()
    (made / "bin" / "python").symlink_to(sys.executable)
    return made


def files_below(*directories: Path) -> Mapping[Path, bytes]:
    found = (path for top in directories for path in top.rglob("*"))
    return {path: path.read_bytes() for path in found if path.is_file()}


def init(*words: str) -> Terminal:
    return Terminal([sys.executable, "-m", "fsdpkit", "init", *words])


def test_a_job_and_defaults_are_written_that_submit_takes(
    fsdpkit: Fsdpkit, here: Path, defaults: Path, venv: Path
) -> None:
    words = (*PITZER, "--environment", str(venv), "--script", "train.py", "--nodes", "2")
    done = fsdpkit("init", *words, cwd=here, status=0)
    (proposed,) = (line for line in done.stdout.splitlines() if line.endswith("--dry-run"))
    shown = fsdpkit(*proposed.split()[1:], cwd=here)
    assert "#SBATCH --account=PAS2136" in shown.stdout, shown.stderr
    assert "#SBATCH --nodes=2" in shown.stdout
    job = load_job(str(here / "train.toml"))
    assert job.spec.environment.venv == str(venv)
    assert job.entry.path == here / "train.py"
    assert job.origin("resources.account") == "user defaults.toml"
    assert "PAS2136" not in (here / "train.toml").read_text()


def test_a_person_who_presses_enter_gets_what_was_found(
    here: Path, defaults: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", str(here))  # no sbatch
    terminal = init()
    for proposed in ("[local]: ", f"[{venv}]: ", "[train.py]: "):
        terminal.wait_for(proposed)
        terminal.type("\n")
    assert terminal.end() == 0, terminal.shown
    assert load_job("train.toml").spec.environment.venv == str(venv)
    assert not defaults.exists()


@pytest.mark.parametrize("missing", ["--cluster", "--account", "--environment", "--script"])
def test_without_a_terminal_what_is_missing_is_named(
    fsdpkit: Fsdpkit, here: Path, defaults: Path, missing: str
) -> None:
    words = [*PITZER, "--environment", "current", "--script", "train.py"]
    at = words.index(missing)
    done = fsdpkit("init", *words[:at], *words[at + 2 :], cwd=here, status=2)
    assert f"also give {missing}" in done.stderr
    assert not (here / "train.toml").exists()
    assert not defaults.exists()


def test_what_is_there_stays(fsdpkit: Fsdpkit, here: Path, defaults: Path) -> None:
    """A job file, also one that is a link to nowhere; and defaults, with another account."""
    words = (*PITZER, "--environment", "current", "--script", "train.py")
    defaults.parent.mkdir()
    defaults.write_text('[resources]\naccount = "PAS0001"\n')
    before = files_below(here, defaults.parent)
    assert fsdpkit("init", *words, cwd=here).returncode == 0
    assert load_job("train.toml").spec.resources.account == "PAS2136"
    after = files_below(here, defaults.parent)
    assert {**after, **before} == after
    again = fsdpkit("init", *words, cwd=here)
    assert (again.returncode, files_below(here, defaults.parent)) == (2, after)
    assert "not overwritten" in again.stderr
    (here / "link.toml").symlink_to("nowhere.toml")
    linked = fsdpkit("init", *words, "-o", "link.toml", cwd=here, status=2)
    assert "not overwritten" in linked.stderr
    assert not (here / "nowhere.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--account", "PAS2136\n#SBATCH --uid=0"), "account"),
        (("--account", "--uid=0"), "account"),
        (("--account", "PAS1 PAS2136"), "account"),
        (("--account", "mine"), "P[A-Z]{2,4}"),
        (("--account", ""), "--account is empty"),
        (("--environment", "/etc"), "/etc"),
        (("--environment", "module:a b"), "module:"),
        (("--environment", "e\x1b[2J"), "environment"),
        (("--script", "gone.py"), "gone.py"),
        (("--script", "notes.txt"), "notes.txt"),
        (("--script", "broken.py"), "broken.py:1"),
        (("--script", "needs.py"), "no_such_module"),
        (("--cluster", "osc-pitser"), "osc-pitzer"),
        (("--gpus", "5"), "5 GPUs"),
        (("--time", "soon"), "time"),
        (("--output", "train.py"), ".toml"),
        (("--output", "none/train.toml"), "none"),
        (("--output", "/proc/train.toml"), "/proc/train.toml"),
    ],
)
def test_what_submit_would_refuse_is_not_written(
    fsdpkit: Fsdpkit, here: Path, isolated_user: Path, venv: Path, words: tuple[str, str], said: str
) -> None:
    (here / "notes.txt").write_text("to do")
    (here / "broken.py").write_text("def (\n")
    (here / "needs.py").write_text("import no_such_module\n")
    before = files_below(here, isolated_user)
    usual = (*PITZER, "--environment", str(venv), "--script", "train.py")
    done = fsdpkit("init", *usual, *words, cwd=here)
    assert done.returncode in (2, 65, 66, 74), done.stdout
    assert said in done.stderr
    assert "\x1b" not in done.stderr
    assert files_below(here, isolated_user) == before


OLD = """\
#!/bin/bash
#SBATCH --job-name=old-one
#SBATCH --nodes=2 --gpus-per-node=4 --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=02:00:00 --account=PAS2136 --mem=64G
module load cuda/12.1
export NCCL_DEBUG=INFO
touch this-was-run; $(touch this-was-run)
ulimit -n 4096
srun torchrun --nnodes 2 --nproc_per_node 4 --rdzv_endpoint $(hostname):1 train.py --lr 1e-4 'a b'
"""


def moved(fsdpkit: Fsdpkit, here: Path, *words: str, text: str = OLD) -> Completed:
    (here / "old one.sbatch").write_text(text)
    return fsdpkit("init", "--from", "old one.sbatch", "--cluster", "generic", *words, cwd=here)


def test_an_sbatch_script_becomes_a_job_that_asks_for_the_same(
    fsdpkit: Fsdpkit, here: Path, defaults: Path
) -> None:
    done = moved(fsdpkit, here)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["line", "7", "export", "NCCL_DEBUG=INFO", "environment.variables.NCCL_DEBUG"] in rows
    homeless = done.stdout.partition("no home in a job")[2]
    assert "ulimit -n 4096" in homeless
    assert "touch this-was-run" in homeless
    shown = fsdpkit("submit", "old-one.toml", "--cluster", "generic", "--dry-run", cwd=here)
    for line in (
        *("job-name=old-one", "nodes=2", "gpus-per-node=4", "cpus-per-task=32", "mem=65536M"),
        *("time=02:00:00", "account=PAS2136"),
    ):
        assert f"#SBATCH --{line}\n" in shown.stdout, shown.stderr
    assert "(--lr 1e-4 'a b')" in shown.stdout
    assert "modules=(cuda/12.1)" in shown.stdout
    assert "ulimit -n 4096" in (here / "old-one.toml").read_text()
    assert not (here / "this-was-run").exists()
    assert not defaults.exists()


def test_what_a_terminal_would_obey_is_neither_printed_nor_written(
    fsdpkit: Fsdpkit, here: Path
) -> None:
    done = moved(fsdpkit, here, text=OLD.replace("ulimit", "\x1b]0;x\x07\u202eulimit"))
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, (here / "old-one.toml").read_text()):
        assert not {"\x1b", "\x07", "\u202e"} & {*text}


@pytest.mark.parametrize("name", ["old.sbatch", "train.sh", "./train"])
def test_who_submits_a_shell_script_gets_the_command_that_does_the_same(
    fsdpkit: Fsdpkit, here: Path, name: str
) -> None:
    (here / name).write_text(OLD if name == "old.sbatch" else OLD.replace("#SBATCH", "# "))
    done = fsdpkit("submit", name, "--cluster", "local", "--", "--extra", cwd=here, status=2)
    assert "an sbatch script" in done.stderr or "a shell script" in done.stderr
    (command,) = re.findall(r"^  fsdpkit (submit .*)$", done.stderr, re.MULTILINE)
    words = shlex.split(command)
    assert words[words.index("--") :] == ["--", "--lr", "1e-4", "a b", "--extra"]
    assert f"fsdpkit init --from {name}" in done.stderr
    words = [word for word in words if word not in ("--account", "PAS2136")]
    again = fsdpkit(words[0], "--dry-run", "--cluster", "generic", *words[1:], cwd=here)
    assert "#SBATCH --gpus-per-node=4\n" in again.stdout, again.stderr
