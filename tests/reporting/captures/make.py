"""Makes captures of real failures: `python -m tests.reporting.captures.make [NAME...]`.

Needs root and Slurm's packages, as tests/slurm_cluster does, and is no part of CI: what it makes is
committed. Without a name it makes all of them, which takes most of an hour; `--list` names them. A
name may be a cause, for all its captures, or have a `*`.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.trial import TrialError
from tests.slurm_cluster import ClusterError, SlurmCluster

from .making import CAPTURES, SCENARIOS, Stage, capture, finish
from .making.in_memory import forget_cgroups


def chosen(names: Sequence[str]) -> list[str]:
    """The scenarios that the words on the command line mean, in the order of their definition."""

    def wanted(name: str) -> bool:
        cause = SCENARIOS[name].cause
        return not names or any(w == cause or fnmatch.fnmatch(name, w) for w in names)

    found = [name for name in SCENARIOS if wanted(name)]
    if not found:
        raise SystemExit(f"no such capture: {' '.join(names)}; --list names them")
    return found


@contextlib.contextmanager
def stage_for(options: tuple[tuple[str, object], ...]) -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory(prefix="captures-", ignore_cleanup_errors=True) as place,
        SlurmCluster(Path(place) / "slurm", **dict(options)) as cluster,
    ):
        try:
            yield Stage(cluster, Path(place))
        finally:
            cluster.down()
            forget_cgroups(cluster.options.node_names)


def make(stage: Stage, name: str, into: Path) -> bool:
    """Make one capture and clean up after it; False if it did not come about."""
    scenario = SCENARIOS[name]
    stage.before = {}
    try:
        with contextlib.ExitStack() as stage.undo:
            trial = scenario.make(stage)
            if not scenario.unfinished:
                finish(stage, trial)
            target = capture(stage, scenario, trial, into)
    except (TrialError, ClusterError, AssertionError):
        traceback.print_exc()
        return False
    finally:
        stage.bed.mend()
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{name}: {size / 1000:.0f} kB", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--into", type=Path, default=CAPTURES, help="directory of the captures")
    words = parser.parse_args()
    names = chosen(words.names)
    if words.list:
        print("\n".join(names))
        return 0
    failed = []
    for options in dict.fromkeys(SCENARIOS[name].cluster for name in names):
        with stage_for(options) as stage:
            for name in names:
                if SCENARIOS[name].cluster == options and not make(stage, name, words.into):
                    failed.append(name)
    if failed:
        print(f"not made: {' '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
