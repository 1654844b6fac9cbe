"""`fsdpkit init`: what it asks, what it writes, and what it leaves alone."""

from __future__ import annotations

import re
import shlex
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


def test_flags_come_before_what_a_batch_script_says(
    fsdpkit: Fsdpkit, here: Path, venv: Path
) -> None:
    (here / "other.py").write_text(MAIN)
    words = ("--nodes", "3", "--gpus", "2", "--time", "30", "--account", "PAS0001")
    more = ("--environment", str(venv), "--script", "other.py", "-o", "new.toml")
    done = moved(fsdpkit, here, *words, *more)
    assert done.returncode == 0, done.stderr
    job = load_job(str(here / "new.toml"))
    asked = job.spec.resources
    assert (asked.nodes, asked.gpus, asked.time, asked.account) == (3, 2, "30", "PAS0001")
    assert (job.entry.path.name, job.spec.environment.venv) == ("other.py", str(venv))
    assert job.spec.environment.modules == ["cuda/12.1"]


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (("train.py --lr", "gone.py --lr"), (), "--script"),
        (("1e-4", "$(cat lr)\n torchrun b.py"), (), "line 11: torchrun b.py"),
        (("#!/bin/bash", "#!/bin/bash\r"), (), "carriage return"),
        (("", ""), ("-o", "train.py"), ".toml"),
        (("", ""), ("--account", "a b"), "account"),
    ],
)
def test_a_batch_script_that_is_not_taken_leaves_nothing(
    fsdpkit: Fsdpkit, here: Path, change: tuple[str, str], words: tuple[str, ...], said: str
) -> None:
    done = moved(fsdpkit, here, *words, text=OLD.replace(*change))
    assert done.returncode in (2, 65, 66), done.stdout
    assert said in done.stderr
    assert not [*here.glob("*.toml")]


def test_the_tasks_of_an_array_are_named_where_it_is_submitted(
    fsdpkit: Fsdpkit, here: Path
) -> None:
    text = OLD.replace("#SBATCH --job", "#SBATCH --array=0-3\n#SBATCH --job")
    done = moved(fsdpkit, here, text=text.replace("1e-4", "x-$SLURM_ARRAY_TASK_ID"))
    assert done.returncode == 0, done.stderr
    assert load_job(str(here / "old-one.toml")).spec.args[:2] == ["--lr", "x-{array_task}"]
    assert "--array 0-3 --dry-run\n" in done.stdout


def test_a_job_file_that_is_there_is_not_written_over(fsdpkit: Fsdpkit, here: Path) -> None:
    (here / "old-one.toml").write_text("mine")
    done = moved(fsdpkit, here)
    assert done.returncode == 2
    assert (here / "old-one.toml").read_text() == "mine"


def test_what_a_terminal_would_obey_is_neither_printed_nor_written(
    fsdpkit: Fsdpkit, here: Path
) -> None:
    done = moved(fsdpkit, here, text=OLD.replace("ulimit", "\x1b]0;x\x07\u202eulimit"))
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, (here / "old-one.toml").read_text()):
        assert not {"\x1b", "\x07", "\u202e"} & {*text}


def test_who_submits_a_script_of_another_scheduler_hears_which_program_it_starts(
    fsdpkit: Fsdpkit, here: Path
) -> None:
    (here / "train.pbs").write_text(
        "#!/bin/bash\n#PBS -l nodes=2\nmpirun -np 2 python train.py -x\n"
    )
    done = fsdpkit("submit", "train.pbs", "--cluster", "local", cwd=here)
    assert done.returncode == 2
    assert "of PBS" in done.stderr
    assert "Line 3 starts train.py -x" in done.stderr
    assert "fsdpkit submit train.py --nodes N" in done.stderr


@pytest.mark.parametrize("name", ["old.sbatch", "train.sh", "./train"])
def test_who_submits_a_shell_script_gets_the_command_that_does_the_same(
    fsdpkit: Fsdpkit, here: Path, name: str
) -> None:
    (here / name).write_text(OLD if name == "old.sbatch" else OLD.replace("#SBATCH", "# "))
    done = fsdpkit("submit", name, "--cluster", "local", "--", "--extra", cwd=here)
    assert done.returncode == 2
    assert "an sbatch script" in done.stderr or "a shell script" in done.stderr
    (command,) = re.findall(r"^  fsdpkit (submit .*)$", done.stderr, re.MULTILINE)
    words = shlex.split(command)
    assert words[words.index("--") :] == ["--", "--lr", "1e-4", "a b", "--extra"]
    assert f"fsdpkit init --from {name}" in done.stderr
    words = [word for word in words if word not in ("--account", "PAS2136")]
    again = fsdpkit(words[0], "--dry-run", "--cluster", "generic", *words[1:], cwd=here)
    assert "#SBATCH --gpus-per-node=4\n" in again.stdout, again.stderr
