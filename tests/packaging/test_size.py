"""The house has a ceiling: what comes in pays by what goes out. `pytest -s` prints the count.

Lines are a proxy: never joined, never squeezed to stay below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.packaging.installation import ROOT

CEILINGS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "fsdpkit": ((".py", ".j2", ".js"), 103_100),
    "tests": ((".py",), 77_700),
    "benchmarks": ((".py",), 7_400),
}
"""By folder: the kinds of files that count, and how many lines they may have in all."""

LONGEST = 450


def lines_of(folder: Path, kinds: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """Each file of these kinds in a folder, with how many lines it has."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in kinds and path.is_file():
            yield path, path.read_bytes().count(b"\n")


@pytest.mark.parametrize("folder", CEILINGS)
def test_a_part_of_the_house_stays_below_its_ceiling(folder: str) -> None:
    kinds, ceiling = CEILINGS[folder]
    by_room: dict[str, int] = {}
    for path, lines in lines_of(ROOT / folder, kinds):
        room = path.relative_to(ROOT / folder).parts[0]
        by_room[room] = by_room.get(room, 0) + lines
    total = sum(by_room.values())
    largest = sorted(by_room.items(), key=lambda item: -item[1])[:12]
    listed = ", ".join(f"{room} {lines:,}" for room, lines in largest)
    print(f"\n{folder}: {total:,} lines of at most {ceiling:,}: {listed}")
    assert total <= ceiling


def test_no_file_outgrows_what_one_idea_needs() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path, lines in lines_of(ROOT / "fsdpkit", (".py",))
        if lines > LONGEST
    }
    assert found == set()
