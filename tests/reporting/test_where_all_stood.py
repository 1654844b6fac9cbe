"""What is said of a job without an exception: where its ranks stood."""

from __future__ import annotations

import msgspec
import pytest

from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import RESET, found, rank

OVER = JobState("TIMEOUT", "sacct", exit_code=0, exit_signal=0)
WAITS = "Using /home/a/.cache/torch_extensions/py312 as PyTorch extensions root...\n"


def _ranks(log: str) -> list[Voice]:
    return [rank(n, None, status=None, time_s=None, log=log.replace("#", str(n))) for n in range(4)]


@pytest.mark.parametrize(
    ("log", "quoted"),
    [
        (f"a warning of rank #\n{WAITS}", True),
        (f"WARNING: step 17 is less than step 18\n{WAITS}", True),
        (f"step 1 loss 2.5\nstep 2 loss 2.4\n{WAITS}", False),
        (f"{WAITS}Traceback (most recent call last):\n  File 'a'\nKeyboardInterrupt\n", True),
    ],
)
def test_the_last_line_of_all_is_quoted_where_no_step_was_made(log: str, quoted: bool) -> None:
    told = found(*_ranks(log), state=OVER, ranks=4)
    assert told.cause == "time-limit"
    assert ("torch_extensions" in told.sentence) == quoted


def test_what_others_printed_and_got_over_is_not_why_one_left() -> None:
    common = "plugin.so: cannot open shared object file: No such file or directory\n"
    peers = [
        msgspec.structs.replace(rank(n, RESET, log=common + "working\n"), time_s=11.0)
        for n in (1, 2)
    ]
    told = found(rank(0, None, status=1, log=common + "the shards are uneven\n"), *peers, ranks=3)
    assert (told.cause, told.rank) == ("exception", 0)
    assert "uneven" in told.sentence
