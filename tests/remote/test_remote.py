"""`fsdpkit --host`: commands of a laptop on a login node, over real ssh."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fsdpkit
from fsdpkit.config.site import load_site
from fsdpkit.remote.protocol import MARK
from tests.conftest import answer_of
from tests.programs import until
from tests.publishing.live_answers import Says, captured, slurm_says
from tests.remote.login_node import SHELLS, LoginNode, login_node, why_not
from tests.terminals import Terminal

pytestmark = pytest.mark.xdist_group("remote")
__all__ = ["slurm_says"]

# An fsdpkit whose commands only say what they were called with, wait, or end as --task says.
ECHO = f"""#!{sys.executable}
import json, os, signal, sys, time
import fsdpkit.cli.main as cli

def echo():
    words = [os.fsencode(word).hex() for word in sys.argv[1:]]
    said = dict(words=words, cwd=os.getcwd(), runs=os.environ["FSDPKIT_RUNS"], tty=os.isatty(1))
    number = int(sys.argv[sys.argv.index("--task") + 1]) if "--task" in sys.argv else 0
    if number == 1001:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(json.dumps(said), flush=True)
        time.sleep(600)
    elif number != 1000:
        print(json.dumps(said), flush=True)
    else:
        try:
            print(json.dumps(said), flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted there", flush=True)
            number = 130
    if number == 1009:
        os.kill(os.getpid(), 9)
    sys.exit(number)

real, cli.main = cli.main, echo
real()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    if reason := why_not():
        if os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    state = tmp_path_factory.mktemp("state")
    environ = {"FSDPKIT_STATE_DIR": str(state), "OMP_NUM_THREADS": "1"}
    # The login node's own default is not meant by who asks it from elsewhere.
    with login_node({**environ, "FSDPKIT_HOST": "nowhere.invalid"}) as made:
        yield made


@pytest.fixture
def there(node: LoginNode, tmp_path: Path) -> Callable[[str], str]:
    """Puts another program in the place of the login node's fsdpkit; its path."""

    def write(text: str) -> str:
        path = tmp_path / "there"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return write


def heard(stdout: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(stdout.splitlines()[0])
    return said | {"words": [bytes.fromhex(word) for word in said["words"]]}


# The way there


@pytest.mark.parametrize("shell", SHELLS)
def test_words_cross_byte_for_byte_whatever_the_login_shell(
    shell: str, node: LoginNode, there: Callable[[str], str]
) -> None:
    """Also those that look like options of ssh, and a long one."""
    words = [b"it's", b'"', b"$HOME `id` $(id) !! ; & | < > \\ * ?", b"a\nb\tc", b"", b"\xff\xfe"]
    words += ["é ‮".encode(), b"-oProxyCommand=id", b"x" * 50_000]
    done = node.fsdpkit("--host", shell, "submit", "t5", "--", *words, FSDPKIT_REMOTE=there(ECHO))
    assert done.returncode == 0, done.stderr
    assert heard(done.stdout)["words"] == [b"submit", b"t5", b"--", *words]
    assert heard(done.stdout)["cwd"] == str(node.home)


def test_many_commands_authenticate_once_and_a_jump_host_is_used(node: LoginNode) -> None:
    node.hang_up()
    before, jumped = node.sshd.logins(), node.jump.logins()
    for _ in range(3):
        assert "osc-pitzer" in node.fsdpkit("--host", "behind", "sites").stdout
    assert (node.sshd.logins() - before, node.jump.logins() - jumped) == (1, 1)
    sockets = node.dir / "run" / "fsdpkit"
    assert sockets.stat().st_mode & 0o077 == 0


def test_what_ssh_asks_is_asked_once_on_the_terminal(node: LoginNode) -> None:
    """Here a passphrase; a second factor comes the same way."""
    node.hang_up()
    change = ["ssh-keygen", "-q", "-p", "-f", str(node.dir / "id")]
    subprocess.run([*change, "-P", "", "-N", "sesame"], check=True, capture_output=True)
    try:
        child, terminal = pty.fork()
        if child == 0:
            words = [node.laptop_command, "--host", "bash", "sites"]
            os.execve(words[0], words, node.environ())
        said, answered = b"", False
        while part := _part_of(terminal):
            said += part
            if b"passphrase" in said and not answered:
                answered = bool(os.write(terminal, b"sesame\n"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
        assert b"osc-pitzer" in said
        assert node.fsdpkit("--host", "bash", "sites").returncode == 0
    finally:
        subprocess.run([*change, "-P", "sesame", "-N", ""], check=True, capture_output=True)


def _part_of(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has its other end any more
        return b""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this laptop has click alone, no tomli")
def test_a_default_host_and_its_settings_stand_in_a_file(
    node: LoginNode, there: Callable[[str], str]
) -> None:
    config = node.laptop / "other"
    config.mkdir()
    settings = f'default = "dash"\n[hosts.dash]\ncommand = "{there(ECHO)}"\nruns = "~/mine"\n'
    (config / "hosts.toml").write_text(settings)
    own = {"FSDPKIT_CONFIG_DIR": str(config), "FSDPKIT_REMOTE": ""}
    assert heard(node.fsdpkit("status", **own).stdout)["runs"] == f"{node.home}/mine"
    for words, more in ((["--no-host", "sites"], {}), (["sites"], {"FSDPKIT_HOST": ""})):
        done = node.fsdpkit(*words, **own, **more)
        assert done.returncode == 69  # this laptop has click alone
        assert "msgspec" in done.stderr
        assert "--host" in done.stderr
    (config / "hosts.toml").write_text("[hosts.dash]\ncomand = 'x'\n")
    done = node.fsdpkit("--host", "dash", "status", **own)
    assert (done.returncode, "'command'" in done.stderr) == (65, True), done.stderr
    (config / "hosts.toml").chmod(0o666)
    done = node.fsdpkit("status", **own)
    assert (done.returncode, "says where your work is sent" in done.stderr) == (65, True)


@pytest.mark.parametrize(
    ("host", "path"), [("-oProxyCommand=id", ""), ("a b", ""), ("", ""), ("bash", "a;id")]
)
def test_what_ssh_or_a_shell_would_take_for_more_is_refused(
    host: str, path: str, node: LoginNode
) -> None:
    before = node.sshd.log
    done = node.fsdpkit(f"--host={host}", "status", FSDPKIT_REMOTE=path)
    assert done.returncode in (2, 65)
    assert node.sshd.log == before


def test_no_fsdpkit_there_and_another_release_are_said(
    node: LoginNode, there: Callable[[str], str]
) -> None:
    done = node.fsdpkit("--host", "tcsh", "status", FSDPKIT_REMOTE="/nowhere/fsdpkit")
    assert (done.returncode, "FSDPKIT_REMOTE" in done.stderr) == (69, True), done.stderr
    for other in ({"protocol": 1, "version": "99.1"}, {"protocol": 99, "version": "0.1.0"}):
        old = there(f"#!/bin/sh\necho motd\necho '{MARK}{json.dumps(other)}'\n")
        done = node.fsdpkit("--host", "bash", "status", FSDPKIT_REMOTE=old)
        assert done.returncode == 69
        assert other["version"] in done.stderr
        assert fsdpkit.__version__ in done.stderr


def test_a_host_that_nobody_reaches_and_wrong_words_are_told_apart(node: LoginNode) -> None:
    done = node.fsdpkit("--host", "nowhere.invalid", "status")
    assert (done.returncode, "cannot be reached" in done.stderr) == (69, True), done.stderr
    before = node.sshd.log
    done = node.fsdpkit("--host", "bash", "submit", "--nodse", "2")
    assert (done.returncode, "--nodes" in done.stderr) == (2, True), done.stderr
    assert node.sshd.log == before


# The end of a command


@pytest.mark.parametrize(("task", "status"), [(0, 0), (75, 75), (255, 255), (1009, 137)])
def test_the_exit_status_comes_back(
    task: int, status: int, node: LoginNode, there: Callable[[str], str]
) -> None:
    words = ("--host", "bash", "logs", "any", "--task", str(task))
    assert node.fsdpkit(*words, FSDPKIT_REMOTE=there(ECHO)).returncode == status


class Waiting:
    """A command on the laptop that waits there until somebody ends it."""

    def __init__(
        self, node: LoginNode, words: Sequence[str], there: str, terminal: bool, task: int = 1000
    ) -> None:
        self.ours, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [node.laptop_command, "--host", "bash", *words, "--task", str(task)],
            env=node.environ(FSDPKIT_REMOTE=there),
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.said = b""

    def read(self, until: str | None) -> str:
        """What it says up to these words, or to its end."""
        while until is None or until.encode() not in self.said:
            try:
                part = os.read(self.ours, 65536)
            except OSError:  # the terminal has nobody at its other end
                part = b""
            if not part:
                assert until is None, self.said
                break
            self.said += part
        return self.said.decode(errors="replace")

    def ended(self) -> int:
        self.read(None)
        return self.process.wait()


@contextmanager
def waiting(
    node: LoginNode, words: Sequence[str], there: str, *, terminal: bool = False, task: int = 1000
) -> Iterator[Waiting]:
    made = Waiting(node, words, there, terminal, task)
    try:
        made.read('"words"')
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        os.close(made.ours)


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_reaches_the_command(
    terminal: bool, node: LoginNode, there: Callable[[str], str]
) -> None:
    with waiting(node, ["logs", "any"], there(ECHO), terminal=terminal) as command:
        assert ('"tty": true' in command.said.decode()) == terminal
        if terminal:
            os.write(command.ours, b"\x03")
        else:
            command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
        assert b"interrupted there" in command.said


def test_a_command_that_heeds_no_ctrl_c_is_left_at_the_third(
    node: LoginNode, there: Callable[[str], str]
) -> None:
    with waiting(node, ["logs", "any"], there(ECHO), task=1001) as command:
        for _ in range(2):
            command.process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                command.process.wait(1)
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait() == 130


@pytest.mark.parametrize(
    ("words", "noun"), [(["logs", "any"], "again"), (["submit", "--"], "status")]
)
def test_a_cut_connection_is_said_and_what_it_means(
    words: list[str], noun: str, node: LoginNode, there: Callable[[str], str]
) -> None:
    with waiting(node, words, there(ECHO)) as command:
        node.sshd.cut()
        assert command.ended() == 69
        said = command.said.decode()
        assert "lost" in said
        assert noun in said


# What is sent and brought back


@pytest.mark.local
def test_a_script_of_the_laptop_trains_there_and_its_report_comes_back(node: LoginNode) -> None:
    """Its tree has links, a file without a name for shells, and one that git ignores; what is sent
    once is not sent again, and no later edit changes what runs."""
    work = node.laptop / "it's $HOME"
    (work / "deep").mkdir(parents=True)
    (work / "deep" / "train.py").write_text(
        "import os, sys\n"
        "print(open('../a link').read(), os.path.exists('../secret'), sys.argv[1:])\n"
    )
    (work / "data").write_text("of the laptop")
    (work / "a link").symlink_to("data")
    (work / "secret").write_text("")
    (work / ".gitignore").write_text("secret\n")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    words = ("--host", "tcsh", "submit", "train.py", "--cluster", "local", "--gpus", "2")
    words += ("--set", "launch.warm=off", "--follow", "--", "--lr", "$HOME")
    first = node.fsdpkit(*words, cwd=work / "deep")
    assert first.returncode == 0, first.stderr
    assert "of the laptop False ['--lr', '$HOME']" in first.stdout
    assert "sending" in first.stderr
    name = first.stdout.splitlines()[0]
    assert f"fsdpkit --host tcsh logs {name} --follow\n" in first.stdout
    assert node.fsdpkit("--host", "tcsh", "logs", name, cwd=work / "deep").returncode == 0
    (tree,) = (node.home / ".fsdpkit" / "trees").glob("[0-9a-f]*")
    assert "COMPLETED" in node.fsdpkit("--host", "bash", "status").stdout

    again = node.fsdpkit(*words[:6], "--dry-run", cwd=work / "deep")
    assert again.returncode == 0, again.stderr
    assert "sending" not in again.stderr
    assert str(tree) in again.stdout

    done = node.fsdpkit("--host", "bash", "report")
    assert done.returncode == 0, done.stderr
    report = node.laptop / done.stdout.strip()
    assert report.name == "fsdpkit-report.html", "a name of this machine's own"
    assert report.read_text().startswith("<!DOCTYPE html>")
    answer = answer_of(node.fsdpkit("--host", "bash", "report", "-o", "two.html", "--json"))
    assert (answer["run"], Path(answer["path"]).name) == (name, "two.html")
    done = node.fsdpkit("--host", "bash", "report", "train", "-o", "nowhere/mine.html")
    assert done.returncode == 74
    done = node.fsdpkit("--host", "bash", "report", "--follow")
    assert (done.returncode, "with --host, leave it out" in done.stderr) == (2, True)
    done = node.fsdpkit("--host", "bash", "report", "nosuch", "-o", "mine.html")
    assert (done.returncode, "nosuch" in done.stderr) == (66, True)
    assert not (node.laptop / "mine.html").exists()


@pytest.mark.local
def test_a_shell_in_a_running_job_there_has_this_terminal(node: LoginNode) -> None:
    (node.laptop / "waits.py").write_text("import time\ntime.sleep(600)\n")
    words = ("--host", "bash", "submit", "waits.py", "--cluster", "local", "--gpus", "1")
    done = node.fsdpkit(*words, "--set", "launch.warm=off")
    assert done.returncode == 0, done.stderr
    shell = ("--host", "bash", "shell", "waits")
    until(lambda: node.fsdpkit(*shell, "--", "true").returncode == 0, "the ranks")
    done = node.fsdpkit(
        *shell, "--", "sh", "-c", 'echo "$0 on $FSDPKIT_VISIT"; exit 7', "it's = $x"
    )
    assert (done.returncode, done.stdout) == (7, "it's = $x on 1\n")
    assert node.fsdpkit(*shell).returncode == 2, "no terminal, no shell"
    terminal = Terminal([node.laptop_command, *shell], 31, 97, node.environ())
    terminal.wait_for("waits-")
    terminal.wait_for("# " if os.geteuid() == 0 else "$ ")
    terminal.type("stty size; echo wi''thin\n")
    assert "31 97" in terminal.wait_for("\nwithin")
    terminal.type("exit 5\n")
    assert terminal.end() == 5
    assert node.fsdpkit("--host", "bash", "cancel", "waits").returncode == 0


def test_a_profile_is_drafted_there_and_written_where_its_reader_wants_it(
    node: LoginNode, there: Callable[[str], str], slurm_says: Says, tmp_path: Path
) -> None:
    """What Slurm does not show its user there is unknown; `--output` names a file there."""
    place = slurm_says(captured("24.11"), node='echo "x: Access/permission denied" >&2; exit 1')
    program = f'#!/bin/sh\nPATH={place}:/usr/bin:/bin exec {sys.executable} -m fsdpkit "$@"\n'
    words = ("--host", "bash", "site", "draft")
    program = there(program)
    done = node.fsdpkit(*words, FSDPKIT_REMOTE=program)
    assert done.returncode == 0, done.stderr
    (tmp_path / "here.toml").write_text(done.stdout)
    profile = load_site(str(tmp_path / "here.toml")).profile
    assert profile.partitions["main"].max_time == "1-00:00:00"
    assert [why for why in profile.unknown if why.endswith("x: Access/permission denied")]
    assert node.fsdpkit(*words, "--output", "ours.toml", FSDPKIT_REMOTE=program).returncode == 0
    assert load_site(str(node.home / "ours.toml")).profile.partitions == profile.partitions
    done = node.fsdpkit("--host", "bash", "site", "diff", "./ours.toml", FSDPKIT_REMOTE=program)
    assert (done.returncode, "not read: scontrol show node" in done.stderr) == (0, True)


def test_runs_are_not_looked_for_in_a_tree(node: LoginNode, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ("--host", "bash", "submit", "train.py", "--runs", "mine")
    done = node.fsdpkit(*words, cwd=tmp_path)
    assert (done.returncode, "--runs" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("job", "noun"), [("gone.py", "gone.py"), ("hidden.py", "ignores"), ("../out.py", "outside")]
)
def test_a_script_that_would_not_go_along_is_refused_here(
    job: str, noun: str, node: LoginNode, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / ".gitignore").write_text("hidden.py\n")
    for name in ("hidden.py", "../out.py"):
        (work / name).write_text("")
    before = node.sshd.log
    done = node.fsdpkit("--host", "bash", "submit", job, cwd=work)
    assert (done.returncode, noun in done.stderr) == (66, True), done.stderr
    assert node.sshd.log == before
