"""From a template's files and the context to the script, or to an error that names the template.

A template is data to us: `rendering.sandbox` says what it can do, `rendering.places` where a value
may stand. What the rendered script does is the template author's word, which is why templates
carry a version and a checksum.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError
from fsdpkit.rendering.traced import RenderLimitError, Traced
from fsdpkit.rendering.variables import Undecided

if TYPE_CHECKING:  # Jinja takes a while to import, and a command may need no script
    from jinja2 import BytecodeCache

    from fsdpkit.rendering.sandbox import TemplateSandbox

ENTRY = "job.sbatch.j2"


def render_template(template: Template, context: dict[str, Any]) -> str:
    """The script's text. Raises RenderError naming the template, and the line where known. context:
    plain data only (numbers, text, lists, dictionaries)."""
    return trace_template(template, context).script


def trace_template(
    template: Template, context: dict[str, Any], cache: BytecodeCache | None = None
) -> Traced:
    """The same, with the template's line of each line of the script. cache: of compiled templates,
    from earlier processes."""
    with _named(template):
        sandbox = _compiled(tuple(sorted(template.parts.items())), cache)
        # The package's own needs no limits; a browser's Python has no processes, and sets its own.
        if template.layer == "packaged" or sys.platform == "emscripten":
            return sandbox.trace(ENTRY, context)
        from fsdpkit.rendering.limited_process import in_limited_process

        return in_limited_process(lambda: sandbox.trace(ENTRY, context))


def check_syntax(template: Template) -> None:
    """Raises RenderError if a part of it is no template."""
    with _named(template):
        _compiled(tuple(sorted(template.parts.items())), None)


@contextmanager
def _named(template: Template) -> Iterator[None]:
    """Errors name the template."""
    try:
        yield
    except Undecided:
        raise
    except RenderError as error:
        where = f"template {template.manifest.name} ({template.dir})"
        kind = RenderLimitError if isinstance(error, RenderLimitError) else RenderError
        raise kind(f"{where}: {error}") from error


@lru_cache(maxsize=4)
def _compiled(parts: tuple[tuple[str, bytes], ...], cache: BytecodeCache | None) -> TemplateSandbox:
    """A sweep or a test renders the same template many times."""
    from fsdpkit.rendering.sandbox import sandbox_of

    return sandbox_of(dict(parts), cache)
