"""Whom a failure struck, and when, as the advice asks for it."""

from __future__ import annotations

import pytest

from fsdpkit.reporting.diagnosis.circumstances import circumstances_of
from fsdpkit.reporting.diagnosis.diagnose import root
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.findings import findings_of
from tests.reporting.made_evidence import RESET, agent, attempt, rank

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SAVING = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
    '  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1, in save\n'
    "OSError: [Errno 28] No space left on device: '/scratch/c'\n"
)


def _of(made: AttemptEvidence) -> tuple[str, str]:
    first = root(findings_of(made), made)
    assert first is not None
    found = circumstances_of(made, first)
    return found.scope, found.phase


@pytest.mark.parametrize(
    ("made", "scope"),
    [
        (attempt(rank(0, OOM), rank(2, RESET), ranks=4), "rank"),
        (attempt(rank(0, OOM), rank(1, OOM), rank(2, RESET), ranks=4), "node"),
        (attempt(*(rank(n, OOM) for n in range(4)), ranks=4), "all"),
        (attempt(*(rank(n, OOM) for n in (0, 2)), rank(4, RESET), ranks=8), "several"),
        (attempt(agent("node1", "python: not found"), agent("node2", "x"), ranks=4), "node"),
        (attempt(agent("node1", "python: command not found")), "only-node"),
    ],
)
def test_scope_is_known(made: AttemptEvidence, scope: str) -> None:
    assert _of(made)[0] == scope


@pytest.mark.parametrize(
    ("made", "phase"),
    [
        (attempt(rank(0, OOM, log="loading data\n"), ranks=1), "setup"),
        (attempt(rank(0, OOM, log="step 12 loss 2.3\n"), ranks=1), "steps"),
        (attempt(rank(0, None, log=SAVING), ranks=1), "saving"),
        (attempt(agent("node1", "python: command not found")), "start"),
    ],
)
def test_phase_is_known(made: AttemptEvidence, phase: str) -> None:
    assert _of(made)[1] == phase
