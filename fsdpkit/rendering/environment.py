"""From a template's files and the context to the script, or to an error that names the template.

A template is data to us: `rendering.language` says what it may consist of, `rendering.places` where
a value may stand, `rendering.evaluation` what its expressions can do. What the rendered script does
is the template author's word, which is why templates carry a version and a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError
from fsdpkit.rendering.statements import Statement, Traced, trace_of
from fsdpkit.rendering.variables import Undecided

ENTRY = "job.sbatch.j2"


def render_template(template: Template, context: dict[str, Any]) -> str:
    """The script's text. Raises RenderError naming the template, and the line where known.

    context: plain data only (numbers, text, lists, dictionaries).
    """
    return trace_template(template, context).script


def trace_template(
    template: Template, context: dict[str, Any], statements: Sequence[Statement] | None = None
) -> Traced:
    """The same, with the template's line of each line of the script.

    statements: what the template was parsed into, if the caller has it.
    """
    if statements is None:
        statements = parsed(template)
    with _named(template):
        return trace_of(statements, context)


def parsed(template: Template) -> tuple[Statement, ...]:
    """What the template consists of. Raises RenderError."""
    with _named(template):
        return _parsed(tuple(sorted(template.parts.items())))


@contextmanager
def _named(template: Template) -> Iterator[None]:
    """Errors name the template."""
    try:
        yield
    except Undecided:
        raise
    except RenderError as error:
        where = f"template {template.manifest.name} ({template.dir})"
        raise RenderError(f"{where}: {error}") from error


@lru_cache(maxsize=4)
def _parsed(parts: tuple[tuple[str, bytes], ...]) -> tuple[Statement, ...]:
    """Reading a template takes most of the time, and a sweep or a test renders it many times."""
    from fsdpkit.rendering.language import parse  # and Jinja, which a kept template spares

    return parse(dict(parts), ENTRY)
