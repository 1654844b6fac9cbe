"""An entry of the table of what to do (table.py)."""

from __future__ import annotations

import msgspec

from fsdpkit.failures.advice.facts import Phase, Scope


class Advice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of failure, and what to do about it; the files *.toml hold them."""

    about: str
    """What has happened, for the page on the cause."""
    say: tuple[str, ...]
    """Sentences. `[container] …`: only then (table.py has the conditions); `{path}`: a name
    (facts.py), without which the sentence is left out; `{set:KEY=VALUE}`: the option, unless the
    job has it."""
    words: tuple[str, ...] = ()
    """In small letters; any of them must stand in what was said, with anything for `…`, after
    `^` at its beginning."""
    causes: tuple[str, ...] = ()
    """Empty: any."""
    scopes: tuple[Scope, ...] = ()
    phases: tuple[Phase, ...] = ()
    around: bool = False
    """Whether the words may also stand in the lines before."""
    killed: bool = False
    """Only where no more than the signal is known."""
