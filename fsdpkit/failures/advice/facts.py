"""What is known of a failure when it is decided what to do about it, and the names in its words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from fsdpkit.failures.stacks import Frame

Scope = Literal["rank", "node", "all", "only-node", "job"]
"""Who failed like this: a rank; all ranks of one node of several, or the node itself; several nodes
alike; the only node that there is; nobody in particular."""
Phase = Literal["loading", "saving", "staging"]
"""What failed: a checkpoint's reading or writing, or the copy on the nodes' own disks."""

_IN_WORDS = {
    "path": (
        re.compile(
            r"(?:\A|(?<!File )['\"<`(=\s])(/[\w.@+~-]+(?:/[\w.@+~:-]*[\w@+~-])+)"
            r"|\[Errno \d+\] [\w ]+: '([\w.@+~-][\w.@+~/-]*)'"
        ),
        "said",
    ),
    "port": (re.compile(r"(?i)\bport[:= ]+(\d{2,5})\b|[\]\d\s]:(\d{4,5})\b"), "said"),
    "module": (re.compile(r"No module named ['\"]?([\w.]+)"), "said"),
    "library": (re.compile(r"\b(lib[\w.+-]+?\.so[\w.]*\b)|cannot find -l([\w+-]+)"), "said"),
    "repository": (re.compile(r"huggingface\.co/((?!api/)[\w.-]+/[\w.-]*\w)"), "said"),
    "lock": (
        re.compile(r"(/[\w.@+~/-]{1,256}\.lock\b|/[\w.@+~/-]{1,256}/torch_extensions/[\w./-]*\w)"),
        "around",
    ),
}
"""Names that stand in what was said, or in the lines around it."""
_MISSED_KEY = re.compile(r"^KeyError: '([A-Z][A-Z0-9_]+)'")
_OF_OS = re.compile(r"\bos(?:\.py)?>?$")
_LONGEST = 256
_PEER = re.compile(r"(?i)\brank (\d+)\b")
_FUNCTIONS: tuple[tuple[Phase, tuple[str, ...]], ...] = (
    ("saving", ("save_",)),
    ("loading", ("load_state", "load_checkpoint", "load_ckpt", "resume", "restore")),
)
"""How the names of functions begin, behind underscores and `async_`."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one failure; None and empty: not known."""

    cause: str
    run: str
    said: str = ""
    """What shows it, in full: type and message of an exception, or a line."""
    around: str = ""
    """The last lines before that; of a job that ended from outside, those that most of its ranks
    wrote last."""
    speaker: Literal["rank", "agent", "batch"] = "rank"
    killed: bool = False
    """Whether only the signal is known that ended it."""
    scope: Scope = "job"
    apart: bool = False
    """Whether ranks of other nodes are known to have come further."""
    rank: int | None = None
    node: str | None = None
    frames: tuple[Frame, ...] = ()
    place: str | None = None
    """File and line of the script where it arose."""
    earlier: str | None = None
    """The last exception that the process, or one of its own, printed before."""
    source: str | None = None
    """The line of the script at which an exception arose."""
    settings: Mapping[str, object] = {}
    """The job's own, and the defaults where they decide what happens, by dotted keys."""
    reads_training: bool = True
    taken: bool = False
    """Whether a file was missed by a call that removes or renames files."""
    staging: bool = False
    """Whether files were still being copied to the nodes."""

    @property
    def container(self) -> bool:
        said = self.said.lower()
        engines = ("pyxis", "enroot", "apptainer", "singularity", "fatal:   ")
        return bool(self.settings.get("environment.container")) or any(e in said for e in engines)

    @property
    def may_exclude(self) -> bool:
        """Whether the job may go without the node: others of it did not fail like this."""
        hardware = self.cause in ("bad-gpu", "node-failure")
        one = self.scope == "node" or (self.scope == "rank" and (self.apart or hardware))
        return self.node is not None and one

    @property
    def phase(self) -> Phase | None:
        """What the calls that failed were about, by their names."""
        if self.staging:
            return "staging"
        for frame in reversed(self.frames):
            name = frame.function.lstrip("_").removeprefix("async_") + "_"
            for phase, begins in _FUNCTIONS:
                if name.startswith(begins):
                    return phase
        return None

    def name(self, name: str) -> str | None:
        """What a sentence of an advice names so; None where it is not known."""
        if name in _IN_WORDS:
            words, place = _IN_WORDS[name]
            return _first(words, getattr(self, place))
        if name in ("node", "run", "place", "earlier", "source"):
            known: str | None = getattr(self, name)
            return known and known.replace("`", "'")[:_LONGEST]  # an advice quotes it in backticks
        if name == "exclude":
            return f"--set resources.exclude={self.node}" if self.may_exclude else None
        if name == "directory":
            return (self.name("path") or "").rpartition("/")[0] or None
        if name == "variable":
            of_environment = any(_OF_OS.search(frame.file) for frame in self.frames[-1:])
            return _first(_MISSED_KEY, self.said) if of_environment else None
        if name == "peer":
            return next((n for n in _PEER.findall(self.said) if n != str(self.rank)), None)
        assert name == "rank", name
        return None if self.rank is None else str(self.rank)


def _first(words: re.Pattern[str], text: str) -> str | None:
    found = words.search(text)
    return next(filter(None, found.groups()), None) if found else None
