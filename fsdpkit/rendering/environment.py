"""The Jinja environment: strict, sandboxed, bounded, and closed to values that no quoter saw.

The sandbox protects the login node's process from a template; what the rendered script does is
the template author's word, which is why templates carry a version and a checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateNotFound, nodes
from jinja2.loaders import BaseLoader
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError
from fsdpkit.rendering.quoting import (
    Quoted,
    for_comment,
    for_directive,
    for_shell,
    unmark,
    with_array_task,
)

ENTRY = "job.sbatch.j2"
MAX_TEMPLATE_BYTES = 1_000_000
MAX_SCRIPT_BYTES = 4_000_000  # SchedulerParameters=max_script_size, Slurm's default
_MAX_STEPS = 200_000


class _FolderLoader(BaseLoader):
    """Reads from one directory: no way out by `..`, an absolute path or a symbolic link."""

    def __init__(self, directory: Path) -> None:
        self._top = directory.resolve()

    def get_source(self, environment: Any, template: str) -> tuple[str, str, Any]:
        path = (self._top / template).resolve()
        if not path.is_relative_to(self._top):
            raise RenderError(f"template {self._top}: {template!r} lies outside its folder")
        if not path.is_file():
            raise TemplateNotFound(template)
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise RenderError(f"template {path}: larger than {MAX_TEMPLATE_BYTES} bytes")
        return path.read_text(encoding="utf-8"), str(path), None


class _Environment(ImmutableSandboxedEnvironment):
    """Counts loop turns and calls, so that no template runs for ever."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, loader: BaseLoader) -> None:
        super().__init__(
            loader=loader,
            undefined=StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_only_quoted,
            # Jinja's own {# is bash's ${#array[@]}.
            comment_start_string="<#",
            comment_end_string="#>",
            cache_size=0,
        )
        self.filters.update(
            sh=for_shell,
            sh_arg=with_array_task,
            sb=for_directive,
            note=for_comment,
            _turns=self._turns,
        )
        self.globals = {"range": self.globals["range"], "refuse": _refuse}
        self._steps = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno)
        return tree

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RenderError(f"the template takes more than {_MAX_STEPS} loop turns and calls")

    def _turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._step()
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        small = all(isinstance(n, int | float) and abs(n) < 1e9 for n in (left, right))
        if operator == "**" or not small:
            raise RenderError(f"the template uses {operator!r} on something other than numbers")
        return super().call_binop(context, operator, left, right)


def _only_quoted(value: Any) -> Any:
    if isinstance(value, Quoted) or type(value) in (int, float):
        return value
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the undefined name
    raise RenderError(
        f"the template prints {str(value)[:60]!r} unquoted; pass it through sh, sb or note"
    )


def _refuse(message: str) -> None:
    """`{{ refuse("…") }}`: how a template says that it cannot serve these values."""
    raise RenderError(f"the template refuses: {message}")


def render_template(template: Template, context: dict[str, Any]) -> str:
    """The script's text. Raises RenderError naming the template, and the line where known.

    context: plain data only (numbers, text, lists, dictionaries).
    """
    name = f"template {template.manifest.name} ({template.dir})"
    environment = _Environment(_FolderLoader(template.dir))
    try:
        script = unmark(environment.get_template(ENTRY).render(context))
    except RenderError as error:
        raise RenderError(f"{name}: {error}") from error
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise RenderError(f"{name}{where}: {error.message or error}") from error
    except (RecursionError, MemoryError, TypeError, ValueError, OSError) as error:
        raise RenderError(f"{name}: {type(error).__name__}: {error}") from error
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise RenderError(f"{name}: the script is larger than {MAX_SCRIPT_BYTES} bytes")
    return script
