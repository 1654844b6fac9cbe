"""What a batch script copies to the disks of its nodes, as `[stage]` and as a step of each node.

A copy of files becomes `stage.data`, and what the program is handed of it begins with {stage}. What
is unpacked, or copied in a way that `[stage]` does not know, keeps its command, but every node runs
it: in a batch script it fills the disk of the first node alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from fsdpkit.config.stage import item_name
from fsdpkit.scheduling.batch_file.copying import (
    COPIES,
    FILLS,
    Copied,
    DiskCommand,
    disk_commands,
    inner_steps,
)
from fsdpkit.scheduling.batch_file.disks import STAGE, Disk, holds, normal
from fsdpkit.scheduling.batch_file.launch import StartedProgram
from fsdpkit.scheduling.batch_file.resources import Outcome
from fsdpkit.scheduling.batch_file.walking import Step, Walk

_STAGE = f"\0{STAGE}\0"
_ARCHIVE = re.compile(r"/[^\0\1]*\.(tar(\.\w+)?|tgz|tbz2?|txz|zip)")
_EACH_NODE: Outcome = ("taken", "steps.each_node: on every node, not on the first alone")
_UNKNOWN: Outcome = ("no home", "what it says is known only where the script runs")
_NOT_WHOLE: Outcome = ("no home", "[stage] copies whole files and directories that are known")
_NO_DISK: Outcome = (
    "no home",
    "[stage] copies to every node once the profile names the nodes' own disk (storage.local)",
)
_ENVIRONMENT: Outcome = (
    "no home",
    "environment.venv or conda names one that all nodes see; [stage] environment = true copies it",
)


class Staging:
    """`local`: the profile's `storage.local`, empty if it names none; None: nothing is copied.
    Writes the launch's entry and arguments anew."""

    def __init__(self, walk: Walk, at: Step, launch: StartedProgram, local: str | None) -> None:
        self.walk, self.disk = walk, Disk(walk, local or "")
        self.data: list[str] = []
        self.back: list[str] = []
        self.lines: list[str] = []
        """What every node runs before its ranks."""
        self.outcomes: dict[int, Outcome] = {}
        """By the id of a step."""
        self._moved: dict[str, str] = {}
        """What lies elsewhere below $FSDPKIT_STAGE than it did below the disk's directory."""
        if local is None:
            return
        made = self._choose_directory(launch)
        inside = disk_commands(walk, launch.steps, self.disk)
        self.commands = [*disk_commands(walk, walk.steps, self.disk), *inside]
        fills = [each for each in self.commands if each.fills]
        unpacked = any(each.words[0] not in (*COPIES, "mkdir") for each in fills)
        self.fills = {each: each.copied(made, others=unpacked) for each in fills}
        started = self._original(launch, at)
        self._leave_environments()
        read = [path for word in launch.args for path in self.disk.named(word)]
        if local and read and self._staged(read):
            launch.args = tuple(map(self._in_args, launch.args))
            return
        self.data, self.lines = [], []
        lost = any(walk.unknowns(word) and self.disk.named(word) for word in launch.args)
        for each, copies in self.fills.items():
            if copies == [started] and not read:
                self.outcomes[id(each.step)] = ("not needed", "the program is not copied")
            elif lost:
                self.outcomes[id(each.step)] = _NOT_WHOLE if local else _NO_DISK
            else:
                self._every_node(each, staged=False)

    def _choose_directory(self, launch: StartedProgram) -> set[str]:
        """The one that is filled, and that the program reads, if there are several; the directories
        that may be made below it."""
        fills = FILLS | {"cd"}
        outer = (*self.walk.steps, *launch.steps)
        steps = [e.words for step in outer for e in (step, *inner_steps(self.walk, step))]
        named = self.disk.directories(word for words in steps for word in words)
        filled = self.disk.directories(w for words in steps if fills & {*words} for w in words)
        read = self.disk.directories(launch.args)
        both = [each for each in read if each in filled]
        self.disk.root = next(iter([*both, *filled, *read, *named]), None)
        made = (self.disk.within(word) for words in steps if "mkdir" in words for word in words)
        return {"", *filter(None, made)}

    def _original(self, launch: StartedProgram, at: Step) -> Copied | None:
        """Has the program started where it was copied from; what copied it."""
        moved = here = None
        for each in self.commands:
            moved = each.step if each.words[0] == "cd" else moved
            if each.step is at and moved is not None and (here := each.here) is not None:
                self.outcomes[id(moved)] = ("no home", "a job runs where it is submitted from")
        is_file = launch.entry.endswith(".py")
        path = self.disk.within(launch.entry, here) if is_file else None
        for copy in (copy for copies in self.fills.values() for copy in copies):
            if path is not None and holds(copy.target, path):
                whole = os.path.dirname(copy.pattern) if "*" in copy.pattern else copy.pattern
                below = os.path.relpath(path, copy.target or ".")
                launch.entry = os.path.normpath(os.path.join(whole, below))
                return copy
        return None

    def _leave_environments(self) -> None:
        """One that the script makes on the disk is none that a job names."""
        for step in self.walk.steps:
            starts = step.words[:1] in (("source",), (".",)) or step.words[1:2] == ("activate",)
            if not starts or not (path := self.disk.within(step.words[-1])):
                continue
            into = [(each, each.target) for each in self.commands]
            gone = [each for each, target in into if target and holds(target, path)]
            read = {self.disk.within(word) for each in gone for word in each.operands}
            gone += [e for e, found in self.fills.items() if {copy.target for copy in found} & read]
            if gone or self.walk.unknowns(step.words[-1]):
                self.outcomes[id(step)] = _ENVIRONMENT
                self.outcomes |= {id(each.step): _ENVIRONMENT for each in gone}
        kept = {e: found for e, found in self.fills.items() if id(e.step) not in self.outcomes}
        self.fills = kept

    # ---- Copied by [stage] ---------------------------------------------------------------------

    def _staged(self, read: Sequence[str]) -> bool:
        """Whether there is anything for it."""
        copied = {e: found for e, found in self.fills.items() if found and self._fits(e, found)}
        for each in self.fills:
            for copy in copied.get(each, ()):
                self._stage(copy, self._is_shared(each, copy), read)
                note = f"stage.data: {{stage}}/{copy.name}"
                self.outcomes[id(each.step)] = ("taken", note)
            if each not in copied:
                self._every_node(each, staged=True)
        for each in self.commands:
            self._fetch(each)
        return bool(self.data or self.back)

    def _fits(self, command: DiskCommand, copies: Sequence[Copied]) -> bool:
        """Whether each copy can have its name, and be left as it is."""
        for copy in copies:
            every = [other for found in self.fills.values() for other in found]
            before = {other.name for other in every[: every.index(copy)]}
            others = {other.target for other in every if other.pattern != copy.pattern}
            shared = self._is_shared(command, copy) and not copy.contents
            if shared or copy.name in {"", *before, *others}:
                return False
        return True

    def _is_shared(self, command: DiskCommand, copy: Copied) -> bool:
        """Whether something else is written to where a copy is."""
        places: list[str] = []
        for each, copies in self.fills.items():
            if each is not command and each.words[0] != "mkdir":
                places += [other.target for other in copies] or [each.target or ""]
        return any(holds(copy.target, place) for place in places)

    def _stage(self, copy: Copied, shared: bool, read: Sequence[str]) -> None:
        """Where the script had it, or where its own name says, whichever the program can read."""
        self.data += [copy.pattern] if copy.pattern not in self.data else []
        above = any(path != copy.target and holds(path, copy.target) for path in read)
        natural = copy.target == copy.name or (copy.target and not above)
        if natural and not shared:
            self._moved[copy.target] = copy.name
        elif copy.contents:
            if copy.target:
                self._shell("mkdir", "-p", f"{_STAGE}/{copy.target}")
            self._shell("ln", "-sfn", f"{_STAGE}/{copy.name}/\1*", f"{_STAGE}/{copy.target}")
        else:
            self._shell("mkdir", "-p", f"{_STAGE}/{os.path.dirname(copy.target)}")
            self._shell("ln", "-sfn", f"{_STAGE}/{copy.name}", f"{_STAGE}/{copy.target}")

    def _is_copy(self, path: str) -> bool:
        return any(holds(target, path) for target in self._moved)

    def _there(self, path: str) -> str:
        """Where it is below $FSDPKIT_STAGE."""
        path = normal(path) or ""
        for target, name in self._moved.items():
            if holds(target, path):
                return normal(os.path.join(name, os.path.relpath(path, target))) or ""
        return path

    def _in_args(self, word: str) -> str:
        """As it was, if it is not known even so."""
        text = self.disk.on_stage(plain := self.disk.plain(word), self._there, "{stage}")
        return word if text == plain or "\0" in text or "\1" in text else text

    def _fetch(self, command: DiskCommand) -> None:
        """What is copied from the disk when the program has ended."""
        if command.here is not None or id(command.step) in self.outcomes:
            return
        name, plain = command.words[0], [self.disk.plain(word) for word in command.operands]
        paths = [self.disk.within(os.path.dirname(w) if "*" in w else w) for w in plain]
        if name == "rm" and paths and None not in paths:
            self.outcomes[id(command.step)] = ("not needed", "fsdpkit removes what it copies")
        back = [path for path in paths[:-1] if path and not self._is_copy(path)]
        if name in ("cp", "mv", "rsync") and paths[-1:] == [None] and len(back) == len(paths) - 1:
            self.back += [path for path in back if path not in self.back]
            note = "stage.back: from every node to attempt-N/back/ in the run's directory"
            note += ", and nothing else of it" * (command.step.words[0] == "trap")
            self.outcomes[id(command.step)] = ("taken", note)

    # ---- Done by every node --------------------------------------------------------------------

    def _every_node(self, command: DiskCommand, *, staged: bool) -> None:
        words = [self.disk.plain(word) for word in command.words]
        name, place = words[0], command.step.directory
        if name == "mkdir":
            made = {self.disk.within(word, command.here) or "" for word in command.operands}
            words = [name, "-p", *(word for word in words[1:] if word != "-p")]
            if staged and made <= {"", *self._moved}:
                self.outcomes[id(command.step)] = ("not needed", "fsdpkit makes it")
                return
        words = ["cp", *words[-2:]] if name == "sbcast" else words
        words.insert(1, "-o") if name == "unzip" else None  # nobody is there to be asked
        if command.here is not None:
            place = f"{self.disk.root}/{command.here}"
        if staged:
            words = [self._archive(word, command) for word in words]
            words = [self.disk.on_stage(word, self._there, _STAGE) for word in words]
            place = self.disk.on_stage(place, self._there, _STAGE)
        inside = place != self.walk.slurm["SLURM_SUBMIT_DIR"]
        known = self._shell(*words, directory=place if inside else None)
        self.outcomes[id(command.step)] = _EACH_NODE if known else _UNKNOWN

    def _archive(self, word: str, command: DiskCommand) -> str:
        """One that is unpacked is copied to every node like any file."""
        if command.words[0] in COPIES or not _ARCHIVE.fullmatch(word) or self.disk.within(word):
            return word
        name = PurePosixPath(word).name
        if word not in self.data and name in {*map(item_name, self.data)}:
            return word
        self.data += [word] if word not in self.data else []
        return f"{_STAGE}/{name}"

    def _shell(self, *words: str, directory: str | None = None) -> bool:
        """Whether it can be said."""
        quoted = [self.disk.quoted(word) for word in words]
        place = None if directory is None else self.disk.quoted(directory)
        line = " ".join(filter(None, quoted))
        if None in quoted or (directory is not None and place is None):
            return False
        self.lines.append(line if place is None else f"(cd {place}; {line})")
        return True
