"""`fsdpkit` as another user of the machine types it: one process of theirs for many commands.

Started as that user, `python -m tests.publishing.typist` reads a command a line, JSON's list of its
words, and answers with a line of JSON; a process for each command would cost a second each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.publishing.centres import Said
from tests.slurm_cluster.users import CHECKOUT, Session


@dataclass(frozen=True)
class Typist:
    """Types as the user of a session, in one directory."""

    process: subprocess.Popen[str]

    def typed(self, *words: str | Path) -> Said:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process of {words} is gone"
        return Said(**json.loads(answer))


@contextmanager
def typist(session: Session, cwd: Path, env: Mapping[str, str]) -> Iterator[Typist]:
    environ = {**session.env(), "PYTHONPATH": str(CHECKOUT), **env}
    words = session.words([sys.executable, "-m", "tests.publishing.typist"], cwd)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environ, text=True, **streams) as process:
        yield Typist(process)
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    from fsdpkit.publishing import template_shell
    from tests.publishing.centres import typed

    # It reads the same scripts for test_goldens.py, and takes as long here as the whole rest.
    template_shell.has_shellcheck = lambda: False
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a command's own children print is no answer
        for line in sys.stdin:
            try:
                said = typed(*json.loads(line))
            except BaseException:
                said = Said(70, "", traceback.format_exc())
            answers.write(json.dumps(asdict(said)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
