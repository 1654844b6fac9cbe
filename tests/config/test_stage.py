"""`[stage]` of a job and the directory of a profile that it needs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.profile import Storage
from fsdpkit.config.stage import Stage, item_name
from fsdpkit.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/project/corpus/*.parquet", "corpus"),
        ("/project/year=2024/[ab]/c/?.json", "year=2024"),
        ("tokenizer/", "tokenizer"),
        ("./a/b.json", "b.json"),
        ("/*.json", ""),
        ("/", ""),
    ],
)
def test_an_item_is_called_after_its_last_fixed_part(pattern: str, name: str) -> None:
    assert item_name(pattern) == name


def test_paths_are_whole_whoever_wrote_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    stage = Stage(data=["*.txt", "~/tok/", "../other/./d", "//x//y/**/*.tar"])
    assert [tuple(item) for item in stage.items(Path("/lab/dir"))] == [
        ("dir", "/lab/dir/*.txt"),
        ("tok", "/home/u/tok"),
        ("d", "/lab/other/d"),
        ("y", "/x/y/**/*.tar"),
    ]


@pytest.mark.parametrize("data", [["a/b", "c/b/*"], ["../../*"], [".staged.json"], ["../.."]])
def test_what_has_no_name_of_its_own_is_refused(data: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^stage\.data: "):
        Stage(data=data).items(Path("/lab/dir"))


@pytest.mark.parametrize(
    "table",
    [
        *({"data": [text]} for text in ("", "/", "//.", "/*")),
        *({"back": [text]} for text in ("", "/logs", "~/logs", ".", "a/../..", "..")),
        {"share": "some"},
    ],
)
def test_a_job_cannot_say_what_nobody_could_copy(table: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Stage)


@pytest.mark.parametrize(
    ("local", "is_taken"),
    [
        *((text, True) for text in ("/tmp", "$TMPDIR", "/l/$USER/${SLURM_JOB_ID}.d", "${A_1}/x")),
        *((text, False) for text in ("tmp", "$1", "/a b", "/$(id)", "/${a", "/a;b", "${A:-/x}")),
    ],
)
def test_a_directory_on_nodes_holds_variables_and_no_other_code(local: str, is_taken: bool) -> None:
    try:
        assert msgspec.convert({"local": local}, Storage).local == local
    except msgspec.ValidationError:
        assert not is_taken
    else:
        assert is_taken
