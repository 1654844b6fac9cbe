"""What `template` prints with `--json`; json_answers.py says what holds for all answers."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from fsdpkit.publishing.template_checklist import Finding
from fsdpkit.publishing.template_diff import Difference
from fsdpkit.publishing.template_trials import Step


class NewTemplate(Struct, frozen=True, kw_only=True):
    """A template's folder that was made."""

    schema: Literal["fsdpkit.template-new/1"] = "fsdpkit.template-new/1"
    name: str
    dir: str


class Linted(Struct, frozen=True, kw_only=True):
    """The checklist of a template."""

    schema: Literal["fsdpkit.template-lint/1"] = "fsdpkit.template-lint/1"
    ok: bool
    findings: list[Finding]


class Tried(Struct, frozen=True, kw_only=True):
    """A template as it was tested."""

    schema: Literal["fsdpkit.template-test/1"] = "fsdpkit.template-test/1"
    ok: bool
    name: str
    version: str
    sha256: str
    steps: list[Step]


class Compared(Struct, frozen=True, kw_only=True):
    """How the scripts of two templates differ."""

    schema: Literal["fsdpkit.template-diff/1"] = "fsdpkit.template-diff/1"
    equal: bool
    old: str
    new: str
    compared: int
    """Scripts of each."""
    differences: list[Difference]


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
