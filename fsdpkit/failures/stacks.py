"""Where a process is, by the stacks that faulthandler or py-spy wrote of its threads."""

from __future__ import annotations

import re

import msgspec


class Frame(msgspec.Struct, frozen=True):
    """One call of a traceback or a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)
_INNERMOST = 6
"""Frames from the innermost in which a call of torch.distributed means waiting for other ranks."""


def current_thread(stacks: str) -> list[Frame]:
    """The calls of the thread that was asked, or crashed, innermost first; else of all threads."""
    _, marked, thread = stacks.partition("Current thread ")
    calls = _FRAME.findall(thread.partition("\n\n")[0] if marked else stacks)
    return [Frame(file, int(line), function) for file, line, function in calls]


def waits_in(calls: list[Frame]) -> str | None:
    """The function of torch.distributed in which it waits for other ranks; None: it is elsewhere.
    torchelastic's `record` wraps every program, and torch's `wrapper` every collective."""
    inside = (
        call.function
        for call in calls[:_INNERMOST]
        if "/torch/distributed/" in call.file and "/torch/distributed/elastic/" not in call.file
    )
    return next((function for function in inside if function != "wrapper"), None)
