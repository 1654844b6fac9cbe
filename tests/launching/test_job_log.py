"""What agents write into a job's log."""

from __future__ import annotations

import pytest

from fsdpkit.launching.job_log import say


@pytest.mark.parametrize(
    "text",
    [
        "rank 1 on node1: ValueError: a\nCUDA out of memory",
        "rank 1 on node1: ValueError: a\r\nfsdpkit: node2: torch cannot be imported",
        "rank 1 on node1: ValueError: \x1b]0;a title\x07\x1b[31m a\n\n\n b",
    ],
)
def test_a_failure_is_one_line_whatever_its_text_holds(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say(text)
    printed = capsys.readouterr().out
    assert printed.startswith("fsdpkit: rank 1 on node1: ValueError: ")
    assert printed.endswith("\n")
    assert printed[:-1].isprintable()
