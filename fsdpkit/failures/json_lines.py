"""The exception in the last record of a logger that writes a JSON object a line."""

from __future__ import annotations

import json

import msgspec

from fsdpkit.failures import exceptions
from fsdpkit.failures.last_words import LAST_LINES
from fsdpkit.failures.patterns import Shown
from fsdpkit.failures.tracebacks import BEGINS, ended_by, lines_of

_BAD_LEVELS = frozenset({"error", "critical", "fatal", "exception"})


def logged_as_json(text: str) -> Shown | None:
    lines = [line for line in lines_of(text) if line.text.strip()][-LAST_LINES:]
    last = next((one for one in reversed(lines) if one.text.lstrip().startswith("{")), None)
    if last is None:
        return None
    try:
        record = json.loads(last.text)
    except (ValueError, RecursionError):
        return None
    if str(record.get("level", record.get("levelname", "error"))).lower() not in _BAD_LEVELS:
        return None
    for value in record.values():
        raised = ended_by(value) if isinstance(value, str) and BEGINS in value else None
        if raised is not None:
            shown = exceptions.shown(raised)
            return msgspec.structs.replace(shown, begin=last.begin, end=last.end, sure=False)
    return None
