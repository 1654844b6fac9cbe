"""A process of somebody who attacks: an attack for each line that it reads, its answer in a line.

A line is JSON: the attack's name, host, port and what else it takes. The answer has what the attack
did (`did`), or why it could not (`failed`), which is what an attack hopes not to hear.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.slurm_cluster import Session

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120


def main() -> None:
    from tests.attackers.attacks import ATTACKS

    for line in sys.stdin:
        name, host, port, *words = json.loads(line)
        try:
            answer = {"did": ATTACKS[name](host, port, *words)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        print(json.dumps(answer), flush=True)


class Attacker:
    """The test's end: a context manager with the process inside. session: who, and from where."""

    def __init__(self, session: Session) -> None:
        argv = [sys.executable, "-m", "tests.attackers.attacker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._said: Any = None
        self._process = session.start(argv, cwd=ROOT, **pipes)

    def __enter__(self) -> Attacker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)

    def does(self, attack: str, host: str, port: int, *words: str) -> Any:
        """What the attack did; None if it could not."""
        self._process.stdin.write(json.dumps([attack, host, port, *words]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, f"{attack}: no answer within {PATIENCE_S} s"
        answer = json.loads(self._process.stdout.readline())
        if answer != self._said:
            print(attack, answer)  # pytest shows it when the test fails
        self._said = answer
        return answer.get("did")


if __name__ == "__main__":
    main()
