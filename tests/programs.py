"""What a test runs to its end, with what was printed as text; and what it waits for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Completed = subprocess.CompletedProcess[str]

# Of fixtures
Fsdpkit = Callable[..., Completed]
Submit = Callable[..., dict[str, Any]]
Write = Callable[[str, str], Path]


def ran(command: Any, *, status: int | None = None, **options: Any) -> Completed:
    """As subprocess.run does it. status: that it must end with; None: any."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return ended(done, status)


def ended(done: Completed, status: int | None) -> Completed:
    """The same, if it ended with that status; None: any."""
    said = f"status {done.returncode}\n{(done.stdout or '')[-4000:]}\n{(done.stderr or '')[-4000:]}"
    assert status is None or done.returncode == status, said
    return done


def until(question: Callable[[], Any], what: str = "it", within_s: float = 300) -> Any:
    """The answer, once it is true; minutes on a busy machine."""
    deadline = time.monotonic() + within_s
    while not (answer := question()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return answer
