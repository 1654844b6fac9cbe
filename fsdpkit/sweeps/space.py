"""The values that a sweep tries: what a file may say of a key of the job, and drawing from it.

    [parameters]
    training.optimizer.lr = { log_uniform = [1e-5, 1e-2] }
    training.optimizer.warmup_steps = { int = [0, 500] }
    training.optimizer.name = { choice = ["adamw", "adafactor"] }
    training.seed = [1, 2, 3]                    # the same as a choice
    args.dropout = { uniform = [0.0, 0.3] }      # a script's own option: --dropout=0.17
    environment.variables.NCCL_ALGO = ["Ring", "Tree"]

A key is `args.NAME`, or any of the job that can differ between the tasks of one array: the schema
says which (config/array_tasks.py). What Slurm is asked for is the same for all of them.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fsdpkit.config.array_tasks import ARGUMENT, is_read_by_script, is_table, text, why_shared
from fsdpkit.config.fields import Scalar
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import ConfigError

Kind = Literal["choice", "uniform", "log_uniform", "int", "log_int"]
Settings = dict[str, Scalar]
"""What one trial sets, by key."""

KINDS: tuple[Kind, ...] = ("choice", "uniform", "log_uniform", "int", "log_int")
_OPTION = re.compile(r"args\.[A-Za-z][A-Za-z0-9_-]{0,63}")
_MOST_DEPTH = 8
_MOST_VALUES = 1000


@dataclass(frozen=True)
class SweptParameter:
    """One key and its values: a list of them (`choice`), or a range with both ends."""

    key: str
    kind: Kind
    values: tuple[Scalar, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def is_logarithmic(self) -> bool:
        return self.kind in ("log_uniform", "log_int")

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """Values that a job must take if it is to take all: both ends of a range, or the list."""
        return self.values or (self._as_number(self.low), self._as_number(self.high))

    def at(self, fraction: float) -> Scalar:
        """The value at `fraction` (0 up to 1) of the way through the list or range."""
        if self.values:
            return self.values[min(int(fraction * len(self.values)), len(self.values) - 1)]
        low, high = self.low, self.high
        if self.kind in ("int", "log_int"):  # every whole number has its share, the last one, too
            low, high = low - 0.5, high + 0.5
        if self.is_logarithmic:
            value = low * (high / low) ** fraction
        else:
            value = low + (high - low) * fraction
        return self._as_number(value)

    def _as_number(self, value: float) -> Scalar:
        if self.kind in ("int", "log_int"):
            return math.floor(min(max(value, self.low), self.high) + 0.5)
        # Nobody reads the other ten digits; an end that has more stays as it is.
        return min(max(float(f"{value:.6g}"), self.low), self.high)

    def nearest(self, value: Scalar) -> Scalar:
        """`value` as another sampler gave it, in the form of our own."""
        return self._as_number(value) if isinstance(value, float) and not self.values else value


def parameters(table: Mapping[str, Any]) -> tuple[SweptParameter, ...]:
    """What `[parameters]` of a file says. Raises ConfigError, whose message begins with the key."""
    found: list[SweptParameter] = []
    for key, value in _leaves(table, ""):
        if (why := _why_not(key)) is not None:
            raise ConfigError(f"parameters.{key}: {why}")
        if any(key == other.key for other in found):
            raise ConfigError(f"parameters.{key}: parameters.{key} sets it as well")
        found.append(_parameter(key, value))
    if not found:
        raise ConfigError("parameters: there is none; a sweep tries values of at least one key")
    return tuple(found)


def _why_not(key: str) -> str | None:
    """Why trials cannot differ in it; None if they can, as far as the key's table says."""
    if _OPTION.fullmatch(key):
        return None
    if key.startswith(ARGUMENT):
        return "write args.NAME for the option --NAME of the script, such as args.lr"
    if (why := why_shared(key)) is not None:
        return why.replace("tasks of one array", "trials, the tasks of one array,", 1)
    if is_table(key):
        return f"a table has no value of its own: name one of its keys, as {key}.NAME"
    return None


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and not _is_distribution(value, key):
        if key.count(".") > _MOST_DEPTH:
            raise ConfigError(f"parameters.{key[:80]}…: tables in tables, {_MOST_DEPTH} deep")
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}" if key else name)
        if not value and key:
            raise ConfigError(f"parameters.{key}: {_expected({})}")
    else:
        yield key, value


