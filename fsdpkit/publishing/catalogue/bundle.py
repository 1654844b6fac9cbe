"""What a browser's Python needs of this installation: modules and the files of the catalogue.

Two zip files. `modules.zip`: every module that `fsdpkit submit --dry-run` imports, found by reading
imports, and the pure Python of what they use. `folders.zip`: jobs, profiles and templates, a folder
for the packaged ones and one for each of the centre's, and the scripts of their jobs. The same
input gives the same bytes.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.published.index import KINDS, published_dir
from fsdpkit.publishing.catalogue.reading_files import content_of_file

_ENTRY = (
    *("fsdpkit.cli.in_page", "fsdpkit.cli.main", "fsdpkit.cli.misnamed", "fsdpkit.cli.submit"),
    *("fsdpkit.config.announced", "fsdpkit.config.trust"),
    *("fsdpkit.planning.remembered", "fsdpkit.remote.hosts"),
    *("fsdpkit.scheduling.compiled_templates", "fsdpkit.scheduling.local.client"),
    *("fsdpkit.scheduling.allowance", "fsdpkit.scheduling.slurm"),
    *("fsdpkit.scheduling.slurm_answers", "fsdpkit.scheduling.submission"),
    "fsdpkit.training.offer",
)
"""What is imported by name, or inside a function that a dry run calls."""
_WHOLE = ("fsdpkit.config", "fsdpkit.rendering")
"""Of these the imports inside functions count, too."""
_LIBRARIES = ("click", "jinja2", "markupsafe")
_TIME = (1980, 1, 1, 0, 0, 0)
_READ = (".toml", ".json", ".j2")
_DATA = (".toml", ".txt")
"""Of a module's own table beside it, which has its name."""


@functools.cache
def modules_zip() -> bytes:
    files = {f"{name}.py": content for name, content in own_modules().items()}
    beside = {f"{name}{end}": _beside(f"{name}{end}") for name in own_modules() for end in _DATA}
    files |= _contents(beside)
    for library in _LIBRARIES:
        spec = importlib.util.find_spec(library)
        assert spec is not None
        assert spec.origin is not None
        top = Path(spec.origin).parent
        for path in top.rglob("*.py"):
            files[f"{library}/{path.relative_to(top).as_posix()}"] = path.read_bytes()
    return zipped(files)


def zipped(files: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return written.getvalue()


def own_modules() -> dict[str, bytes]:
    """Sources of fsdpkit's modules, by path without its ending: `fsdpkit/config/job`."""
    found: dict[str, bytes] = {}
    left = list(_ENTRY)
    while left:
        name = left.pop()
        while name and (path := _file_of(name)) is None:
            name = name.rpartition(".")[0]  # a name of a module
        if not name or path is None:
            continue
        key = path.relative_to(assets.package_dir().parent).with_suffix("").as_posix()
        if key in found:
            continue
        found[key] = path.read_bytes()
        inside = name.startswith(_WHOLE)
        left += _imports(ast.parse(found[key]), inside_functions=inside)
        left += [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1)]
    return found


def _beside(path: str) -> Path:
    return assets.package_dir().parent / path


def _file_of(name: str) -> Path | None:
    base = assets.package_dir().parent.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if path.is_file():
            return path
    return None


def _imports(tree: ast.AST, *, inside_functions: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fsdpkit"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsdpkit"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imports(node, inside_functions=inside_functions)


def folder(top: Path) -> dict[str, bytes]:
    """The files of one folder that a dry run may read, by path: whatever it keeps as TOML, JSON or
    parts of templates, but for what tests expect; of what it publishes every file, as signed."""
    wanted = [path for end in _READ for path in top.glob(f"*{end}")]
    for room in ("jobs", "site", "templates"):
        wanted += [path for end in _READ for path in (top / room).rglob(f"*{end}")]
    wanted = [path for path in wanted if "golden" not in path.relative_to(top).parts]
    published = published_dir(top)
    wanted += [published / "index"]
    wanted += [path for kind in KINDS for path in (published / kind).rglob("*")]
    return _contents({path.relative_to(top).as_posix(): path for path in wanted})


def scripts(entries: Iterable[Path]) -> dict[str, bytes]:
    """The training scripts of jobs and the Python files beside them, by their path below `/`."""
    beside = {path for entry in entries for path in entry.parent.glob("*.py")}
    return _contents({path.as_posix().lstrip("/"): path for path in beside})


def _contents(paths: Mapping[str, Path]) -> dict[str, bytes]:
    read = {name: content_of_file(path) for name, path in paths.items()}
    return {name: content for name, content in read.items() if content is not None}
