"""Options of sbatch that no key stands for, and what is said of those that one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.sbatch_spellings import KEYS, LETTERS, OTHERWISE
from fsdpkit.config.slurm_options import why_refused
from fsdpkit.config.trainers import job_type
from fsdpkit.errors import ConfigError
from fsdpkit.rendering.lint import LONG_OPTIONS
from tests.conftest import Completed


def test_every_spelling_in_the_tables_is_one_of_sbatch_and_stands_in_one_of_them() -> None:
    assert {*KEYS, *OTHERWISE, *LETTERS.values()} <= LONG_OPTIONS
    assert not KEYS.keys() & OTHERWISE.keys()


def test_every_key_in_the_table_is_one_of_a_job() -> None:
    for key in KEYS.values():
        table, _, leaf = key.rpartition(".")
        struct = type(getattr(load_job("t5").spec, table)) if table else job_type()
        assert leaf in struct.__struct_fields__, key


@pytest.mark.parametrize("name", sorted({*KEYS, *OTHERWISE}))
def test_what_the_script_writes_itself_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"slurm\.options \(--set\): --{name} is "):
        load_job("t5", sets=[f"slurm.options.{name}=x"])


@pytest.mark.parametrize("name", ["", "-L", "--licenses", "L", "Licenses", "a b", "x=1", "é", "y"])
def test_what_is_no_option_is_refused(name: str) -> None:
    assert why_refused(name) is not None


def test_a_beginning_that_sbatch_takes_for_the_whole_option_is_refused() -> None:
    """--parti=x moves a job to another partition, --comm=x hides it from its owner's commands."""
    begun = {name[:end] for name in LONG_OPTIONS for end in range(1, len(name))} - LONG_OPTIONS
    assert {"parti", "comm", "nod", "j"} <= begun
    assert [name for name in begun if why_refused(name) is None] == []


def test_a_line_break_in_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="control character"):
        load_job("t5", options={"slurm.options": {"licenses": "a\n#SBATCH --mem=1"}})


WORDS = {
    ("--mem", "64G"): "--set resources.memory=VALUE",
    ("-J", "x"): "--set name=VALUE",
    ("-n4",): "a rank on each GPU",
    ("-x", "n1"): "--set resources.exclude=VALUE",
    ("--licenses=x",): "--sbatch-option licenses=VALUE",
    ("--output", "x"): "fsdpkit logs",
    ("--lr", "1"): "goes after --",
}


@pytest.mark.parametrize(("words", "said"), WORDS.items())
def test_sbatchs_own_spelling_is_answered_with_ours(
    words: tuple[str, ...], said: str, fsdpkit: Callable[..., Completed]
) -> None:
    done = fsdpkit("submit", "train.py", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    of_sbatch = "is an option of sbatch" in done.stderr
    assert of_sbatch == (words[0] != "--lr")


def test_a_command_without_the_option_names_the_key(fsdpkit: Callable[..., Completed]) -> None:
    assert "--set slurm.options.licenses=VALUE" in fsdpkit("resume", "x", "-L", "a").stderr
