"""`fsdpkit --host`: commands of a laptop on a login node, over real ssh."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_slurm
from tests.remote.login_node import SHELLS, LoginNode, login_node, why_not

pytestmark = pytest.mark.xdist_group("remote")

# The login node's fsdpkit for tests of the way there: says what it was called with, and waits,
# fails or ends as the words say.
ECHO = """
import os, signal, sys, time
from fsdpkit.cli import _remote
import fsdpkit.cli.main as cli

def echo():
    import json
    words = [os.fsencode(word).hex() for word in sys.argv[1:]]
    said = {"words": words, "cwd": os.getcwd(), "terminal": os.isatty(1), "runs": os.environ["FSDPKIT_RUNS"]}
    print(json.dumps(said), flush=True)
    if "--task" in sys.argv:
        number = int(sys.argv[sys.argv.index("--task") + 1])
        if number >= 1000:
            os.kill(os.getpid(), number - 1000)
        if number == 999:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                print("interrupted there", flush=True)
                sys.exit(130)
        sys.exit(number)

real, cli.main = cli.main, echo
if sys.argv[1:2] != ["_remote"]:
    sys.exit("not asked from elsewhere")
real()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    if reason := why_not():
        if os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    state = tmp_path_factory.mktemp("state")
    with login_node({"FSDPKIT_STATE_DIR": str(state), "OMP_NUM_THREADS": "1"}) as made:
        yield made
