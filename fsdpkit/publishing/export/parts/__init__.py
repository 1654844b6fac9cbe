"""Parts of an export that are not Python: bash, Ruby and Markdown, each in a file of its own."""

from __future__ import annotations

import re
from pathlib import Path


def part(name: str, /, **values: object) -> str:
    """The text of a part, with these values in the places that it names as `@value@`."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda place: str(values[place[1]]), text)
