"""What `template` prints with `--json`; json_answers.py says what holds for all answers."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from fsdpkit.publishing.template_checklist import ChecklistPoint
from fsdpkit.publishing.template_diff import ScriptDifference
from fsdpkit.publishing.template_tested import Canary
from fsdpkit.publishing.template_trials import TrialStep


class KeptCanary(Canary, frozen=True, kw_only=True):
    """How a template's newest canary went on one cluster (`template test --canary`)."""

    site: str
    """Id of the cluster's profile."""
    current: bool
    """Whether it ran this very template."""


class OneTemplate(Struct, frozen=True, kw_only=True):
    """A template, its parameters and its canaries."""

    schema: Literal["fsdpkit.templates-show/1"] = "fsdpkit.templates-show/1"
    name: str
    version: str
    description: str
    found_in: str
    dir: str
    sha256: str
    parameters: dict[str, Any]
    """By site/schema/template.schema.json."""
    canaries: list[KeptCanary]
    """None is on record where it is empty."""
    canaries_unread: str | None = None
    """Why they could not be read."""


class NewTemplate(Struct, frozen=True, kw_only=True):
    """A template's folder that was made."""

    schema: Literal["fsdpkit.template-new/1"] = "fsdpkit.template-new/1"
    name: str
    dir: str


class Linted(Struct, frozen=True, kw_only=True):
    """The checklist of a template."""

    schema: Literal["fsdpkit.template-lint/1"] = "fsdpkit.template-lint/1"
    ok: bool
    findings: list[ChecklistPoint]


class Tried(Struct, frozen=True, kw_only=True):
    """A template as it was tested."""

    schema: Literal["fsdpkit.template-test/1"] = "fsdpkit.template-test/1"
    ok: bool
    name: str
    version: str
    sha256: str
    steps: list[TrialStep]


class TemplatesCompared(Struct, frozen=True, kw_only=True):
    """How the scripts of two templates differ."""

    schema: Literal["fsdpkit.template-diff/1"] = "fsdpkit.template-diff/1"
    equal: bool
    old: str
    new: str
    compared: int
    """Scripts of each."""
    differences: list[ScriptDifference]


class ExportedCluster(Struct, frozen=True, kw_only=True):
    """A cluster that the app submits to."""

    site: str
    """Id of its profile."""
    name: str
    """What the portal calls it."""
    places: list[str]
    """What the form offers: partition and GPUs per node, as `gpu:4`."""
    fields: list[str]
    """Variables in which the script finds what the form says."""
    fixed: dict[str, str]
    """What the form does not ask for, with the reason."""
    left_out: list[str]
    """Partitions that are not offered, with the reason."""


class ExportedApp(Struct, frozen=True, kw_only=True):
    """An app of a web portal that was made from a template."""

    schema: Literal["fsdpkit.template-export/1"] = "fsdpkit.template-export/1"
    dir: str
    to: str
    release: str
    """Of the portal, whose rules the app follows."""
    template: str
    version: str
    sha256: str
    files: list[str]
    clusters: list[ExportedCluster]


class ContextName(Struct, frozen=True, kw_only=True):
    """A name that a template can use."""

    name: str
    """Of an entry of a list: `directives[].name`, which a loop gives."""
    type: str
    meaning: str
    example: Any


class TemplateContext(Struct, frozen=True, kw_only=True):
    """Every name that a template can use."""

    schema: Literal["fsdpkit.template-context/1"] = "fsdpkit.template-context/1"
    template: str
    example_of: str
    """The job that the examples are of."""
    names: list[ContextName]
