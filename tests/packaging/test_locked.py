"""locked.txt: what a run needs beside torch and what builds the package, at the tested versions,
each file by its digest."""

from __future__ import annotations

import sys

import pytest

from tests.packaging.installation import ROOT
from tests.packaging.release import locked, name_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module", name="locked")
def in_locked_txt() -> list[tuple[str, str, str]]:
    return locked(ROOT)


def test_whatever_is_installed_or_builds_us_is_locked_and_torch_is_not(
    locked: list[tuple[str, str, str]],
) -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*whole["project"]["dependencies"], *whole["build-system"]["requires"]]
    assert {name_of(text) for text in needed} - {name for name, _, _ in locked} == set()
    assert "torch" not in {name for name, _, _ in locked}, "it comes from where the centre has it"


def test_each_has_digests(locked: list[tuple[str, str, str]]) -> None:
    assert locked
    assert [name for name, _, rest in locked if "--hash=sha256:" not in rest] == []


def test_the_versions_are_those_that_the_tests_ran_with(locked: list[tuple[str, str, str]]) -> None:
    pinned = {
        name_of(line): line.partition("==")[2].split()[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    newest = {name: version for name, version, rest in locked if "< '3.11'" not in rest}
    assert {name: pinned[name] for name in newest} == newest
