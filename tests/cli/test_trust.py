"""Somebody else's job, profile or template is submitted after a question, or not at all."""

from __future__ import annotations

import hashlib
import os
import pty
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpkit.config import assets
from fsdpkit.config.job_loading import load_job, reload_job
from fsdpkit.config.site import load_site
from fsdpkit.config.template import load_template
from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import Consent, items_of, strangers, vouch
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.subjects import of_model
from tests.conftest import Command, Completed
from tests.programs import Fsdpkit

JOB = """schema = "fsdpkit.job/1"
name = "mine"
entry = "train.py"
[resources]
nodes = 1
gpus = 1
time = "01:00:00"
"""
SITE = 'schema = "fsdpkit.site/1"\ntitle = "Theirs"\n'


@dataclass
class Shared:
    """A directory that everybody can write to, on a machine whose sbatch says yes to all."""

    dir: Path
    asked: Path
    run: Fsdpkit

    def submit(self, *words: str, env: dict[str, str] | None = None) -> Completed:
        return self.run("submit", "--cluster", "generic", *words, env=env)

    def template(self, line: str = "") -> str:
        """A changed copy of the packaged template."""
        copy = self.dir / "torchrun"
        if not copy.exists():
            shutil.copytree(assets.packaged_dir() / "templates" / "torchrun", copy)
        script = copy / "job.sbatch.j2"
        script.write_text(script.read_text().replace("mkdir -p", f"{line}mkdir -p", 1))
        return f"template={copy}"

    def job(self, name: str = "job.toml", text: str = "") -> str:
        (self.dir / "train.py").touch()
        (self.dir / name).write_text(JOB + text)
        return str(self.dir / name)

    @property
    def submissions(self) -> int:
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0


@pytest.fixture
def shared(tmp_path: Path, fsdpkit: Fsdpkit, command: Command) -> Shared:
    asked = tmp_path / "asked"
    command("sbatch", f"echo called >>{asked}\necho 4711")
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o777)
    return Shared(directory, asked, fsdpkit)


def memory() -> Path:
    return Path(os.environ["FSDPKIT_CONFIG_DIR"]) / "trusted"


def refused(done: Completed, kind: str) -> str:
    """The checksum that the refusal names in the flag to add."""
    assert done.returncode == 65, done.stderr
    assert f"{kind} " in done.stderr
    assert "is not trusted: others than you can write to it" in done.stderr
    assert done.stdout == ""
    return done.stderr.split("--trust ")[1].split()[0]


def test_a_strangers_template_is_refused_with_the_flag_that_accepts_it(shared: Shared) -> None:
    template = shared.template()
    digest = refused(shared.submit("--set", template), "template torchrun")
    assert digest == load_template(template.partition("=")[2]).sha256
    assert shared.submissions == 0
    assert not memory().exists()
    done = shared.submit("--set", template, "--trust", digest)
    assert done.returncode == 0, done.stderr
    assert shared.submissions == 1


def test_what_was_trusted_is_trusted_again_until_it_changes(shared: Shared) -> None:
    template = shared.template()
    digest = refused(shared.submit("--set", template), "template")
    assert shared.submit("--set", template, "--trust", digest).returncode == 0
    assert shared.submit("--set", template).returncode == 0
    assert stat.S_IMODE(memory().stat().st_mode) == 0o600
    assert digest in memory().read_text()
    assert refused(shared.submit("--set", shared.template("true; ")), "template") != digest
    (shared.dir / "torchrun" / "part.j2").write_text("true\n")
    assert refused(shared.submit("--set", template), "template") != digest


def test_a_strangers_job_and_profile_are_refused_each_with_its_own_flag(shared: Shared) -> None:
    job, site = shared.job(), shared.dir / "site.toml"
    site.write_text(SITE)
    words = [job, "--cluster", str(site)]
    first = refused(shared.submit(*words), "job job")
    assert first == hashlib.sha256(Path(job).read_bytes()).hexdigest()
    second = refused(shared.submit(*words, "--trust", first), "site site")
    assert second == hashlib.sha256(site.read_bytes()).hexdigest()
    assert not memory().exists()
    assert shared.submit(*words, "--trust", first, "--trust", second).returncode == 0
    assert shared.submissions == 1


