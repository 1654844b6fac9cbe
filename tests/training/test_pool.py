"""What tests on the pool may rely on: ranks as torchrun starts them, and cases that stay apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_ranks, run_torchrun

from tests.programs import Write

pytestmark = pytest.mark.torch

DESCRIBE = """
    import json, os, sys

    def described():
        rank = os.environ["RANK"]
        ours = {name: value for name, value in os.environ.items() if name.startswith((
            "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_RANK", "MASTER_ADDR", "FSDPKIT_", "OMP_"))}
        found = {"environment": ours, "argv": sys.argv, "name": __name__, "file": __file__,
                 "path": sys.path[0], "main": described.__module__,
                 "directory": os.getcwd(), "unbuffered": sys.stdout.write_through}
        with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
            json.dump(found, file)

    described()
"""


def test_a_rank_finds_what_it_finds_under_torchrun(write_script: Write, tmp_path: Path) -> None:
    script = write_script("describe.py", DESCRIBE)
    found = []
    for name, run in (("pool", run_ranks), ("torchrun", run_torchrun)):
        (tmp_path / name).mkdir()
        done = run(2, script, str(tmp_path / name), "a word", FSDPKIT_X="1")
        assert done.returncode == 0, done.stdout[-3000:]
        each = [json.loads((tmp_path / name / f"{rank}.json").read_text()) for rank in (0, 1)]
        for rank in each:
            del rank["environment"]["MASTER_ADDR"]
            rank["argv"].remove(str(tmp_path / name))
        found.append(each)
    assert found[0] == found[1]
