"""Until when a centre's signature counts, by OpenSSH, so that somebody signs anew before that."""

from __future__ import annotations

import time
from pathlib import Path

from fsdpkit.config.published.centre import read_file, read_signers
from fsdpkit.config.published.index import (
    MOST_INDEX_BYTES,
    PublishedIndex,
    decode,
    index_path,
    split,
)
from fsdpkit.config.published.signature import SignatureError, has_dates, verify

AHEAD_S = 60 * 86400
"""How long before its end it is told of."""


def ends_at_s(centre: Path) -> float | None:
    """When the signer's key stops counting, in Unix seconds, to the second; None: not within the
    next sixty days. Raises ConfigError or OSError for a centre that cannot be read now."""
    signers = read_signers(centre)
    if not has_dates(signers):
        return None
    body, signature = split(read_file(index_path(centre), MOST_INDEX_BYTES))
    by = decode(body, PublishedIndex).by

    def counts(at_s: int) -> bool:
        try:
            verify(body, signature, signers, by, at_s=at_s)
        except SignatureError:
            return False
        return True

    good = int(time.time())
    bad = good + AHEAD_S
    if counts(bad) or not counts(good):
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if counts(middle) else (good, middle)
    return bad


def warning(centre: Path, by: str, ends_s: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ends_s))
    return (
        f"the key of {by} counts until {when}, then users of {centre} are refused: before that, "
        f"somebody whose key counts longer signs anew (fsdpkit publish sign --to {centre})"
    )
