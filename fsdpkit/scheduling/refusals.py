"""What Slurm's commands say when they refuse, and what a person can do about it (refusals.toml)."""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path

import msgspec

from fsdpkit.scheduling.named_limits import limit_in, remedy


class _Refusal(msgspec.Struct, forbid_unknown_fields=True):
    says: str
    remedy: str


@lru_cache
def _known() -> tuple[_Refusal, ...]:
    text = Path(__file__).with_suffix(".toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, tuple[_Refusal, ...]])["refusal"]


def remedy_for(stderr: str) -> str | None:
    """What to do about a refusal, where its cause is known; first by the limit that it names."""
    if (limit := limit_in(stderr)) is not None:
        return remedy(limit)
    return next((known.remedy for known in _known() if re.search(known.says, stderr)), None)


def refusal(command: str, done: subprocess.CompletedProcess[str]) -> str:
    """The words of a command that failed, with the remedy where there is one."""
    words = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    remedy = remedy_for(words)
    return f"{command} refused: {words}" + (f"\n{remedy}" if remedy else "")
