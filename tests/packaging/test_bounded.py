"""SECURITY.md lists each limit of what is read, as bounded.py has it."""

from __future__ import annotations

import re

from fsdpkit import bounded
from tests.packaging.installation import ROOT


def in_words(most: int, unit: str) -> str:
    if unit == "bytes" and most >= 1 << 30:
        return f"{most >> 30} GiB"
    if unit == "bytes" and most % (1 << 20) == 0:
        return f"{most >> 20} MiB"
    return f"{most:,} {unit}"


def test_security_lists_every_limit_and_no_other() -> None:
    rows = [f"| {of} | {in_words(most, unit)} |" for of, most, unit in bounded.LIMITS]
    section = (ROOT / "SECURITY.md").read_text().partition("## Limits of what is read")[2]
    listed = re.findall(r"^\| (?!what \||--).*$", section.partition("\n## ")[0], re.MULTILINE)
    assert listed == rows, "\n".join(rows)


def test_each_limit_is_used() -> None:
    names = {name for name in vars(bounded) if name.isupper() and name != "LIMITS"}
    sources = [
        path.read_text() for path in (ROOT / "fsdpkit").rglob("*.py") if path.name != "bounded.py"
    ]
    own = (ROOT / "fsdpkit" / "bounded.py").read_text()
    unused = [
        name
        for name in sorted(names)
        if not any(re.search(rf"\b{name}\b", text) for text in sources)
        and len(re.findall(rf"\b{name}\b", own)) < 2
    ]
    assert not unused