def test_ones_own_and_what_is_provided_need_no_question(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared.submit().returncode == 0
    shutil.copy(shared.job(), tmp_path / "job.toml")
    (tmp_path / "train.py").touch()
    done = shared.submit(str(tmp_path / "job.toml"))
    assert done.returncode == 0, done.stderr
    jobs = shared.dir / "jobs"  # the centre's
    jobs.mkdir()
    shutil.move(shared.dir / "job.toml", jobs / "theirs.toml")
    (jobs / "train.py").touch()
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(shared.dir))
    refused(shared.submit("theirs"), "job theirs")  # that everybody may write to
    shared.dir.chmod(0o775)
    if os.geteuid() == 0:
        os.chown(shared.dir, 65534, 65534)
    done = shared.submit("theirs")
    assert done.returncode == 0, done.stderr
    assert not memory().exists()
    shared.dir.chmod(0o1777)
    refused(shared.submit("theirs"), "job theirs")


def _writable_file(path: Path) -> Path:
    path.chmod(0o666)
    return path


def _in_writable_directory(path: Path) -> Path:
    path.parent.chmod(0o777)
    return path


def _below_writable_directory(path: Path) -> Path:
    path.parent.parent.chmod(0o777)
    return path


def _behind_a_writable_link(path: Path) -> Path:
    open_dir = path.parent.parent / "open"
    open_dir.mkdir()
    open_dir.chmod(0o777)
    (open_dir / path.name).symlink_to(path)
    return open_dir / path.name


def _up_from_behind_a_link(path: Path) -> Path:
    elsewhere = path.parent.parent / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    elsewhere.chmod(0o777)
    (elsewhere / path.name).write_bytes(path.read_bytes())
    (path.parent / "link").symlink_to(elsewhere / "deep")
    return path.parent / "link" / ".." / path.name


def _by_a_link_of_ones_own(path: Path) -> Path:
    path.parent.chmod(0o777)
    (path.parent.parent / path.name).symlink_to(f"deep/{path.name}")
    return path.parent.parent / path.name


def _by_a_link_to_a_writable_link(path: Path) -> Path:
    link = _behind_a_writable_link(path)
    (path.parent.parent / path.name).symlink_to(link)
    return path.parent.parent / path.name


def _of_another_user(path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)
    return path


def _in_another_users_directory(path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(path.parent, 65534, 65534)
    return path


def _of_a_group(path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to any group")
    os.chown(path, 0, 65534)
    path.chmod(0o664)
    return path


@pytest.mark.parametrize(
    "expose",
    [
        *(_writable_file, _in_writable_directory, _below_writable_directory),
        *(_behind_a_writable_link, _up_from_behind_a_link, _of_another_user),
        *(_by_a_link_of_ones_own, _by_a_link_to_a_writable_link),
        *(_in_another_users_directory, _of_a_group),
    ],
)
def test_a_file_is_ones_own_if_nobody_else_can_change_or_exchange_it(
    expose: Callable[[Path], Path], shared: Shared, tmp_path: Path
) -> None:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    path = tmp_path / "own" / "deep" / "job.toml"
    path.write_text(JOB.replace("train.py", str(tmp_path / "train.py")))
    (tmp_path / "train.py").touch()
    assert shared.submit(str(path)).returncode == 0
    refused(shared.submit(str(expose(path))), "job")


def test_a_path_out_of_the_centres_directory_is_not_the_centres(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre = tmp_path / "centre"
    centre.mkdir()
    (shared.dir / "deep").mkdir()
    (centre / "link").symlink_to(shared.dir / "deep")
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(centre))
    shared.job()
    for way_out in (f"{centre}/../shared/job.toml", f"{centre}/link/../job.toml"):
        refused(shared.submit(way_out), "job")


def test_a_memory_that_others_can_write_is_not_believed(shared: Shared) -> None:
    template = shared.template()
    digest = load_template(template.partition("=")[2]).sha256
    memory().parent.mkdir(parents=True)
    place = template.partition("=")[2]
    memory().write_text(f"{digest} template {place!r}\n")
    memory().chmod(0o666)
    assert refused(shared.submit("--set", template), "template") == digest
    memory().chmod(0o600)
    assert shared.submit("--set", template).returncode == 0


@pytest.mark.parametrize("look", ["--dry-run", "--check"])
def test_to_look_at_a_job_does_not_start_its_python(
    shared: Shared, tmp_path: Path, look: str
) -> None:
    python = shared.dir / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    python.chmod(0o755)
    job = shared.job(text=f'[environment]\nvenv = "{shared.dir}/venv"\n')
    done = shared.submit(job, look)
    assert "not yet trusted: job job" in done.stderr
    digest = refused(shared.submit(job), "job")
    assert not (tmp_path / "ran").exists()
    shared.submit(job, look, "--trust", digest)
    assert (tmp_path / "ran").exists()


def test_a_plan_imports_no_strangers_script(shared: Shared, tmp_path: Path) -> None:
    job = shared.job(text="[training]\nsteps = 5\n")
    defined = "".join(f"def {name}(*_): ...\n" for name in ("train_step", "build", "main"))
    touch = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    (shared.dir / "train.py").write_text(touch + defined)
    digest = refused(shared.run("plan", job, "--gpu", "h100-80"), "script train")
    assert not (tmp_path / "ran").exists()
    shared.run("plan", job, "--gpu", "h100-80", "--trust", digest)
    assert (tmp_path / "ran").exists()
    assert not memory().exists()  # what lies beside the script may change


def test_a_run_goes_on_as_what_was_written_down_and_as_nothing_else(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "train.py").touch()
    path = runs / "job.json"

    def strange(work_dir: Path) -> list[str]:
        job = reload_job(path, "run r", work_dir=work_dir)
        items = items_of(job, load_site("generic"), load_template("torchrun"))
        return [item.kind for item in strangers(items)]

    job = load_job(str(tmp_path / "train.py"))
    path.write_text(job.resolved)
    assert strange(tmp_path) == []  # nobody else can have written it
    runs.chmod(0o777)
    assert strange(tmp_path) == ["run"]
    vouch(job.as_run(path, tmp_path))
    assert strange(tmp_path) == []
    assert strange(runs) == ["run"]  # begun in another directory, where other modules lie
    path.write_text(job.resolved.replace('"gpus": 1', '"gpus": 2'))
    assert strange(tmp_path) == ["run"]


def test_a_script_runs_as_it_was_shown(tmp_path: Path) -> None:
    script = tmp_path / "a_net_of_somebodys.py"  # imported here: no name that other tests import
    script.write_text("raise SystemExit(3)\n")
    trusted = Consent(ask=lambda item: True).to_model(f"{script}:make")
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UsageError, match=r"ends the program .exit status 3."):
        of_model(trusted, load_settings({}))
    assert not (tmp_path / "ran").exists()
    script.unlink()
    with pytest.raises(UsageError, match="is neither"):
        Consent().to_model(f"{script}:make")


def test_what_was_trusted_is_not_trusted_elsewhere_or_as_another_kind(
    shared: Shared, tmp_path: Path
) -> None:
    job = shared.job()
    digest = refused(shared.submit(job), "job")
    assert shared.submit(job, "--trust", digest).returncode == 0
    assert shared.submit(job).returncode == 0
    other = shared.dir / "other"
    other.mkdir()
    (other / "train.py").touch()
    shutil.copy(job, other / "job.toml")
    assert refused(shared.submit(str(other / "job.toml")), "job") == digest
    shutil.copy(job, shared.dir / "job.py")
    words = ("plan", "--gpu", "h100-80", "--model", f"{shared.dir}/job.py:f")
    assert refused(shared.run(*words), "script") == digest


def test_a_script_beside_which_others_may_put_modules_is_asked_about(tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    (place / "mine.py").touch()
    assert Consent().to_script(place / "mine.py")
    place.chmod(0o1777)  # as /tmp
    with pytest.raises(ConfigError, match=r"script mine .* is not trusted"):
        Consent().to_script(place / "mine.py")


def test_no_program_comes_from_the_directory_that_a_command_is_typed_in() -> None:
    code = "import fsdpkit.cli, os; print(os.environ['PATH'])"
    env = {**os.environ, "PATH": f":{os.environ['PATH']}:bin:."}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout.decode().strip() == os.environ["PATH"]


def test_check_does_not_run_a_strangers_lines(shared: Shared, tmp_path: Path) -> None:
    """`fsdpkit check` activates the job's environment by the script's own lines, right here."""
    site = shared.dir / "site.toml"
    site.write_text(SITE + '[environment]\nmodules = ["cuda"]\n')
    code = f"() {{  touch {tmp_path}/ran\n}}"
    done = shared.run("check", "--cluster", str(site), env={"BASH_FUNC_module%%": code})
    assert "site site is not trusted: its lines are not run here" in done.stdout
    assert not (tmp_path / "ran").exists()


# ---- On a terminal


def on_terminal(answer: str, *words: str) -> tuple[int, str]:
    """Exit status and everything that `fsdpkit submit` writes, to a person who answers so."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fsdpkit", "submit", "--cluster", "generic", *words]
    with tempfile.TemporaryDirectory() as cwd:
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd)
        os.close(slave)
        said = b"".join(_answering(master, answer))
        os.close(master)
        return process.wait(), said.decode().replace("\r\n", "\n")


def _answering(master: int, answer: str) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # nobody has the other end any more
            return
        yield part
        if b"[y/N]" in part:
            os.write(master, answer.encode() + b"\n")


def test_on_a_terminal_it_is_shown_and_asked_about_once(shared: Shared) -> None:
    template = shared.template("evil; ")
    digest = load_template(template.partition("=")[2]).sha256
    status, said = on_terminal("n", "--set", template)
    assert status == 65
    assert f"template torchrun ({shared.dir}/torchrun)" in " ".join(said.split())
    for part in (
        digest,
        "+{ evil; mkdir -p",
        "-{ mkdir",
    ):
        assert part in said
    assert shared.submissions == 0
    assert on_terminal("", "--set", template)[0] == 65
    status, said = on_terminal("y", "--set", template)
    assert (status, shared.submissions) == (0, 1)
    status, said = on_terminal("n", "--set", template)
    assert (status, shared.submissions) == (0, 2)
    assert "Trust it" not in said


# ---- A centre's list


def write_rule(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(exist_ok=True)
    head = 'schema = "fsdpkit.trust/1"\nmessage = "Write to help@centre.example."\n'
    (directory / "trust.toml").write_text(head + text)
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(directory))


def test_a_centres_list_is_the_end_of_it(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "torchrun"
    shutil.copytree(assets.packaged_dir() / "templates" / "torchrun", own)
    digest = load_template(str(own)).sha256
    write_rule(tmp_path / "centre", "template = []\n", monkeypatch)
    for words in (("--trust", digest), ("--dry-run",)):
        done = shared.submit("--set", f"template={own}", *words)
        assert done.returncode == 65
        assert done.stdout == ""
        assert "not among those that the centre allows: Write to help@centre" in done.stderr
    assert shared.submit().returncode == 0, "the packaged template is not limited"
    assert shared.submit(shared.job(), "--dry-run").returncode == 0, "jobs are not limited"
    write_rule(tmp_path / "centre", f'template = ["{digest}"]\n', monkeypatch)
    assert shared.submit("--set", f"template={own}").returncode == 0


def test_a_centres_list_that_is_wrong_refuses_everything(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ('template = ["abc"]\n', "templates = []\n"):
        write_rule(tmp_path / "centre", text, monkeypatch)
        done = shared.submit()
        assert done.returncode == 65
        assert "trust.toml" in done.stderr
    assert shared.submissions == 0