def _is_distribution(value: Mapping[str, Any], key: str) -> bool:
    """A table that is no group of keys: one of the kinds stands in it, or nearly one. A table of
    the job itself is a group, so that `args.int` is an option of a script."""
    if "." not in key or is_table(key):
        return False
    lists = (name for name, one in value.items() if isinstance(one, list))
    return any(kind in value for kind in KINDS) or any(nearest(name, KINDS) for name in lists)


def _parameter(key: str, value: Any) -> SweptParameter:
    where = f"parameters.{key}"
    if isinstance(value, list):
        return _choice(key, value, where)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}: {value!r:.60} is a single value, and a sweep tries several: list them, or "
            f"set it in the job or with --set"
        )
    kind, given = next(iter(value.items()))
    if len(value) != 1 or kind not in KINDS:
        raise ConfigError(f"{where}: {_expected(value)}")
    if kind == "choice":
        return _choice(key, given, where)
    return _range(key, kind, given, where)


def _expected(value: Mapping[str, Any]) -> str:
    strange = next((name for name in value if name not in KINDS), "")
    return f"write a list of values, or one of {', '.join(KINDS)}.{nearest(strange, KINDS)}"


def _choice(key: str, given: Any, where: str) -> SweptParameter:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where}: choice must be a list of at least one value")
    if len(given) > _MOST_VALUES:
        raise ConfigError(f"{where}: {len(given)} values; at most {_MOST_VALUES} can be tried")
    for one in given:
        if not isinstance(one, bool | int | float | str):
            raise ConfigError(f"{where}: {one!r:.60} is neither a number, a truth value nor text")
        if given.count(one) > 1 and [type(g) for g in given if g == one].count(type(one)) > 1:
            raise ConfigError(f"{where}: {one!r:.60} is listed twice")
    return SweptParameter(key, "choice", tuple(given))


def _range(key: str, kind: Kind, given: Any, where: str) -> SweptParameter:
    numbers = isinstance(given, list) and all(
        isinstance(end, int | float) and not isinstance(end, bool) for end in given
    )
    if not numbers or len(given) != 2:
        raise ConfigError(f"{where}: {kind} must be a list of two numbers: [lowest, highest]")
    low, high = given
    if kind in ("int", "log_int") and not all(isinstance(end, int) for end in given):
        raise ConfigError(f"{where}: {kind} goes from a whole number to a whole number")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{where}: {kind} = [{low}, {high}]: the first must be below the second")
    if kind in ("log_uniform", "log_int") and low <= 0:
        raise ConfigError(f"{where}: {kind} = [{low}, {high}]: a logarithm needs numbers above 0")
    return SweptParameter(key, kind, (), float(low), float(high))


def grid(space: Sequence[SweptParameter]) -> list[Settings]:
    """Every combination; the last key changes fastest. The parameters must be lists."""
    found: list[Settings] = [{}]
    for one in space:
        found = [{**before, one.key: value} for before in found for value in one.values]
    return found


def at_random(space: Sequence[SweptParameter], trials: range, seed: int) -> list[Settings]:
    """Trials of these numbers. Each depends on the seed, the key and its own number alone, so a
    sweep that is extended is the same as one that had as many from the start."""
    return [
        {one.key: one.at(random.Random(f"{seed}/{trial}/{one.key}").random()) for one in space}
        for trial in trials
    ]


def told(settings: Settings) -> tuple[list[str], list[str]]:
    """What a trial sets, as `KEY=VALUE` of `--set`, and as words of a script's own."""
    sets = [f"{key}={text(value)}" for key, value in settings.items() if not _is_option(key)]
    words = [
        f"--{key.removeprefix(ARGUMENT)}={text(value)}"
        for key, value in settings.items()
        if _is_option(key)
    ]
    return sets, words


def words(settings: Settings) -> list[str]:
    """What a trial's script is told; the rest is for others (array_tasks.own_tables)."""
    sets, own = told({key: v for key, v in settings.items() if is_read_by_script(key)})
    return [word for one in sets for word in ("--set", one)] + own


def _is_option(key: str) -> bool:
    return key.startswith(ARGUMENT)
