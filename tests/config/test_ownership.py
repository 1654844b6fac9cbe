"""Who may write to a file: its mode, its group, and the access control list that it may have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdpkit.config import ownership
from fsdpkit.config.ownership import first_unsafe, only_owner_writes
from fsdpkit.errors import StorageError
from fsdpkit.remote import tree
from fsdpkit.runs.reading import open_own
from tests.config.access_lists import GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, Entry, set_list

SAM, STAFF = 12002, 12003
OWNER = (USER_OBJ, 0, 6)
NOBODY = (OTHER, 0, 0)


@pytest.fixture(autouse=True)
def own_group_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever groups this machine has."""
    mine = os.getegid()
    monkeypatch.setattr(ownership, "_is_private", lambda group, user: group == mine)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text("")
    path.chmod(0o660)
    return path


@pytest.mark.parametrize(
    ("entries", "theirs"),
    [
        ([OWNER, (USER, SAM, 6), (GROUP_OBJ, 0, 4), (MASK, 0, 6), NOBODY], True),
        ([OWNER, (USER, SAM, 6), (GROUP_OBJ, 0, 4), (MASK, 0, 4), NOBODY], False),
        ([OWNER, (USER, SAM, 4), (GROUP_OBJ, 0, 6), (MASK, 0, 6), NOBODY], False),
        ([OWNER, (USER, 0, 6), (GROUP_OBJ, 0, 4), (MASK, 0, 6), NOBODY], False),
        ([OWNER, (GROUP_OBJ, 0, 4), (GROUP, STAFF, 6), (MASK, 0, 6), NOBODY], True),
        ([OWNER, (GROUP_OBJ, 0, 4), (GROUP, STAFF, 4), (MASK, 0, 6), NOBODY], False),
        ([OWNER, (GROUP_OBJ, 0, 0), (GROUP, os.getegid(), 6), (MASK, 0, 6), NOBODY], False),
        ([OWNER, (USER, SAM, 0), (GROUP_OBJ, 0, 0), (MASK, 0, 0), (OTHER, 0, 6)], True),
    ],
    ids=[
        *("a user", "masked", "only the mask", "root", "a group", "a group that reads"),
        *("a private group", "everybody"),
    ],
)
def test_a_list_says_who_writes(entries: Sequence[Entry], theirs: bool, job: Path) -> None:
    set_list(job, entries)
    assert only_owner_writes(job) is not theirs


def test_a_trusted_user_may_be_on_the_list(job: Path) -> None:
    set_list(job, [OWNER, (USER, SAM, 6), (GROUP_OBJ, 0, 4), (MASK, 0, 6), NOBODY])
    assert only_owner_writes(job, {os.geteuid(), SAM})


def test_without_a_list_the_group_counts(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_owner_writes(job)
    monkeypatch.setattr(ownership, "_is_private", lambda group, user: False)
    assert first_unsafe(job) == job


def test_a_list_on_a_directory_above_names_the_directory(job: Path) -> None:
    job.chmod(0o600)
    set_list(
        job.parent, [(USER_OBJ, 0, 7), (USER, SAM, 7), (GROUP_OBJ, 0, 5), (MASK, 0, 7), NOBODY]
    )
    assert first_unsafe(job) == job.parent
    job.parent.chmod(0o1770)  # where only a file's owner can rename it, the list changes nothing
    assert first_unsafe(job) is None


def test_a_list_of_an_unknown_kind_is_not_believed_to_be_harmless(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"", b"\3\0\0\0", b"\2\0\0\0\1\0", b"\2\0\0\0"):
        monkeypatch.setattr(os, "getxattr", lambda *_, content=content: content)
        assert first_unsafe(job) == job


def test_what_a_list_lets_others_write_is_neither_unpickled_nor_a_place_for_trees(
    job: Path, tmp_path: Path
) -> None:
    results, trees = tmp_path / "result.pkl", tmp_path / "trees"
    results.write_bytes(b"")
    trees.mkdir()
    set_list(results, [OWNER, (USER, SAM, 6), (GROUP_OBJ, 0, 0), (MASK, 0, 6), NOBODY])
    set_list(trees, [(USER_OBJ, 0, 7), (USER, SAM, 7), (GROUP_OBJ, 0, 0), (MASK, 0, 7), NOBODY])
    with pytest.raises(StorageError, match="can be written by others"):
        open_own(results)
    with pytest.raises(StorageError, match="others can write to it"):
        tree._refuse_of_others(trees)
