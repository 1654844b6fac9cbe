"""Keys that a release renamed or removed, and keys that this release does not know.

Jobs, profiles and templates outlive the release they were written for. A key gets a new name here,
in one table, and files with the old one are read as before, with a warning. A run's own records may
come from an older or a newer release, and a profile may be written for a newer one; then what this
release does not know is left out and named, instead of refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from fsdpkit.config.explain import alternatives, fields_of, struct_in


class KeyChange(msgspec.Struct, frozen=True):
    """What became of a key. One without a new name was removed."""

    since: str
    """Release of fsdpkit."""
    name: str = ""
    """The new name, dotted, from the top of the file."""
    instead: str = ""
    """For a removed key: what to write instead, as a sentence without its full stop."""

    def sentence(self, key: str, name: str) -> str:
        if name:
            return f"{key} is called {name} since fsdpkit {self.since}"
        return f"{key} is not read since fsdpkit {self.since}: {self.instead}"


OWN_TRAINER = "fsdpkit"
"""The name of fsdpkit's own trainer (config/trainers.py)."""

_TRAINING = {
    "accumulate": KeyChange(
        "0.1.0", instead="set training.micro_batch, the samples of one forward pass"
    ),
    "eval_batches": KeyChange("0.1.0", "evaluation.batches"),
    "log_every": KeyChange("0.1.0", "metrics.every_steps"),
    "metrics.tensorboard": KeyChange(
        "0.1.0", instead="fsdpkit track RUN --to tensorboard writes the events"
    ),
}

CHANGED_KEYS: Mapping[str, Mapping[str, KeyChange]] = {
    "JobSpec": {
        f"training.{key}": msgspec.structs.replace(
            change, name=f"training.{change.name}" if change.name else ""
        )
        for key, change in _TRAINING.items()
    },
    "TrainingSettings": _TRAINING,
    "SiteProfile": {
        "storage.runs": KeyChange(
            "0.1.0", instead="where runs lie is said by --runs or FSDPKIT_RUNS"
        ),
    },
    "TemplateManifest": {},
}
"""By the class that a file is read as, then by the old key, dotted. `*` stands for a name of the
file's own, as in `partitions.*.nodes`."""


_OF_TASKS = "array_settings.*."


def _changes(kind: str) -> Mapping[str, KeyChange]:
    """Of files of this kind; what an array task has otherwise has the keys of a job, too."""
    changes = CHANGED_KEYS.get(kind, {})
    if kind != "JobSpec":
        return changes
    of_tasks = {
        _OF_TASKS + old: msgspec.structs.replace(
            change, name=change.name and _OF_TASKS + change.name
        )
        for old, change in changes.items()
    }
    return {**changes, **of_tasks}


def with_old_names(kind: str, names: Mapping[str, Any], below: str = "") -> Mapping[str, Any]:
    """`names`, which a template reads, also by the names that renamed keys had before. below: the
    table of `kind` that `names` is, dotted; empty for all of it. Templates of centres are read by
    releases that came after them."""
    table = f"{below}." if below else ""
    for old, change in CHANGED_KEYS.get(kind, {}).items():
        if not (old.startswith(table) and change.name.startswith(table)):
            continue
        for place in list(_places(names, change.name.removeprefix(table).split("."))):
            before = _filled_in(old, change.name, [*table.split(".")[:-1], *place])
            names = _added(names, before[table.count(".") :], _value(names, place))
    return names


def with_new_names(
    kind: str, values: Mapping[str, Any], origin: str, trainer: object = OWN_TRAINER
) -> tuple[Mapping[str, Any], list[str]]:
    """`values`, the tables of one file, by the keys of this release; and a warning for each change.
    Where a file has the old key and the new one, the new one counts. trainer: the name of the
    job's, whose `[training]` is left alone if it is not fsdpkit's own."""
    warnings = []
    for old, change in _changes(kind).items():
        own = old.removeprefix(_OF_TASKS).startswith("training.")
        if own and trainer != OWN_TRAINER:
            continue
        for place in list(_places(values, old.split("."))):
            name = _filled_in(change.name, old, place)
            values = _moved(values, place, name)
            warnings.append(f"{origin}: {change.sentence('.'.join(place), '.'.join(name))}")
    return values, warnings


def new_name(kind: str, key: str) -> KeyChange | None:
    """What became of a dotted key, by its new name in full; None where it is as it was."""
    for old, change in _changes(kind).items():
        if re.fullmatch(re.escape(old).replace(r"\*", "[^.]+"), key):
            name = _filled_in(change.name, old, key.split("."))
            return msgspec.structs.replace(change, name=".".join(name))
    return None


def _places(values: object, pattern: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Where the tables have a key of this pattern."""
    if not isinstance(values, Mapping):
        return
    first, *rest = pattern
    for name in values if first == "*" else {first} & values.keys():
        if not rest:
            yield (name,)
        else:
            yield from ((name, *below) for below in _places(values[name], rest))


def _filled_in(name: str, old: str, place: Sequence[str]) -> tuple[str, ...]:
    """The parts of the new name, with the file's own names in place of `*`; none if removed."""
    own = [given for part, given in zip(old.split("."), place, strict=True) if part == "*"]
    parts = name.split(".") if name else []
    return tuple(own.pop(0) if part == "*" else part for part in parts)


def _moved(
    values: Mapping[str, Any], place: Sequence[str], name: Sequence[str]
) -> Mapping[str, Any]:
    """A copy in which the value stands under its new name, or is gone if there is none."""
    copy = _copied(values)
    value = _value(copy, place[:-1]).pop(place[-1])
    return _added(copy, name, value) if name else copy


def _added(values: Mapping[str, Any], name: Sequence[str], value: Any) -> Mapping[str, Any]:
    """A copy that has the value under this name, too, unless something stands there."""
    copy = _copied(values)
    table = copy
    for part in name[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return copy  # what stands there is no table, and is refused as such
    table.setdefault(name[-1], value)
    return copy


def _value(values: Any, place: Sequence[str]) -> Any:
    for part in place:
        values = values[part]
    return values


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in values.items()}


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
