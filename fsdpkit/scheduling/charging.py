"""What a live cluster charges, and what its centre says an account has left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence

from fsdpkit.bounded import BALANCE_BYTES, BALANCE_S
from fsdpkit.config.billing import HourlyRates, counting_of, parse_weights
from fsdpkit.config.placement import Placement
from fsdpkit.config.profile import SiteProfile
from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.live_placement import chosen
from fsdpkit.scheduling.slurm_answers import answers_for


def rates_of(profile: SiteProfile, placement: Placement) -> HourlyRates | None:
    """The profile's, else those that Slurm has for the partition; None where neither says any."""
    if (found := profile.billing.rates(placement.partition)) is not None:
        return found
    if (answers := answers_for(profile)) is None:
        return None
    try:
        live = answers.live(nodes=False, accounting=False)
    except SchedulerError:
        return None
    for one in chosen(live, placement.select.get("partition")):
        with contextlib.suppress(ValueError):  # weights of a kind that is not known here
            if one.billing:
                return HourlyRates(
                    parse_weights(one.billing),
                    counting_of(live.config.get("PriorityFlags", "")),
                    profile.billing.unit,
                    f"TRESBillingWeights of partition {one.name}",
                )
    return None


def balance_of(command: Sequence[str], account: str) -> str:
    """What the centre's command prints for the account, or why it printed nothing; a part of it
    where that is long. Never raises."""
    argv = [word.replace("{account}", account) for word in command]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"{argv[0]} cannot be run: {error.strerror}"
    with child:
        try:
            return _first_bytes(child).decode(errors="replace").strip() or f"{argv[0]} says nothing"
        except TimeoutError:
            return f"{argv[0]} has not answered within {BALANCE_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started


def _first_bytes(child: subprocess.Popen[bytes]) -> bytes:
    """Of its output, until its end. Raises TimeoutError."""
    assert child.stdout is not None
    parts, left, end_s = [b""], BALANCE_BYTES, time.monotonic() + BALANCE_S
    while left > 0:
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            raise TimeoutError
        if not (part := child.stdout.read1(left)):  # type: ignore[attr-defined]
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
