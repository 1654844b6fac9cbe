"""Records as YAML that a person can read and every reader reads alike.

Texts are JSON's, which are YAML's double-quoted ones; several lines are a literal block. So no word
is ever read as something else (`no`, `1:30`), whatever a site or a template is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOT_A_KEY = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")
_FLOW = 100  # characters of a list on one line


def document(record: Mapping[str, Any]) -> str:
    return "---\n" + _block(record, 0)


def _block(record: Mapping[str, Any], indent: int) -> str:
    pad = " " * indent
    lines = []
    for key, value in record.items():
        name = key if _KEY.fullmatch(key) and not _NOT_A_KEY.fullmatch(key) else _scalar(key)
        if isinstance(value, Mapping) and value:
            lines.append(f"{pad}{name}:\n{_block(value, indent + 2)}")
        elif isinstance(value, str) and _is_block(value):
            body = "".join(f"{pad}  {line}\n" if line else "\n" for line in value[:-1].split("\n"))
            lines.append(f"{pad}{name}: |2\n{body}")
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            lines.append(f"{pad}{name}:{_items(value, indent)}")
        else:
            lines.append(f"{pad}{name}: {_scalar(value)}\n")
    return "".join(lines)


def _is_block(text: str) -> bool:
    """Several lines that a literal block holds as they are, ending with exactly one line break."""
    lines = text[:-1].split("\n")
    return (
        len(lines) > 1
        and text.endswith("\n")
        and bool(lines[-1].strip())
        and all(line.isprintable() for line in lines)
        and all(line.strip() or not line for line in lines)
    )


def _items(values: Sequence[Any], indent: int) -> str:
    flow = _scalar(values)
    if len(flow) <= _FLOW and not any(isinstance(v, list | tuple | dict) for v in values):
        return f" {flow}\n"
    return "\n" + "".join(f"{' ' * indent}  - {_scalar(value)}\n" for value in values)


def _scalar(value: Any) -> str:
    """JSON, which is YAML; whatever is not printable ASCII as an escape."""
    return json.dumps(value)
