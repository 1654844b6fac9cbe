"""`[slurm]` of a job: options of sbatch that no key of ours stands for (sbatch_spellings.txt).

An option that a key stands for is refused by name. Any other is sbatch's to judge: only its form is
looked at here, for plugins of a site add options of their own.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from fsdpkit.config.sbatch_spellings import KEYS, LETTERS, LONG_OPTIONS, OTHERWISE

_NAME = re.compile(r"[a-z][a-z0-9-]+")


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sbatch is told besides what the other tables stand for."""

    options: Annotated[
        dict[str, bool | int | str],
        Meta(
            description="Further long options of sbatch by name, such as licenses; true for one "
            "without a value."
        ),
    ] = {}

    def __post_init__(self) -> None:
        for name in self.options:
            if why := why_refused(name):
                raise ValueError(f"options: {why}")

    @property
    def directives(self) -> dict[str, str | None]:
        """By name, each with its value; None: a bare flag. `false` unsets one of a file below."""
        return {
            name: None if value is True or value == "" else str(value)
            for name, value in self.options.items()
            if value is not False
        }


def why_refused(name: str) -> str | None:
    """Why a job cannot give sbatch this option itself, and what to do; None if it can."""
    if name in KEYS:
        return f"--{name} is written from {KEYS[name]}: set that"
    if name in OTHERWISE:
        return f"--{name} is not for a job to set: {OTHERWISE[name]}"
    begun = sorted(each for each in LONG_OPTIONS if each.startswith(name))
    if _NAME.fullmatch(name) and begun and name not in begun:  # sbatch takes it for the whole one
        return f"{name!r} is the beginning of --{', --'.join(begun)}: write the whole name"
    if _NAME.fullmatch(name):
        return None
    if name.lstrip("-") != name:
        return f"{name!r}: write the name without dashes in front"
    if name in LETTERS:
        return f"{name!r}: write the long name, {LETTERS[name]}"
    return f"{name!r} is not the name of an option of sbatch, such as licenses"
