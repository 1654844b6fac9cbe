"""Where a batch script's words lead to the node's own disk: by the names of such directories, and
by that of the profile. A directory that may be one or may be shared is none.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable

from fsdpkit.scheduling.batch_file.expansion import LOCAL_VARIABLES, is_of_node
from fsdpkit.scheduling.batch_file.walking import Walk

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?[-=].*)?\}?", re.ASCII | re.DOTALL)
_MOUNTS = (
    r"tmp|var/tmp|dev/shm|l_?scratch|local_?scratch|scratch_?local|scratch/local"
    r"|local/(?:scratch|user)|mnt/(?:bb|local|nvme\w*|ssd\w*)|nvme\w*|raid|scratch0|disk/scratch\w*"
)
_PART = re.compile(r"\0(\w*|\?)\0|\x01([*?])|([^\0\1]+)")
STAGE = "FSDPKIT_STAGE"
_NAME = r"[^/\s,:;=\"']*"


class Disk:
    """`local`: the profile's `storage.local`. A word's *plain* text has variables between NULs,
    and what is unknown otherwise as one without a name; wildcards stand behind \\1."""

    def __init__(self, walk: Walk, local: str) -> None:
        self.walk = walk
        self.root: str | None = None
        """The one directory on the disk that is meant."""
        user = walk.text_of("USER")
        known = re.sub(r"\$\{?(\w+)\}?", lambda m: walk.environ.get(m[1], f"\0{m[1]}\0"), local)
        own = rf"|{re.escape(known.rstrip('/'))}" if known else ""
        job = rf"{re.escape(user)}|" if user else ""
        self._path = re.compile(
            rf"(?<![\w/}}.-])((?:\0(?:{LOCAL_VARIABLES})\0|/(?:{_MOUNTS}){own})"
            rf"(?:/(?:{job}{_NAME}\0\w+\0{_NAME})(?=[\s/,:;\"'\]]|$))*)(/[^\s,:;=\"'\]]*|(?=[\s,:;\"'\]]|$))"
        )

    def plain(self, word: str) -> str:
        def part(char: str) -> str:
            if not (raw := self.walk.unknowns(char)):
                return char
            if raw[0] in ("*", "?"):
                return "\1" + raw[0]
            found = _VARIABLE.fullmatch(raw[0])
            known = found is not None and found[1] not in self.walk.set_here
            return f"\0{found[1]}\0" if found and known else "\0?\0"

        return "".join(map(part, word))

    def directories(self, words: Iterable[str]) -> list[str]:
        """Those on the disk of which something is said."""
        return [found[1] for word in words for found in self._path.finditer(self.plain(word))]

    def named(self, word: str) -> list[str]:
        """What a word names below the disk's directory."""
        found = self._path.finditer(self.plain(word))
        return [each[2].strip("/") for each in found if each[1] == self.root]

    def within(self, word: str, here: str | None = None) -> str | None:
        """The path below the disk's directory ("": itself); None: elsewhere, or not known. here:
        where a relative word is looked for."""
        text = self.plain(word)
        if not text.startswith(("/", "\0")):
            return None if here is None else normal(os.path.join(here, text))
        found = self._path.fullmatch(text)
        if found is None or found[1] != self.root or "\0" in found[2]:
            return None
        return normal(found[2].strip("/"))

    def on_stage(self, text: str, staged: Callable[[str], str], stage: str) -> str:
        """A plain text with `stage` for the directory, and where things are below it."""

        def path(found: re.Match[str]) -> str:
            if found[1] != self.root:
                return found[0]
            return f"{stage}/{staged(found[2].strip('/'))}".rstrip("/")

        return self._path.sub(path, text)

    def quoted(self, text: str) -> str | None:
        """A plain text as a shell reads it; None: it is known only where the script runs."""
        said = ""
        for name, glob, literal in _PART.findall(text):
            if name and name != STAGE and not is_of_node(name):
                return None
            said += f'"${name}"' if name else glob or shlex.quote(literal)
        return said or "''"


def normal(path: str) -> str | None:
    """A path below the disk's directory; None: it leads out of it."""
    path = os.path.normpath(path or ".")
    return None if path.startswith(("..", "/")) else "" if path == "." else path


def holds(directory: str, path: str) -> bool:
    """Whether a path is a directory's, or what is below it."""
    return path == directory or not directory or path.startswith(f"{directory}/")
