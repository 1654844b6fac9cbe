"""What became of all attacks, as a file: results.json, made by

    FSDPKIT_ATTACK_RESULTS=tests/attackers/results.json pytest -n0 tests/slurm/test_attacks.py

By place and kind of attack: `tried`, how often; `believed`, how often it was answered as an agent's
would be, its code ran, or a run was said to be a success that it was not; `runs` that it was tried
on, by itself or with others, and how many of these it was `harmful` to: they did not end with the
losses of an undisturbed one. Then how each of these runs went, and who listens where.

`python -m tests.attackers.results` puts the tables into SECURITY.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

DOOR, STORE = "the agents' port", "the ranks' store"
VARIABLE = "FSDPKIT_ATTACK_RESULTS"
COMMITTED = Path(__file__).with_name("results.json")
ROOT = COMMITTED.parents[2]
PAGE = ROOT / "SECURITY.md"
RENDERING = ROOT / "tests" / "rendering"
WHO = "tests/attackers/results.py"
WORDS = {
    "forge": "claims, orders and reports signed with other secrets, or the previous attempt's",
    "echo": "messages from the head, sent back to it and to others",
    "speak_torch": "torch's own protocol",
    "record": "recording the network and replaying it",
    "noise": "random bytes, and other protocols",
    "slow": "incomplete claims and requests",
    "idle": "silent connections",
    "hurry": "connections closed at once, hundreds per second",
    "plant_pickle": "pickles that run a command, in every key",
    "spoil": "the same in each new key during rendezvous",
    "delete": "keys deleted",
    "overwrite": "keys overwritten with random bytes",
    "flood": "100 MB in 2,000 keys",
}
"""Each kind of attack, for people."""


@dataclass
class Kind:
    tried: int = 0
    believed: int = 0
    runs: int = 0
    harmful: int = 0


@dataclass
class Attacked:
    """A run. troubles: why its ranks were started again, but for those that the test killed."""

    shape: str
    place: str
    state: str
    undisturbed_losses: bool
    troubles: list[str]


@dataclass
class Results:
    attacks: dict[str, dict[str, Kind]] = field(default_factory=dict)
    """By place and name."""
    runs: list[Attacked] = field(default_factory=list)
    listening: dict[str, list[str]] = field(default_factory=dict)
    """By shape of run: who listens where."""

    def kind(self, place: str, name: str) -> Kind:
        return self.attacks.setdefault(place, {}).setdefault(name, Kind())

    def add(self, place: str, name: str, done: tuple[int, int]) -> None:
        tried, believed = done
        self.kind(place, name).tried += tried
        self.kind(place, name).believed += believed

    def ended(self, run: Attacked, names: Iterable[str], *, believed: bool) -> None:
        """A run on which these were tried."""
        self.runs.append(run)
        harmed = not (run.state == "COMPLETED" and run.undisturbed_losses)
        for name in set(names):
            self.kind(run.place, name).runs += 1
            self.kind(run.place, name).harmful += harmed
            self.kind(run.place, name).believed += believed

    def listen(self, shape: str, found: Iterable[tuple[str, str]]) -> None:
        self.listening[shape] = sorted({f"{who}: {where}" for who, where in found})

    def write(self, path: Path) -> None:
        text = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)
        path.write_bytes(text + b"\n")


def of_file(path: Path = COMMITTED) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def tables(results: Results) -> str:
    """For people."""
    attacks = [
        [
            place,
            WORDS[name],
            f"{kind.tried:,}",
            str(kind.believed),
            f"{kind.harmful} of {kind.runs}",
        ]
        for place, kinds in sorted(results.attacks.items())
        for name, kind in sorted(kinds.items())
    ]
    hostile = json.loads((RENDERING / "hostile_templates.json").read_text())
    counts = [f"{hostile['tried']:,}", str(hostile["accepted"]), str(hostile["harmful"])]
    attacks.append(["templates", "hostile templates, rendered", *counts])
    for program, found in json.loads((RENDERING / "hostile_strings.json").read_text()).items():
        counts = [f"{found['tried']:,}", str(found["changed"]), str(found["changed"])]
        attacks.append(["values", f"strings that break out of quotes, read by {program}", *counts])
    attacks += [[*row, "0", "0"] for row in _held_by_tests()]
    runs = [
        [
            run.shape,
            run.place,
            run.state,
            "yes" if run.undisturbed_losses else "no",
            "; ".join(run.troubles) or "none",
        ]
        for run in results.runs
    ]
    return "\n\n".join(
        [
            _table(["where", "what", "tried", "believed", "harmful"], attacks),
            "Each of these runs was attacked in many ways; the last column lists the failures of "
            "its ranks that followed:",
            _table(
                ["run", "attacked at", "ended", "losses as undisturbed", "failures of ranks"],
                runs,
            ),
        ]
    )


def _held_by_tests() -> list[list[str]]:
    """Where, what and how many, of what tests hold at zero whenever they run."""
    from tests.cli.test_terminal import COMMANDS
    from tests.runs.test_hostile_records import NO_FILES, OF_ATTEMPT, RECORDS, WRONG

    places = len(RECORDS) + len(OF_ATTEMPT) + 1
    return [
        [
            "records",
            "pipes, devices, links, 1 TB and deep nesting in place of files",
            f"{len(NO_FILES) * places}",
        ],
        [
            "records",
            "values that look like options, name other runs or are no numbers",
            f"{len(WRONG)}",
        ],
        ["the terminal", "Unicode characters, printed", f"{sys.maxunicode + 1:,}"],
        [
            "the terminal",
            "commands that print a poisoned run or poisoned text",
            f"{len(COMMANDS)}",
        ],
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def within(text: str, results: Results) -> str:
    """The page with these tables between the two comments that name this program."""
    begin, end = f"<!-- made by {WHO}: do not edit -->", f"<!-- end of what {WHO} made -->"
    place = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    return place.sub(lambda _: f"{begin}\n\n{tables(results)}\n\n{end}", text)


if __name__ == "__main__":
    PAGE.write_text(within(PAGE.read_text("utf-8"), of_file()), "utf-8")
