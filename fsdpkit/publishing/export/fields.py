"""What a portal's form asks for, and what it may say.

Each field reaches the script as text in a variable of the environment, from whoever can fill in a
form. Nothing is believed: the script checks every one (`export.checks`) before it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fsdpkit.config.fields import Scalar
from fsdpkit.config.template import Parameter
from fsdpkit.publishing.export.posix_pattern import for_bash

_WORD = "[A-Za-z0-9_./@%+,=:-]"
_PATH = "[A-Za-z0-9_./@%+,=:-]*"
_START = "[A-Za-z0-9_./@%+,=:]"  # no dash, which would begin an option


@dataclass(frozen=True)
class Field:
    """One value that the form asks for. pattern: POSIX's extended form, for the whole text."""

    key: str
    label: str
    help: str
    kind: Literal["int", "float", "text", "words", "choice"]
    allowed: str
    """What may be said, in words."""
    pattern: str
    default: Scalar | None = None
    low: float | None = None
    high: float | None = None
    choices: Sequence[str] = ()
    longest: int = 1000
    path: bool = False
    """Whether it is a path, which may not go upwards."""

    @property
    def variable(self) -> str:
        """The variable that the script finds it in."""
        return f"FSDPKIT_FORM_{self.key.upper()}"

    def allows(self, text: str) -> bool:
        """Whether a text in Python's own reading of the pattern; the script decides in bash's."""
        if len(text) > self.longest or (self.path and "/../" in f"/{text}/"):
            return False
        return re.fullmatch(self.pattern, text) is not None

    @property
    def shown(self) -> str:
        """The default as a form shows it."""
        if isinstance(self.default, float):
            return decimal(self.default)
        return "" if self.default is None else str(self.default)

    @property
    def may_be_empty(self) -> bool:
        return self.kind == "words"


SCRIPT = Field(
    "script",
    "Training script",
    "A Python file, by its path or relative to the job's directory.",
    "text",
    "the path of a Python file, of letters, digits and ._/@%+,=:-, no dash in front, no ..",
    rf"{_START}{_PATH}\.py",
    "train.py",
    path=True,
)
ARGUMENTS = Field(
    "arguments",
    "Arguments",
    "Arguments of the script, with spaces between them.",
    "words",
    "words of letters, digits and ._/@%+,=:-, with one space between two",
    f"{_WORD}+( {_WORD}+)*",
    "",
    longest=4000,
)
PYTHON = {
    "venv": Field(
        "environment",
        "Python environment",
        "Directory of a virtual environment that has torch and fsdpkit.",
        "text",
        "the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..",
        rf"/{_PATH}",
        path=True,
    ),
    "conda": Field(
        "environment",
        "Conda environment",
        "Name or path of a conda environment that has torch and fsdpkit.",
        "text",
        "a name or path of letters, digits and ._/@%+,=:-, no dash in front, no ..",
        rf"{_START}{_PATH}",
        path=True,
    ),
}


DIRECTORY = Field(
    "directory",
    "Directory of the job",
    "The training script lies in it, and the run is written to `runs` in it.",
    "text",
    "the whole path of a directory, of letters, digits and ._/@%+,=:-, no ..",
    rf"/{_PATH}",
    path=True,
)


def gpus_field(most: int) -> Field:
    return Field(
        "gpus",
        "GPUs per node",
        "As many ranks run on each node.",
        "int",
        f"a whole number from 1 to {most}",
        "[1-9][0-9]{0,3}",
        most,
        1,
        most,
    )


_UNITS = {
    "s": "seconds",
    "min": "minutes",
    "h": "hours",
    "kb": "kB",
    "mb": "MB",
    "gb": "GB",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
}
_SHORT = frozenset({"amd", "cpu", "cuda", "gpu", "io", "ip", "mpi", "nccl", "numa", "omp", "rccl"})
"""Words that people write in capitals."""


def label_of(name: str) -> str:
    """A parameter's name in words: `min_free_gb` is `Min free (GB)`."""
    words = [word for word in name.split("_") if word]
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    if unit:
        words.pop()
    said = [word.upper() if word in _SHORT else word for word in words]
    label = " ".join(said)
    return f"{label[0].upper()}{label[1:]}" + (f" ({unit})" if unit else "")


def parameter_field(name: str, parameter: Parameter) -> Field | str:
    """The field of a template's parameter, or why the form cannot ask for it."""
    if parameter.default is None:
        return "it is unset by default, and a field of a form is always set"
    if parameter.type == "bool":
        chosen = "yes" if parameter.default else "no"
        return f"the script's lines depend on it, so it keeps its default, {chosen}"
    key, label = f"p_{name}", label_of(name)
    if parameter.choices:
        choices = [str(choice) for choice in parameter.choices]
        if not all(re.fullmatch(r"[A-Za-z0-9_.,+ -]+", choice) for choice in choices):
            return "a choice holds more than letters, digits and _.,+- and spaces"
        told = f"one of {', '.join(choices)}"
        return Field(
            key, label, parameter.help, "choice", told, ".*", parameter.default, choices=choices
        )
    if parameter.type == "str":
        posix = None if parameter.pattern is None else for_bash(parameter.pattern)
        if posix is None:
            return "it has no pattern that bash can check"
        if parameter.default == "":
            return "its default is empty"
        if not (str(parameter.default).isascii() and str(parameter.default).isprintable()):
            return f"its default is not printable ASCII: {parameter.default!a}"
        told = f"text that matches {parameter.pattern}"
        return Field(key, label, parameter.help, "text", told, posix, parameter.default)
    return _number(key, label, parameter)


def decimal(value: float) -> str:
    """Without an exponent, which a form's field cannot have; up to six decimals."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _number(key: str, label: str, parameter: Parameter) -> Field | str:
    low, high = parameter.minimum, parameter.maximum
    if low is None or high is None:
        return "it has no bounds"
    if low < 0 or high >= 10**9:
        return "its bounds are not between 0 and 10^9"
    whole = parameter.type == "int"
    numbers = (low, high, float(parameter.default or 0))
    if not whole and any(float(decimal(number)) != number for number in numbers):
        return f"it needs more than six decimals: {parameter.default}"
    if whole:
        low, high = math.ceil(low), math.floor(high)
    pattern = "0|[1-9][0-9]{0,8}" if whole else r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?"
    told = f"a {'whole ' if whole else ''}number from {decimal(low)} to {decimal(high)}"
    kind: Literal["int", "float"] = "int" if whole else "float"
    return Field(
        key, label, parameter.help, kind, told, pattern, parameter.default, low, high, longest=20
    )
