"""`fsdpkit init`: what it asks, what it writes, and what it leaves alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fsdpkit.config.job_loading import load_job
from tests.conftest import Completed
from tests.terminals import Terminal

Fsdpkit = Callable[..., Completed]
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
    done = fsdpkit("init", *words, cwd=here)
    assert done.returncode == 0, done.stderr
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


def test_what_was_mistyped_is_asked_again(here: Path, defaults: Path) -> None:
    terminal = init("--cluster", "osc-pitzer")
    for question, *typed in (
        ("Account", "osc", "PAS2136 --wrap=id", "PAS2136"),
        ("Environment", "no-such-env", "~", "module:", "current"),
        ("Script", "gone.py", ".", "train.py"),
    ):
        for word in typed:
            terminal.wait_for(question)
            terminal.wait_for(": ")
            terminal.type(f"{word}\n")
    assert terminal.end() == 0, terminal.shown
    assert "PAS2136" in defaults.read_text()
    assert (here / "train.toml").exists()


def test_who_turns_back_leaves_nothing(here: Path, defaults: Path) -> None:
    terminal = init(*PITZER, "--environment", "current")
    terminal.wait_for("Script")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert not (here / "train.toml").exists()
    assert not defaults.exists()


@pytest.mark.parametrize("missing", ["--cluster", "--account", "--environment", "--script"])
def test_without_a_terminal_what_is_missing_is_named(
    fsdpkit: Fsdpkit, here: Path, defaults: Path, missing: str
) -> None:
    words = [*PITZER, "--environment", "current", "--script", "train.py"]
    at = words.index(missing)
    done = fsdpkit("init", *words[:at], *words[at + 2 :], cwd=here)
    assert done.returncode == 2
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
    assert "job 'train'" in again.stderr
    (here / "link.toml").symlink_to("nowhere.toml")
    linked = fsdpkit("init", *words, "-o", "link.toml", cwd=here)
    assert linked.returncode == 2
    assert "symbolic link" in linked.stderr
    assert not (here / "nowhere.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--account", "PAS2136\n#SBATCH --uid=0"), "account"),
        (("--account", "--uid=0"), "account"),
        (("--account", "PAS1 PAS2136"), "account"),
        (("--account", "mine"), "P[A-Z]{2,4}"),
        (("--account", ""), "--no-account"),
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
    fsdpkit: Fsdpkit,
    here: Path,
    isolated_user: Path,
    venv: Path,
    words: tuple[str, str],
    said: str,
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


def test_a_job_that_the_centre_does_not_allow_is_not_left_behind(
    fsdpkit: Fsdpkit, here: Path, isolated_user: Path
) -> None:
    centre = isolated_user / "centre"
    centre.mkdir()
    (centre / "trust.toml").write_text(
        'schema = "fsdpkit.trust/1"\nmessage = "ask Robin"\njob = []\n'
    )
    before = files_below(here, isolated_user)
    words = (*PITZER, "--environment", "current", "--script", "train.py")
    done = fsdpkit("init", *words, cwd=here, env={"FSDPKIT_SITE_PATH": str(centre)})
    assert done.returncode == 65
    assert "ask Robin" in done.stderr
    assert files_below(here, isolated_user) == before


@pytest.mark.parametrize(
    ("config", "content", "status", "said"),
    [
        ("defaults.toml", "[resources\n", 65, "defaults.toml"),
        ("defaults.toml", "[resources]\nspeed = 7\n", 65, "resources.speed"),
        ("", "a file", 74, "config"),
    ],
)
def test_defaults_that_cannot_be_read_or_made_are_named(
    fsdpkit: Fsdpkit,
    here: Path,
    isolated_user: Path,
    config: str,
    content: str,
    status: int,
    said: str,
) -> None:
    path = isolated_user / "config" / config
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    before = files_below(here, isolated_user)
    done = fsdpkit("init", *PITZER, "--environment", "current", "--script", "train.py", cwd=here)
    assert (done.returncode, files_below(here, isolated_user)) == (status, before), done.stderr
    assert said in done.stderr


def test_who_has_no_home_gets_the_account_into_the_job(fsdpkit: Fsdpkit, here: Path) -> None:
    """And from a laptop the next command names the file as the login node does."""
    env = {"FSDPKIT_CONFIG_DIR": "/nonexistent/.config", "FSDPKIT_VIA": "pitzer"}
    words = (*PITZER, "--environment", "current", "--script", "train.py")
    done = fsdpkit("init", *words, cwd=here, env=env)
    assert done.returncode == 0, done.stderr
    assert 'account = "PAS2136"' in (here / "train.toml").read_text()
    assert str(here).rpartition("/")[0] in done.stdout.partition("--host pitzer submit")[2]


def test_an_account_that_the_centre_s_defaults_have_is_not_written_again(
    fsdpkit: Fsdpkit, here: Path, isolated_user: Path, defaults: Path
) -> None:
    centre = isolated_user / "centre"
    centre.mkdir()
    (centre / "defaults.toml").write_text('[resources]\naccount = "PAS2136"\n')
    words = (*PITZER, "--environment", "current", "--script", "train.py")
    done = fsdpkit("init", *words, cwd=here, env={"FSDPKIT_SITE_PATH": str(centre)})
    assert done.returncode == 0, done.stderr
    assert not defaults.exists()
    assert f"{centre}/defaults.toml" in (here / "train.toml").read_text()


def test_a_directory_that_no_script_can_name_gets_no_job(
    fsdpkit: Fsdpkit, tmp_path: Path, defaults: Path
) -> None:
    directory = tmp_path / "two\nlines"
    directory.mkdir()
    (directory / "train.py").write_text(MAIN)
    done = fsdpkit(
        "init", *PITZER, "--environment", "current", "--script", "train.py", cwd=directory
    )
    assert done.returncode in (2, 65), done.stdout
    assert [path.name for path in directory.iterdir()] == ["train.py"]
    assert not defaults.exists()


def test_without_an_account_the_one_that_is_charged_all_the_same_is_named(
    fsdpkit: Fsdpkit, here: Path, defaults: Path
) -> None:
    words = ("--cluster", "generic", "--no-account", "--environment", "current")
    env = {"SBATCH_ACCOUNT": "pas0007"}
    done = fsdpkit("init", *words, "--script", "train.py", cwd=here, env=env)
    assert done.returncode == 0, done.stderr
    assert "pas0007" in done.stderr
    assert not defaults.exists()
