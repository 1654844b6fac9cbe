"""Which checkpoints there are and whether they are whole; damaged in every way that we know of.

The checkpoints are those of the real trainer on two ranks.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.errors import ConfigError, DamagedError, StorageError
from fsdpkit.runs import checkpoints as files
from fsdpkit.runs.checkpoints import describe, problems_of
from fsdpkit.runs.layout import TaskPaths
from tests.runs.trained import copied, flip

pytestmark = pytest.mark.torch
SHARD = "__1_0.distcp"
Damage = Callable[[Path], object]


def sha256sum_is_content(checkpoint: Path) -> bool:
    """What coreutils say, run by hand in the checkpoint's directory."""
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--status", files.CHECKSUMS],
        cwd=checkpoint,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def change_sums(checkpoint: Path, change: Callable[[str], str]) -> None:
    file = checkpoint / files.CHECKSUMS
    file.write_text(change(file.read_text()))


def change_description(checkpoint: Path, **values: Any) -> None:
    """As whoever wrote it would have: with its checksum."""
    file = checkpoint / files.DESCRIPTION
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    line = f"{files.sha256_of(file)}  {file.name}"
    change_sums(checkpoint, lambda text: re.sub(rf"\w+  {file.name}", line, text))


# What is done to a checkpoint, and the file that is named for it.
DAMAGE: dict[str, tuple[Damage, str]] = {
    "a missing shard": (lambda c: (c / SHARD).unlink(), SHARD),
    "a truncated shard": (lambda c: truncate(c / SHARD), SHARD),
    "an empty shard": (lambda c: (c / SHARD).write_bytes(b""), SHARD),
    "a directory for a shard": (lambda c: replace_by_directory(c / SHARD), SHARD),
    "a flipped bit in a shard": (lambda c: flip(c / SHARD), SHARD),
    "a flipped bit in .metadata": (lambda c: flip(c / files.METADATA), files.METADATA),
    "a flipped bit in config.json": (lambda c: flip(c / "config.json"), "config.json"),
    "a flipped bit in checkpoint.json": (
        lambda c: flip(c / files.DESCRIPTION),
        files.DESCRIPTION,
    ),
    "no checkpoint.json": (lambda c: (c / files.DESCRIPTION).unlink(), files.DESCRIPTION),
    "a torn checkpoint.json": (lambda c: truncate(c / files.DESCRIPTION), files.DESCRIPTION),
    "no SHA256SUMS": (lambda c: (c / files.CHECKSUMS).unlink(), files.CHECKSUMS),
    "an empty SHA256SUMS": (lambda c: change_sums(c, lambda _: ""), files.CHECKSUMS),
    "a torn SHA256SUMS": (lambda c: change_sums(c, lambda t: t[: len(t) // 2]), files.CHECKSUMS),
    "SHA256SUMS of ../x": (
        lambda c: change_sums(c, lambda t: f"{t}{'0' * 64}  ../x\n"),
        files.CHECKSUMS,
    ),
    "SHA256SUMS with two sums of a file": (
        lambda c: change_sums(c, lambda t: f"{'0' * 64}  {SHARD}\n{t}"),
        files.CHECKSUMS,
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_the_file_named_and_sha256sum_agrees(
    name: str, checkpoint: Path
) -> None:
    damage, named = DAMAGE[name]
    assert problems_of(checkpoint) == []
    assert sha256sum_is_content(checkpoint)
    damage(checkpoint)
    (problem,) = problems_of(checkpoint)
    assert str(checkpoint / named) in problem
    assert not sha256sum_is_content(checkpoint)


def test_any_flipped_bit_of_the_small_files_is_found(checkpoint: Path) -> None:
    """Every byte of SHA256SUMS, line ends included, and some of checkpoint.json."""
    for name, every, bits in ((files.CHECKSUMS, 1, (1, 7)), (files.DESCRIPTION, 197, (1,))):
        file = checkpoint / name
        for position in range(0, file.stat().st_size, every):
            for bit in bits:
                flip(file, position, bit)
                assert problems_of(checkpoint), (name, position, bit)
                flip(file, position, bit)
    assert problems_of(checkpoint) == []


def test_a_newer_format_is_refused_with_the_version_that_reads_it(checkpoint: Path) -> None:
    change_description(checkpoint, format=files.FORMAT + 1, versions={"fsdpkit": "9.1"})
    assert sha256sum_is_content(checkpoint)
    told = f"{files.DESCRIPTION} has format {files.FORMAT + 1}, written by fsdpkit 9.1"
    for read in (describe, files.checksums, problems_of):
        with pytest.raises(ConfigError, match=told):
            read(checkpoint)


def test_checkpoints_are_listed_by_step_and_nothing_else_is(tmp_path: Path) -> None:
    for name in ("step-10", "step-9", "step-0", ".step-11.abc", "step-", "step-x", "step-1.old"):
        (tmp_path / name).mkdir()
    names = [path.name for path in files.checkpoints_in(tmp_path)]
    assert names == ["step-0", "step-9", "step-10"]
    assert files.checkpoints_in(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file cannot be read"):
        files.checkpoints_in(tmp_path / "file")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from([SHARD, "config.json", "..", ".", "../x", "/etc/passwd", "a\0b", "x" * 300])


@pytest.fixture(scope="module")
def patient(
    trained: TaskPaths, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any], str]:
    """A checkpoint of which one file is written anew all the time, and what was in its files."""
    copy = copied(trained, tmp_path_factory.mktemp("patient"))
    checkpoint = copy.checkpoints / "step-2"
    table = json.loads((checkpoint / files.DESCRIPTION).read_text())
    return checkpoint, table, (checkpoint / files.CHECKSUMS).read_text()


@given(data=st.data())
@settings(max_examples=150)
def test_whatever_json_is_in_the_description_the_answer_is_a_sentence(
    data: st.DataObject, patient: tuple[Path, dict[str, Any], str]
) -> None:
    checkpoint, table, sums = patient
    some = st.sampled_from([*table, "unknown"])
    tables = st.dictionaries(some, JSON, max_size=3).map(lambda changes: {**table, **changes})
    lists = st.dictionaries(NAMES, JSON, max_size=3).map(lambda names: {**table, "files": names})
    content = data.draw(JSON | tables | lists)
    change = json.dumps(content)
    (checkpoint / files.DESCRIPTION).write_text(change)
    (checkpoint / files.CHECKSUMS).write_text(sums)
    try:
        found = describe(checkpoint)
    except (StorageError, ConfigError) as error:
        said = str(error)
    else:  # of the types that it promises, or one of these raises
        said = f"{checkpoint / files.DESCRIPTION}{found.saved_at + found.optimizer}"
        assert found.total_bytes + found.step + found.world_size == sum(
            [*found.files.values(), found.step, found.world_size]
        )
        assert len({*found.progress, *found.state, *found.export, *found.settings}) >= 0
    assert str(checkpoint / files.DESCRIPTION) in said
    if content != table:
        with suppress(ConfigError):  # of a format that is none of ours
            assert problems_of(checkpoint)


def test_a_file_that_cannot_be_read_just_now_is_not_called_damaged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or hours of work would be passed over because a disk hiccuped."""

    def failing(*_: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sha256_of", failing)
    with pytest.raises(
        StorageError, match=r"cannot be read: Input/output error.*try again"
    ) as raised:
        problems_of(checkpoint)
    assert not isinstance(raised.value, DamagedError)
