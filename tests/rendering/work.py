"""How much work something is, counted, because how long it takes is the machine's affair."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_in(action: Callable[[], object]) -> int:
    """Functions called while `action` runs, those of C among them."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls
