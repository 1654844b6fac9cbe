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
    """One that may fill the disk, or fetch from it. `before`: the launch; None: unknown."""

    step: Step
    words: tuple[str, ...]
    here: str | None
    """Where it runs, below the disk's directory; None: elsewhere."""
    before: bool | None
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

    def copied(self, made: set[str]) -> list[Copied]:
        """Empty: it is not files that are copied as they are, or not known which. made: the
        directories that are there, to which it adds its own."""
        name, (*sources, into) = self.words[0], self.operands or [""]
        if name == "mkdir":
            made |= {self.disk.within(word, self.here) or "" for word in self.operands}
        options = {*self.words[1:]} - {*self.operands}
        known = all(re.fullmatch(_HARMLESS[name], o) for o in options) if name in COPIES else False
        if not known or self.here is not None:
            return []
        copies, target = [], self.target or ""
        for word in sources:
            text = self.disk.plain(word)
            text = text if text.startswith(("/", "\0")) else f"{self.step.directory}/{text}"
            parent, _, last = text.rstrip("/").rpartition("/")
            if "\0" in text or "\1" in parent or ":" in text or self.disk.within(word) is not None:
                return []
            contents = "\1" in last or last == "." or (name == "rsync" and text.endswith("/"))
            kept = into.endswith("/") or target in made or len(sources) > 1
            kept = (kept or (name == "rsync" and "." not in last)) and not contents
            place = normal(os.path.join(target, last)) if kept else target
            pattern = os.path.normpath(text.replace("\1", ""))
            copies.append(Copied(pattern, place or "", contents))
            made |= {target} if kept or contents else {target, place or ""}
        return copies


def disk_commands(
    walk: Walk, steps: Sequence[Step], disk: Disk, at: Step | None
) -> Iterator[DiskCommand]:
    """Those that nothing decides about. at: the launch; None: it is not among the steps."""
    before, here = (True if at else None), None
    for step in steps:
        before = False if step is at else before
        words = step.words
        if words[:1] == ("srun",):
            words = SRUN.split(words[1:], lambda word: word in FILLS).rest
        name = PurePosixPath(words[0]).name if words else ""
        alone = bool(words) and not (step.within or step.piped)
        each = DiskCommand(step, (name, *words[1:]), here, before, disk)
        if name == "cd":
            here = None if words[-1] == "-" else disk.within(words[-1], here)
        if name == "trap" and len(words) > 2:
            for inner in disk_commands(walk, _inner(walk, words[1]), disk, None):
                yield replace(inner, step=step)
        elif alone and name in ("bash", "sh") and len(words) == 3:
            inner_steps = _inner(walk, words[2])
            found = [*disk_commands(walk, inner_steps, disk, None)]
            if len(found) == len(inner_steps) and all(inner.fills for inner in found):
                yield from (replace(inner, step=step, before=before) for inner in found)
        elif step is at or (alone and step.command.operator not in ("|", "|&")):
            yield each


def _inner(walk: Walk, text: str) -> list[Step]:
    """Of a shell's string."""
    try:
        return walk.inner(text)
    except BashError:
        return []
