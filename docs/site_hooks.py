"""What MkDocs does besides, so that the files of docs/ are the same in the repository and as pages.

A link that leads out of docs/ brings the Markdown page, JSON Schema or picture that it names into
the site, below `project/`. A link to any other file of the repository, such as a source file, is
there for who reads in the repository; in the pages its words stand alone. A link to nothing is left
for MkDocs to report, and with --strict the build fails.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
_BROUGHT = (".md", ".json", ".svg", ".png")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    docs = Path(config.docs_dir).relative_to(root).as_posix()
    left = [f"{docs}/{one.src_uri}" for one in files if one.src_uri.endswith(".md")]
    seen = set(left)
    while left:
        page = left.pop()
        for target in _targets((root / page).read_text(encoding="utf-8"), page):
            if target in seen or target.startswith(f"{docs}/") or not (root / target).is_file():
                continue
            if target.endswith(_BROUGHT):
                seen.add(target)
                source = str(root / target)
                files.append(File.generated(config, f"project/{target}", abs_src_path=source))
                left += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    root = Path(config.config_file_path).parent
    uri = page.file.src_uri
    path = uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}"

    def follow(link: re.Match[str]) -> str:
        mark, label, whole = link.groups()
        address, hash_, anchor = whole.partition("#")
        if not address or re.match(r"[a-z]+:", address):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), address))
        there = target.removeprefix("docs/") if target.startswith("docs/") else f"project/{target}"
        file = files.get_file_from_path(there)
        if file is not None and not file.inclusion.is_excluded():
            way = posixpath.relpath(there, posixpath.dirname(uri) or ".")
            return f"{mark}[{label}]({way}{hash_}{anchor})"
        return label if os.path.exists(root / target) else link[0]

    return _outside_fences(markdown, lambda text: _LINK.sub(follow, text))


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _targets(markdown: str, page: str) -> Iterator[str]:
    for _, _, whole in _LINK.findall(_FENCE.sub("", markdown)):
        address = whole.partition("#")[0]
        if address and not re.match(r"[a-z]+:", address):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), address))


_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe|source|object)\b[^>]*\b(?:src|href|data)=["'](?:https?:)?//[^"']*"""
)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Names the search, which the theme does not; refuses a page that would load anything from
    another host."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output.replace(' role="dialog"', ' role="dialog" aria-label="Search"')
