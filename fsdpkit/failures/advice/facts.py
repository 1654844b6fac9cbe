"""What is known of a failure when it is decided what to do about it, and the names in its words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from fsdpkit.failures.tracebacks import Frame

Scope = Literal["rank", "node", "all", "only-node", "job"]
"""Who failed like this: one rank of those on its node; one node of several; several nodes alike;
the only node that there is; nobody in particular."""
Phase = Literal["loading", "saving"]

_PATH = re.compile(r"['\"<`(=\s](/[\w.@+~-]+(?:/[\w.@+~:-]*[\w@+~-])+)")
_PORT = re.compile(r"(?i)\bport[:= ]+(\d{2,5})\b|[\]\w.]:(\d{4,5})\b")
_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")
_LIBRARY = re.compile(r"\b(lib[\w+-]+\.so[\w.]*\b)|cannot find -l([\w+-]+)")
_REPOSITORY = re.compile(r"huggingface\.co/((?!api/)[\w.-]+/[\w.-]*\w)")
_OF_ENVIRONMENT = re.compile(r"^KeyError: '([A-Z][A-Z0-9_]+)'")
_LOCK = re.compile(r"(/\S*(?:\.lock|torch_extensions/\S*\w))")
_PEER = re.compile(r"(?i)\brank (\d+)\b")
_SIZE = re.compile(r"Tried to allocate ([\d.]+ [KMGT]iB)")
_FUNCTIONS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("saving", re.compile(r"^_*(?:async_)?(?:save|dump|write)(?:_|$)|_save(?:_|$)")),
    ("loading", re.compile(r"^_*(?:load|resume|restore)(?:_|$)|_load(?:_|$)")),
)


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
    rank: int | None = None
    node: str | None = None
    frames: tuple[Frame, ...] = ()
    place: str | None = None
    """File and line of the script where it arose."""
    silent: str | None = None
    """The rank, of those that only lost others or waited for them, that said nothing."""
    earlier: str | None = None
    """The last exception that the process, or one of its own, printed before."""
    source: str | None = None
    """The line of the script at which an exception arose."""
    settings: Mapping[str, object] = {}
    """The job's own, and the defaults where they decide what happens, by dotted keys."""
    reads_training: bool = True

    @property
    def container(self) -> bool:
        said = self.said.lower()
        engines = ("pyxis", "enroot", "apptainer", "singularity", "fatal:   ")
        return bool(self.settings.get("environment.container")) or any(e in said for e in engines)

    @property
    def may_exclude(self) -> bool:
        """Whether the job may go without the node: others of it did not fail like this."""
        return self.node is not None and self.scope in ("rank", "node")

    @property
    def phase(self) -> Phase | None:
        """What the calls that failed were about, by their names."""
        for frame in reversed(self.frames):
            for phase, name in _FUNCTIONS:
                if name.search(frame.function):
                    return phase
        return None

    @property
    def names(self) -> dict[str, str | None]:
        """What a sentence of an advice may name."""
        path = _first(_PATH, self.said)
        of_environment = any(re.search(r"\bos(?:\.py)?>?$", f.file) for f in self.frames[-1:])
        return {
            "run": self.run,
            "node": self.node,
            "rank": None if self.rank is None else str(self.rank),
            "source": self.source,
            "exclude": f"--set resources.exclude={self.node}" if self.may_exclude else None,
            "path": path,
            "directory": path and path.rpartition("/")[0],
            "lock": _first(_LOCK, self.around),
            "peer": next((n for n in _PEER.findall(self.said) if n != str(self.rank)), None),
            "earlier": self.earlier,
            "silent": self.silent,
            "port": _first(_PORT, self.said),
            "module": _first(_MODULE, self.said),
            "library": _first(_LIBRARY, self.said) or _first(_LIBRARY, self.around),
            "repository": _first(_REPOSITORY, self.said),
            "variable": _first(_OF_ENVIRONMENT, self.said) if of_environment else None,
            "size": _first(_SIZE, self.said),
            "place": self.place,
        }


def _first(words: re.Pattern[str], text: str) -> str | None:
    found = words.search(text)
    return next(filter(None, found.groups()), None) if found else None
