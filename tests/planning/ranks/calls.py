"""Functions that are called to plan a step of a T5. argv: settings as JSON, numbers of ranks."""

from __future__ import annotations

import json
import sys

from peaks import asked

from fsdpkit.planning.taping import tape_of


def called(case: list[str], ranks: int) -> int:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        tape_of(asked(case, ranks), kernels="plain")
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    case, *sizes = map(json.loads, sys.argv[1:])
    tape_of(asked(case, sizes[0]), kernels="plain")  # what is imported and cached does not count
    print("CALLS", json.dumps([called(case, size) for size in sizes]))
