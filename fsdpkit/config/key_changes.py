"""Keys that this release does not know.

A run's own records may come from an older or a newer release, and a profile may be written for a
newer one; then what this release does not know is left out and named, instead of refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from fsdpkit.config.explain import alternatives, fields_of, struct_in

OWN_TRAINER = "fsdpkit"
"""The name of fsdpkit's own trainer (config/trainers.py)."""


def without_unknown(kind: Any, values: Any, table: str = "") -> tuple[Any, list[str]]:
    """`values` with only keys that `kind` has; and those left out, as dotted keys below `table`."""
    left_out: list[str] = []

    def known(annotation: Any, value: Any, dotted: str) -> Any:
        struct = struct_in(annotation)
        if struct is not None and isinstance(value, Mapping):
            fields = fields_of(struct)
            left_out.extend(_below(dotted, key) for key in value if key not in fields)
            return {
                key: known(fields[key], below, _below(dotted, key))
                for key, below in value.items()
                if key in fields
            }
        if isinstance(value, Mapping) and (of := _of_values(annotation)) is not None:
            return {key: known(of, below, _below(dotted, key)) for key, below in value.items()}
        if isinstance(value, list) and (of := _of_values(annotation)) is not None:
            return [known(of, below, f"{dotted}[{i}]") for i, below in enumerate(value)]
        return value

    return known(kind, values, table), left_out


def _below(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _of_values(annotation: Any) -> Any:
    """The type of what a table or a list holds."""
    held = (get_args(t) for t in alternatives(annotation) if get_origin(t) in (dict, list))
    return next((args[-1] for args in held if args), None)


def other_release(what: str, written: str | None, reading: str, keys: Sequence[str]) -> str:
    """That keys of a file are not used, which another release wrote."""
    wrote = f"fsdpkit {written}" if written else "another release of fsdpkit"
    return f"{what} is from {wrote}; this is {reading}, which does not know and does not use: " + (
        ", ".join(keys)
    )


def release_of(text: str) -> tuple[int, ...]:
    """A release as numbers that compare: those that `text` begins with, as 0.2 of 0.2.0rc1."""
    found = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part[:9]) for part in found[0].split(".")] if found else []
    return tuple([*numbers, 0, 0, 0][:3])
