"""Slurm's spellings of time, memory and array tasks, read into numbers; sizes, times in words."""

from __future__ import annotations

import re

from fsdpkit.errors import UsageError

_TIME_FORMS = (
    # sbatch(1) --time: the six accepted forms, most specific first.
    re.compile(r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)"),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<m>\d+)"),
)
TIME_FORMS_TEXT = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
_WITH_UNITS = re.compile(
    r"(?i)(?:(\d{1,4}) ?d(?:ays?)?)? ?(?:(\d{1,5}) ?h(?:(?:ou)?rs?)?)? ?(?:(\d{1,6}) ?m(?:in)?)?",
    re.ASCII,
)
LONGEST_S = 365 * 86400

_MEMORY = re.compile(r"(?P<n>\d+)(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)
_MEMORY_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def parse_time_s(text: str) -> int:
    """Seconds of a Slurm time such as `30` (minutes), `24:00:00` or `1-12`. Raises ValueError, with
    what to write, for anything else, for zero, for UNLIMITED (such a job never starts before a
    maintenance window) and for more than a year."""
    # [0-9] in effect: \d also matches other scripts' digits, which Slurm does not.
    match = next((m for f in _TIME_FORMS if (m := f.fullmatch(text))), None)
    if match is None or not text.isascii():
        hint = " (a job without a limit is not scheduled before a maintenance window)"
        unlimited = text.strip().upper() in ("UNLIMITED", "INFINITE", "-1")
        unit = _WITH_UNITS.fullmatch(text)
        days, hours, minutes = (int(part or 0) for part in unit.groups()) if unit else (0, 0, 0)
        meant_s = 60 * (minutes + 60 * (hours + 24 * days))
        raise ValueError(
            f"{text!r} is not a time limit{hint if unlimited else ''}; write "
            f"{format_time(meant_s) if 0 < meant_s <= LONGEST_S else TIME_FORMS_TEXT}"
        )
    parts = {unit: int(value) for unit, value in match.groupdict().items()}
    seconds = (
        parts.get("d", 0) * 86400
        + parts.get("h", 0) * 3600
        + parts.get("m", 0) * 60
        + parts.get("s", 0)
    )
    if seconds == 0:
        raise ValueError(f"{text!r} is a time limit of zero; ask for a minute or more")
    if seconds > LONGEST_S:
        raise ValueError(f"{text!r} is longer than a year; ask for 365-00:00:00 or less")
    return seconds


def format_time(seconds: int) -> str:
    """`D-HH:MM:SS`, or `HH:MM:SS` below a day: the form Slurm itself prints."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def roughly(seconds: float) -> str:
    """A duration in a column: `45 s`, `12 min`, `3 h 05 min`, `2 d 7 h`."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def parse_memory_mb(text: str) -> int:
    """Megabytes (2**20 bytes) of a Slurm memory size such as `480G`; a bare number is megabytes,
    and 0 all that a node has. Raises ValueError for anything else and for less than a megabyte."""
    match = _MEMORY.fullmatch(text)
    megabytes = int(int(match["n"]) * _MEMORY_MB[match["unit"].upper() or "M"]) if match else 0
    if not match or not text.isascii() or (megabytes < 1 and int(match["n"])):
        raise ValueError(f"{text!r} is not a memory size; write a whole number and K, M, G or T")
    return megabytes


def format_bytes(count: float) -> str:
    """In decimal units, as makers of disks and file systems count: `1.5 kB`, `2.3 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def format_gb(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f} GB"


def parse_array(text: str, *, largest_task: int = 1_000_000) -> tuple[list[int], int | None]:
    """The tasks of a Slurm array specification such as `0-15:5%2`, and how many run at once. Raises
    UsageError for anything else, duplicates, or more than `largest_task`."""
    body, percent, at_once = text.partition("%")
    tasks: list[int] = []
    try:
        if percent and int(at_once) < 1:
            raise ValueError
        for part in body.split(","):
            span, _, step = part.partition(":")
            first, dash, last = span.partition("-")
            numbers = [first, *([last] if dash else []), *([step] if step else [])]
            if not all(n.isascii() and n.isdigit() for n in numbers) or (step and not dash):
                raise ValueError
            low, high, by = int(first), int(last or first), int(step or 1)
            if high < low or by < 1 or high > largest_task:
                raise ValueError
            tasks.extend(range(low, high + 1, by))
    except ValueError:
        raise UsageError(
            f"--array {text!r}: write tasks as in sbatch, e.g. 0-15, 1,3,5, 0-15:5 or 0-99%10; "
            f"no task may be above {largest_task}"
        ) from None
    if len(set(tasks)) != len(tasks):
        raise UsageError(f"--array {text!r}: a task is named twice")
    return tasks, int(at_once) if percent else None
