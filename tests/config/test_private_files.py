"""Directories of one person, whatever the umask and the access control list of the one above."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.config.private_files import make_dir, make_private_dir, replace_private, set_mode
from tests.config.access_lists import GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, set_list

SAM = 12002
INHERITED = [(USER_OBJ, 0, 7), (USER, SAM, 7), (GROUP_OBJ, 0, 7), (MASK, 0, 7), (OTHER, 0, 7)]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o002, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_all_that_is_missing_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    here = mode_of(tmp_path)
    replace_private(tmp_path / "state" / "fsdpkit" / "trusted", b"")
    for made, mode in (
        ("state", 0o700),
        ("state/fsdpkit", 0o700),
        ("state/fsdpkit/trusted", 0o600),
    ):
        assert mode_of(tmp_path / made) == mode
    make_private_dir(tmp_path / "state" / "fsdpkit")
    assert mode_of(tmp_path) == here


@pytest.mark.usefixtures("umask")
def test_a_directory_inherits_no_list_and_hands_none_on(tmp_path: Path) -> None:
    set_list(tmp_path, INHERITED, default=True)
    make_dir(tmp_path / "run", 0o2750)
    os.umask(0o027)
    (tmp_path / "run" / "attempt-0").mkdir()
    (tmp_path / "run" / "attempt-0" / "rank-0.out").write_text("")
    assert mode_of(tmp_path / "run") == 0o2750
    assert mode_of(tmp_path / "run" / "attempt-0") == 0o2750
    assert mode_of(tmp_path / "run" / "attempt-0" / "rank-0.out") == 0o640
    assert [os.listxattr(path) for path in (tmp_path / "run").rglob("*")] == [[], []]


def test_the_mode_of_what_a_link_leads_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        set_mode(tmp_path / "link", 0o700)
    assert mode_of(tmp_path / "theirs") == 0o755
