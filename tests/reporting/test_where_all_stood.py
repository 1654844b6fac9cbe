"""What is said of a job without an exception: where its ranks stood."""

from __future__ import annotations

import msgspec
import pytest

from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.samples import Sample
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


def _timed(voice: Voice, *samples: tuple[float, int, int]) -> Voice:
    """samples: seconds since the start, bytes of standard error, steps."""
    made = [
        Sample(time_s=at_s, launch=0, optimizer_steps=steps, printed={voice.rank or 0: (0, size)})
        for at_s, size, steps in samples
    ]
    return msgspec.structs.replace(voice, when=PrintedWhen(made, 0))


BROKE = "error: the archive is broken\n"


@pytest.mark.parametrize(
    ("later", "steps", "words"),
    [
        ("", 400, "the archive is broken (31 min and 400 steps before the end)"),
        ("error: no such table\n", 400, "no such table"),
        ("", 0, "the archive is broken"),
    ],
)
def test_an_old_error_that_was_survived_counts_only_if_nothing_came_later(
    later: str, steps: int, words: str
) -> None:
    voice, size = rank(0, None, log=BROKE + later), len(BROKE)
    samples = ((0.0, size, 0), (1800.0, size, steps - 3), (1860.0, size + len(later), steps))
    told = found(_timed(voice, *samples), ranks=1)
    assert words in told.sentence
    assert ("broken" in told.sentence) == ("broken" in words)


@pytest.mark.parametrize(("last_s", "told"), [(600.0, True), (1700.0, False)])
def test_ranks_that_had_long_been_silent_are_told_of(last_s: float, told: bool) -> None:
    log = "step 1 loss 2.5\nsaving #\n"
    samples = ((0.0, 5, 0), (last_s, len(log), 1), (1800.0, len(log), 1))
    of_all = found(*(_timed(voice, *samples) for voice in _ranks(log)), state=OVER, ranks=4)
    assert ("20 min before the end" in of_all.sentence) == told
