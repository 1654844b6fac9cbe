"""Which keys of a job may differ between the tasks of one array, and what single tasks have.

An array is one submission: one script, one run, and for each task an allocation of the same shape.
A task can have a value of its own only where that value is read in the task: by the script that is
trained, by the agents, or from the environment. The schema says which keys those are: `PER_TASK`
and `once` (fields.py) stand beside a key or the table that it is in, and the nearest one counts. A
key without any is shared, for nobody has said who reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args, get_origin

from fsdpkit.config.explain import alternatives, description_of, fields_of, no_such_key, struct_in
from fsdpkit.config.fields import ARRAY, Scalar
from fsdpkit.config.job import JobSpec
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import Layered, build, overrides
from fsdpkit.config.secrets import refuse_secrets
from fsdpkit.config.trainers import job_type
from fsdpkit.errors import UsageError

ARGUMENT = "args."
"""What the key of a script's own option begins with: `args.lr` is its --lr."""
_UNMARKED = "all tasks of an array share it: for each value start a sweep with --set {key}=VALUE"
_SCRIPT = "training"
"""The table that the trained script reads, and is told its own values of by `--set`."""


def why_shared(key: str) -> str | None:
    """Why a dotted key cannot differ between the tasks of an array, and what to do instead; None if
    it can. What is no key at all is left to whoever reads the values, if its table may differ."""
    here: Any = job_type()
    why: str | None = _UNMARKED
    sentence = ""
    parts = key.split(".")
    for depth, part in enumerate(parts):
        below = _below(here, part)
        if below is None:
            struct = struct_in(here)
            if why is not None and struct is not None:
                return no_such_key(part, ".".join(parts[:depth]), fields_of(struct), job_type())
            break
        here = below
        sentence = description_of(here) or sentence
        for note in getattr(here, "__metadata__", ()):
            extra = getattr(note, "extra", None) or {}
            why = extra.get(ARRAY, why)
    if why is None:
        return None
    about = f" ({sentence.rstrip('.')})" if sentence else ""
    return f"tasks of one array cannot differ in it{about}: {why.format(key=key)}"


def is_table(key: str) -> bool:
    """Whether other keys stand below this one, of the schema's or of a person's choice."""
    here: Any = job_type()
    for part in key.split("."):
        here = _below(here, part)
        if here is None:
            return False
    return struct_in(here) is not None or _values_of(here) is not None


def _below(annotation: Any, name: str) -> Any | None:
    """The annotation of a key in a table; None where there is no such key."""
    struct = struct_in(annotation)
    return _fields_of(struct).get(name) if struct is not None else _values_of(annotation)


_fields_of = lru_cache(fields_of)


def _values_of(annotation: Any) -> Any | None:
    """Of a table whose keys are a person's choice, the annotation of its values."""
    found = next((t for t in alternatives(annotation) if get_origin(t) is dict), None)
    return None if found is None else get_args(found)[1]


def is_read_by_script(key: str) -> bool:
    """Whether the trained script itself reads the key, and is told it as a word."""
    return key.startswith((f"{_SCRIPT}.", ARGUMENT))


def own_tables(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Of one task's values (by dotted key), as a job's tables, what the script does not read."""
    given = [(k, v) for k, v in settings.items() if not is_read_by_script(k)]
    return overrides(JobSpec, [f"{key}={text(value)}" for key, value in given])


def text(value: Scalar) -> str:
    """As `--set` and scripts read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_own(job: LoadedJob) -> None:
    """Refuse what single tasks cannot have. Raises UsageError, or ConfigError for a wrong value."""
    of_tasks = ("array_args", "array_settings")
    shared = {key: value for key, value in job.layered.values.items() if key not in of_tasks}
    for task, tables in job.array_settings.items():
        where = f"job {job.spec.name}: array_settings.{task}"
        for key in _leaves(tables, ""):
            why = why_shared(key)
            if is_read_by_script(key):
                why = f"the script reads it, and is told it in array_args.{task}"
            if why is not None:
                raise UsageError(f"{where}.{key}: {why}")
        merged = Layered()
        merged.say(shared, job.layered.source("array_settings"))
        merged.say(tables, f"array_settings.{task}")
        refuse_secrets(merged, where)
        build(type(job.spec), merged, where)


def _leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping) and (is_table(key) if key else True):
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}" if key else str(name))
    else:
        yield key
