"""What the submitter's shell leaves in the environment replaces no command of the script.

sbatch hands on the environment, and bash makes functions of `BASH_FUNC_name%%` in it and runs the
file that `BASH_ENV` names, in the job's shell and in the one on each node.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rendering.bash_stubs import Bash, RenderScript

COMMANDS = (
    *("srun", "scontrol", "scancel", "python", "torchrun", "timeout", "conda", "apptainer"),
    *("ip", "getent", "awk", "sed", "sort", "cat", "mkdir", "rm", "sleep", "bash", "env"),
    *("printf", "echo", "export", "unset", "set", "exec", "exit", "trap", "wait", "kill", "read"),
    *("builtin", "command", "type", "mapfile", "ulimit", "source", ".", ":", "true", "local"),
    *("shift", "disown", "declare", "eval", "test", "[", "fail", "notify", "read_in", "printenv"),
)
STOLEN = 'echo "$FUNCNAME" >>"$RECORD/stolen"; /bin/true; exit 0'


@pytest.fixture
def in_environment(shell: Bash) -> dict[str, str]:
    return {f"BASH_FUNC_{name}%%": f"() {{  {STOLEN}\n}}" for name in COMMANDS}


def start_up_file(shell: Bash) -> Path:
    functions = "".join(f"function {name} {{ {STOLEN}\n}}\n" for name in COMMANDS if name != ".")
    words = ("if", "for", "while", "case", "then", "exec", "set", "srun", "python", "export")
    aliases = "".join(f"alias {word}='{STOLEN}; {word}'\n" for word in words)
    hashed = "hash -p /bin/false srun\nhash -p /bin/false python\n"
    path = shell.root / "start-up.sh"
    path.write_text(f"{hashed}shopt -s expand_aliases\n{aliases}{functions}")
    return path


def ran_as_ever(shell: Bash, script: str) -> None:
    done = shell.run(script)
    stolen = shell.record / "stolen"
    assert not stolen.exists(), stolen.read_text()
    assert (done.returncode, done.stderr) == (0, "")
    for node in (0, 1):
        assert shell.arguments(node)[-3:] == ["/home/alex/train.py", "--lr", "1 e$x"]


def test_exported_functions_replace_no_command_in_job_and_task(
    shell: Bash, in_environment: dict[str, str]
) -> None:
    shell.environment.update(in_environment)
    ran_as_ever(shell, shell.script(args=["--lr", "1 e$x"]))


def test_what_a_start_up_file_defines_replaces_no_command(shell: Bash) -> None:
    shell.environment["BASH_ENV"] = str(start_up_file(shell))
    ran_as_ever(shell, shell.script(args=["--lr", "1 e$x"]))


def test_a_start_up_file_does_not_run_at_all(tmp_path: Path, render_script: RenderScript) -> None:
    """Slurm starts the script by its first line."""
    script, start_up = tmp_path / "job.sbatch", tmp_path / "start-up.sh"
    first, _, rest = render_script().partition("\n")
    assert rest
    script.write_text(f"{first}\necho the script\n")
    script.chmod(0o700)
    start_up.write_text("echo the start-up file\n")
    done = subprocess.run(script, env={"BASH_ENV": str(start_up)}, capture_output=True, text=True)
    assert done.stdout == "the script\n"


def test_the_training_keeps_the_environment_as_it_was(shell: Bash) -> None:
    """A script that the ranks start may need the functions."""
    code = "() {  echo mine\n}"
    shell.environment.update({"BASH_FUNC_mine%%": code, "BASH_ENV": "/nowhere/start-up.sh"})
    shell.ran(status=0)
    seen = (shell.record / "env.1").read_text()
    assert f"BASH_FUNC_mine%%={code}\n" in seen
    assert shell.seen(1)["BASH_ENV"] == "/nowhere/start-up.sh"


def test_words_that_look_like_options_reach_the_program(shell: Bash) -> None:
    args = ["-c", "--", "-s", "", "-p", "$1"]
    shell.ran(args=args, status=0)
    assert shell.arguments(1)[-7:] == ["/home/alex/train.py", *args]
