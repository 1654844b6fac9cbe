"""The command line: what it prints where, what it refuses, with which exit status."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpkit.cli.main import COMMANDS
from fsdpkit.cli.main import fsdpkit as commands
from tests.programs import Fsdpkit, ran
from tests.rows import pairs


def test_help_lists_every_command_and_each_command_s_help_opens_with_an_example(
    fsdpkit: Fsdpkit,
) -> None:
    top = fsdpkit("--help", status=0)
    for name in COMMANDS:
        assert f"  {name} " in top.stdout
        text = CliRunner().invoke(commands, [name, "--help"], prog_name="fsdpkit").output
        before_options = text.split("Options:")[0]
        assert f"    fsdpkit {name}" in before_options or f"(fsdpkit {name}" in before_options


@pytest.mark.parametrize(
    ("word", "ours"),
    [("sbatch", "submit"), ("squeue", "status"), ("kill", "cancel"), ("version", "--version")],
)
def test_a_word_of_another_program_is_told_with_ours(word: str, ours: str) -> None:
    told = CliRunner().invoke(commands, [word, "x"])
    assert told.exit_code == 2
    assert f"{ours!r}" in told.output
    assert CliRunner().invoke(commands, [ours, "--help"]).exit_code == 0


def test_the_dry_run_prints_the_script_and_only_it(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    done = fsdpkit(
        "submit", "--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run", status=0
    )
    assert done.stdout.startswith("#!/bin/bash -p\n")
    assert done.stdout.endswith('exit "$status"\n')
    assert "--nodes=2" in done.stdout
    assert "--gpus-per-node=4" in done.stdout
    assert "RUN-ID" in done.stdout
    assert "RUN-ID stands for the id" in done.stderr
    assert list(tmp_path.iterdir()) == []
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    assert checked.returncode == 0


REFUSED = [
    *pairs(Path(__file__).with_name("refused.txt")),
    ("--account 'a\nb'", "65 control character"),
    (f"--account {'a' * 10_000}", "65 10000 characters"),
]


@pytest.mark.parametrize(("typed", "refusal"), REFUSED, ids=lambda text: text[:60])
def test_bad_input_is_refused_by_name_and_nothing_is_made(
    fsdpkit: Fsdpkit, tmp_path: Path, typed: str, refusal: str
) -> None:
    """A28: a time shorter than the warning; A49, A50: no limit, or one of zero; and the rest."""
    words = shlex.split(typed.replace("{file}", __file__))
    status, _, told = refusal.partition(" ")
    cluster = [] if "--cluster" in words else ["--cluster", "generic"]
    done = fsdpkit("submit", *cluster, *words)
    assert done.returncode == int(status), done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "word", ["a'b\"c", "$(touch x)", "`id`", "run#1", "a;b|c&d", "ünïcode", "%j"]
)
def test_odd_words_reach_slurm_as_they_are(fsdpkit: Fsdpkit, word: str) -> None:
    """A64: read back by the port of Slurm's lexer; the words' own quotes end nothing."""
    from fsdpkit.rendering.directives import read_directives

    where = ["--cluster", "generic", "--account", word, "--partition", word]
    done = fsdpkit("submit", *where, "--dry-run", "--", f"--name={word}", status=0)
    options = dict(read_directives(done.stdout))
    assert options["account"] == word
    assert options["partition"] == word


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_exist_and_complete_commands_jobs_and_sites(
    fsdpkit: Fsdpkit, shell: str
) -> None:
    script = fsdpkit("completion", shell, status=0)
    assert "_FSDPKIT_COMPLETE" in script.stdout

    def complete(words: str, count: int) -> str:
        env = {"_FSDPKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        return fsdpkit(env=env).stdout

    assert "plain,submit" in complete("fsdpkit sub", 1)
    assert "plain,t5" in complete("fsdpkit submit t", 2)
    assert "plain,osc-pitzer" in complete("fsdpkit submit --cluster osc-p", 3)


def test_no_runs_is_an_answer(fsdpkit: Fsdpkit) -> None:
    done = fsdpkit("status", status=0)
    assert "no runs in" in done.stdout


def test_sites_templates_and_jobs_are_listed_with_where_they_were_found(
    fsdpkit: Fsdpkit, isolated_user: Path
) -> None:
    mine = isolated_user / "config" / "jobs"
    mine.mkdir(parents=True)
    (mine / "t5.toml").write_text("[resources]\ntime = '02:00:00'\n")
    assert re.search(r"^osc-cardinal +packaged ", fsdpkit("sites").stdout, re.MULTILINE)
    assert "contact" in fsdpkit("sites", "osc-ascend").stdout
    assert "torchrun" in fsdpkit("templates").stdout
    assert "wait_s" in fsdpkit("templates", "torchrun").stdout
    assert "packaged, user" in fsdpkit("jobs").stdout
    shown = fsdpkit("jobs", "t5").stdout
    assert 'resources.time = "02:00:00"  # user jobs/t5.toml\n' in shown
    assert "\nlaunch.check = true\n" in shown  # as it would be typed into a job file


def test_a_closed_pipe_is_no_crash(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fsdpkit submit --cluster generic --dry-run | head -1"
    done = ran(
        ["bash", "-o", "pipefail", "-c", command], cwd=tmp_path
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


CTRL_C = """
import sys
class Import:
    def find_spec(self, name, *_):
        if not name.startswith("fsdpkit") and name not in sys.builtin_module_names:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Import())
import fsdpkit.cli.main
"""


def test_ctrl_c_in_the_very_first_import_shows_no_traceback() -> None:
    words = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
