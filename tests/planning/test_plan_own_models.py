"""`fsdpkit plan --model`: what a function gives, and what cannot be followed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

MODELS = Path(__file__).parent / "ranks" / "models.py"


def plan(function: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, answer, and what standard error says."""
    ran = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "fsdpkit", "plan", "--gpu", "h100-80"),
            *("--json", "--model", f"{MODELS}:{function}"),
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return ran.returncode, json.loads(ran.stdout), ran.stderr


def test_a_model_that_branches_on_a_value_is_planned_with_the_line_named():
    status, answer, _ = plan("branching")
    assert status == 0
    assert "models.py:" in " ".join(answer["plans"][0]["notes"])
    assert answer["plans"][0]["memory"]["measured_bytes"] is None


def test_what_leaves_torch_is_an_error_that_names_the_line():
    status, answer, said = plan("through_numpy")
    line = 1 + MODELS.read_text().splitlines().index(
        "        return x + torch.from_numpy(x.detach().cpu().numpy())"
    )
    assert status == 70
    assert f"models.py:{line}" in answer["message"]
    assert "could not be followed" in said
