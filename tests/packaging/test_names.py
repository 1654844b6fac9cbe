"""One name, one thing: a public class's name says which it is wherever it is read or imported.

Functions may share a name: they are called with their module in front (`store.find`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.packaging.installation import ROOT

TWICE: Mapping[str, str] = {
    "RunCallback": "one a trainer's library, of which a person has one; Lightning's checkpoints "
    "hold the state of a callback under its class's name",
}
"""Names that several classes have, and why."""


def public_classes(package: Path) -> dict[str, list[str]]:
    """Where each name is that a class at a module's top level has, by the name."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = f"{path.relative_to(package).as_posix()}:{node.lineno}"
                found.setdefault(node.name, []).append(place)
    return found


def test_a_public_class_has_a_name_of_its_own() -> None:
    several = {name: at for name, at in public_classes(ROOT / "fsdpkit").items() if len(at) > 1}
    assert {name: at for name, at in several.items() if name not in TWICE} == {}
    assert sorted(TWICE) == sorted(several), "an exception that is none any more goes away"


def test_a_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest imports them by it."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []
