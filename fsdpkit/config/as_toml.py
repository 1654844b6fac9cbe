"""A job as a TOML file: every key with its value and what it means, to be saved and changed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET

from fsdpkit.config.explain import description_of

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 98


def as_toml(spec: msgspec.Struct) -> str:
    """`spec` with all keys; one that has no value stands in a comment, for TOML has no word for
    none. Read back, the text is equal to it."""
    return "\n".join(_table(spec, ())).strip() + "\n"


def _table(value: msgspec.Struct, above: tuple[str, ...]) -> Iterator[str]:
    hints = get_type_hints(type(value), include_extras=True)
    tables: list[tuple[str, Any]] = []
    for attribute, name in zip(
        value.__struct_fields__, value.__struct_encode_fields__, strict=True
    ):
        held = getattr(value, attribute)
        if isinstance(held, msgspec.Struct):
            tables.append((name, held))
            continue
        held = msgspec.to_builtins(held) if held is not UNSET else None
        if isinstance(held, dict) and held:
            tables.append((name, held))
            continue
        hint = hints[attribute]
        said = next(filter(None, map(description_of, (hint, *get_args(hint)))), "")
        for line in textwrap.wrap(said, _WIDTH - 2):
            yield f"# {line}"
        yield f"# {name} is not set" if held is None else f"{key_text(name)} = {inline(held)}"
    for name, held in tables:
        path = (*above, name)
        yield ""
        yield f"[{'.'.join(map(key_text, path))}]"
        if isinstance(held, msgspec.Struct):
            yield from _table(held, path)
        else:
            yield from (f"{key_text(key)} = {inline(one)}" for key, one in held.items())


def key_text(name: str) -> str:
    """A key, in quotation marks where it needs them."""
    return name if _BARE.fullmatch(name) else text(name)


def inline(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, dict):  # TOML has no word for none; a key that may be unset is left out
        known = {key: one for key, one in value.items() if one is not None}
        return f"{{{', '.join(f'{key_text(key)} = {inline(one)}' for key, one in known.items())}}}"
    return repr(value)


def text(value: str) -> str:
    """As a string of TOML, in quotation marks."""
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
