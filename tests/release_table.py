"""Which tests passed on which release of what we build on: a table in CONTRIBUTING.md from JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
OUTCOME = ("Date", "Tests", "Passed", "Failed", "Left out")


@dataclass(frozen=True)
class ReleaseTable:
    """One table. results: `<directory>/<prefix>-<release>.json`; who: the program that makes it."""

    who: str
    directory: Path
    prefix: str
    columns: Sequence[str]
    """Before those of `OUTCOME`."""
    first_cells: Callable[[Mapping[str, Any]], Sequence[str]]

    def save(self, result: Mapping[str, Any]) -> None:
        self.directory.mkdir(exist_ok=True)
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        (self.directory / f"{self.prefix}-{result['release']}.json").write_text(text, "utf-8")

    def results(self) -> list[dict[str, Any]]:
        paths = sorted(self.directory.glob(f"{self.prefix}-*.json"))
        return [json.loads(path.read_text("utf-8")) for path in paths]

    def write(self, page: Path = PAGE) -> None:
        """Put the table into the page, between the two comments that name its program."""
        page.write_text(self.within(page.read_text("utf-8")), "utf-8")

    def within(self, text: str) -> str:
        begin = f"<!-- made by {self.who}: do not edit -->"
        end = f"<!-- end of what {self.who} made -->"
        columns = (*self.columns, *OUTCOME)
        rows = ((*self.first_cells(result), *_outcome(result)) for result in self.results())
        lines = [columns, tuple("---" for _ in columns), *rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        place = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        return place.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", text)


def counted(report: Path) -> dict[str, Any]:
    """How many tests passed, which failed, and why others were left out, by a JUnit report."""
    passed, failed, left_out = 0, [], Counter[str]()
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else iter(())
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is not None:
            left_out[skipped.get("message", "")] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": sorted(set(failed)), "left_out": dict(left_out)}


def told(result: Mapping[str, Any]) -> str:
    left_out = sum(n for n in result["left_out"].values() if isinstance(n, int))
    return f"{result['passed']} passed, {len(result['failed'])} failed, {left_out} left out"


def _outcome(result: Mapping[str, Any]) -> tuple[str, ...]:
    left_out = "; ".join(f"{count}: {why}" for why, count in result["left_out"].items())
    return (
        result["date"],
        f"`{result['selection']}`" if result["selection"] else "all",
        str(result["passed"]),
        ", ".join(name.rpartition("::")[2] for name in result["failed"]) or "0",
        left_out.replace("|", "/") or "none",
    )
