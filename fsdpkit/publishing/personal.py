"""What of a job is one person's, and no part of what everybody gets: in an export, in a release.

Only keys that say what is trained and how are everybody's. A key that is not named here is taken
for a person's own, so that a new one of the job's schema does not leave by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fsdpkit.config.job import JobSpec, Resources

OF_ALL = frozenset(
    {"schema", "name", "entry", "resources", "description", "template", "args", "environment"}
    | {"parameters", "launch", "retry", "training"}
)
"""Of a job's tables."""
_OF_ONE = frozenset({"account", "reservation", "nodelist", "exclude"})
"""Of `[resources]`."""


def own_tables(spec: JobSpec) -> dict[str, Any]:
    """The tables that are the person's, with what each is when nobody sets it."""
    unset = {field.name: default_of(field) for field in msgspec.structs.fields(JobSpec)}
    return {
        name: value
        for name, value in unset.items()
        if name not in OF_ALL and getattr(spec, name) != value
    }


def own_resources(resources: Resources) -> dict[str, Any]:
    """The same of `[resources]`."""
    return {name: None for name in sorted(_OF_ONE) if getattr(resources, name)}


def own_keys(spec: JobSpec) -> Iterator[str]:
    """Both, by their names in a job file."""
    yield from (f"resources.{name}" for name in own_resources(spec.resources))
    yield from (f"[{name}]" for name in own_tables(spec))


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """What a field is when nobody sets it; `NODEFAULT` where it has to be set."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
