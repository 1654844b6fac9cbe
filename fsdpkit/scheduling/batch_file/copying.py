"""The commands of a batch script that put something on the node's own disk, or fetch it from there:
which files, and where they get to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath

from fsdpkit.config.stage import item_name
from fsdpkit.scheduling.batch_file.bash import BashError
from fsdpkit.scheduling.batch_file.disks import Disk, normal
from fsdpkit.scheduling.batch_file.launch import BEFORE
from fsdpkit.scheduling.batch_file.options import SRUN
from fsdpkit.scheduling.batch_file.walking import Step, Walk

COPIES = ("cp", "rsync", "sbcast")
_UNPACKS = ("tar", "bsdtar", "unzip")
FILLS = frozenset([*COPIES, *_UNPACKS, "mkdir", "ln"])
_HARMLESS = {
    "cp": r"-[aRrpfvuLdHn]+|--(recursive|archive|preserve|verbose|force|update)\b.*",
    "rsync": r"-[avhzrtlpogDPqucW]+|--(archive|recursive|progress|info|partial|stats|compress)\b.*",
    "sbcast": r"-[pfvC]+|--(preserve|force|compress)\b.*",
}
"""The options with which all of the files are copied, and as they are."""
_INTO = "--directory="


@dataclass(frozen=True)
class Copied:
    """Files that are copied as they are. `target`: where they get to, below the disk's directory;
    `contents`: what the pattern's directory holds is in `target` then."""

    pattern: str
    target: str
    contents: bool

    @property
    def name(self) -> str:
        """Below $FSDPKIT_STAGE."""
        return item_name(self.pattern)


@dataclass(frozen=True)
class DiskCommand:
    """One that may fill the disk, or fetch from it."""

    step: Step
    words: tuple[str, ...]
    here: str | None
    """Where it runs, below the disk's directory; None: elsewhere."""
    disk: Disk = field(repr=False)

    @property
    def operands(self) -> list[str]:
        return [word for word in self.words[1:] if not word.startswith("-")]

    @property
    def target(self) -> str | None:
        """What it writes to, below the disk's directory."""
        found = self.operands[-1:]
        if self.words[0] in _UNPACKS:
            found = [value for flag, value in pairwise(self.words) if flag in ("-C", "-d")]
            found += [w.removeprefix(_INTO) for w in self.words if w.startswith(_INTO)]
        return self.disk.within(found[0] if found else ".", self.here)

    @property
    def fills(self) -> bool:
        """Whether it puts something on the disk, and nothing elsewhere."""
        name = self.words[0]
        packs = name.endswith("tar") and re.match(r"-?\w*c|--create", "".join(self.words[1:2]))
        if name not in FILLS or packs:
            return False
        if name == "mkdir":
            return None not in [self.disk.within(word, self.here) for word in self.operands]
        return self.target is not None

    def copied(self, made: set[str], *, others: bool) -> list[Copied]:
        """Empty: it is not files that are copied as they are, or not known which. made: the
        directories that are there, to which it adds its own; others: there may be more."""
        name, (*sources, into) = self.words[0], self.operands or [""]
        options = {*self.words[1:]} - {*self.operands}
        known = all(re.fullmatch(_HARMLESS[name], o) for o in options) if name in COPIES else False
        if not known:
            return []
        copies, target = [], self.target or ""
        for word in sources:
            text = self.disk.plain(word)
            if not text.startswith(("/", "\0")):
                text = f"{self.step.directory if self.here is None else ''}/{text}"
            parent, _, last = text.rstrip("/").rpartition("/")
            local = self.disk.within(word, self.here) is not None
            if local or "\0" in text or "\1" in parent or ":" in text:
                return []
            contents = "\1" in last or last == "." or (name == "rsync" and text.endswith("/"))
            kept = into.endswith("/") or target in made or len(sources) > 1
            kind = os.path.splitext(last)[1]
            alike = os.path.splitext(into)[1] == kind and (kind or not others)
            if not (kept or contents or alike):
                return []
            kept = (kept or (name == "rsync" and "." not in last)) and not contents
            place = normal(os.path.join(target, last)) if kept else target
            pattern = os.path.normpath(text.replace("\1", ""))
            copies.append(Copied(pattern, place or "", contents))
            made |= {target} if kept or contents else {target, place or ""}
        return copies


def disk_commands(walk: Walk, steps: Sequence[Step], disk: Disk) -> Iterator[DiskCommand]:
    """Those that nothing decides about, and that no other command feeds or reads."""
    here = None
    for step in steps:
        words = _behind_starters(step.words)
        name = PurePosixPath(words[0]).name if words else ""
        if name == "cd":
            here = None if words[-1] == "-" else disk.within(words[-1], here)
        piped = step.piped or step.command.operator in ("|", "|&")
        fed = any(each.lstrip("0123456789").startswith("<") for each in step.command.redirections)
        if name != "trap" and (step.within or piped or fed):
            continue
        if inner := inner_steps(walk, step):
            found = [*disk_commands(walk, inner, disk)]
            if name == "trap" or (len(found) == len(inner) and all(each.fills for each in found)):
                yield from (replace(each, step=step) for each in found)
        elif words:
            yield DiskCommand(step, (name, *words[1:]), here, disk)


def inner_steps(walk: Walk, step: Step) -> list[Step]:
    """Those of the text that a command hands to a shell, or leaves for the end."""
    words = _behind_starters(step.words)
    name = PurePosixPath(words[0]).name if words else ""
    at = {"bash": 2, "sh": 2, "trap": 1}.get(name, len(words))
    try:
        return walk.inner(words[at]) if len(words) == (3 if at < 3 else -1) else []
    except BashError:
        return []


def _behind_starters(words: tuple[str, ...]) -> tuple[str, ...]:
    while words and (words[0] == "srun" or words[0] in BEFORE):
        srun = words[0] == "srun"
        words = SRUN.split(words[1:], lambda word: word in FILLS).rest if srun else words[1:]
    return words
