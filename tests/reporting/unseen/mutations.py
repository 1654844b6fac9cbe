"""The cases again with what means nothing changed: whoever reads them must answer as before.

`python -m tests.reporting.unseen.mutations` counts, for each kind of change, how many are still
named right. Seeded, so that the same case is always changed alike.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.reporting.unseen.case import Case, Rank
from tests.reporting.unseen.files import all_cases
from tests.reporting.unseen.score import answer

INNOCENT = (
    "hint: on 'CUDA out of memory' take a smaller batch; on 'Connection reset' see the peer",
    "INFO store: port 29500 in use (Address already in use), retrying with 29501",
    "eval loss nan for the empty split 'held-out'",
    "columns: ['smiles', 'Xid', 'taxid', 'oxide']",
    "WARNING hub: could not reach the mirror, using the cached snapshot",
    "INFO writer: 'No space left on device' is retried three times, then the run stops",
    "INFO signals: DUE TO TIME LIMIT is announced by SIGUSR1, and a checkpoint is saved",
)
HANDLED = (
    "INFO cache: miss, building anew",
    "Traceback (most recent call last):",
    '  File "/home/ada/lib/cache.py", line 31, in open_cache',
    '    return pickle.load(open(path, "rb"))',
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/cache-ada/vocab.pkl'",
    "INFO cache: built in 3.1 s",
    *(f"step {step} | loss {9 - step / 10:.3f} | 41230 tok/s" for step in range(8)),
)
LOST_PEER = """\
Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 88, in main
    loss.backward()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.1.2.3]:4321
"""  # noqa: E501


# Of a text


def with_innocent_words(text: str, dice: random.Random) -> str:
    """It begins with words that name other failures."""
    return "\n".join(dice.sample(INNOCENT, 3)) + "\n" + text


def with_handled_error(text: str, dice: random.Random) -> str:
    """It begins with an exception that was caught, logged with its traceback, and got over."""
    return "\n".join(HANDLED) + "\n" + text


def interleaved(text: str, dice: random.Random) -> str:
    """Lines of another process stand between any two."""
    lines = text.split("\n")
    mixed: list[str] = []
    for place, line in enumerate(lines):
        mixed.append(line)
        if place + 1 < len(lines) and dice.random() < 0.1:
            mixed.append(f"loader 3: shard {dice.randrange(900)} opened")
    return "\n".join(mixed)


def without_beginning(text: str, dice: random.Random) -> str:
    """Of what stood before the first traceback something is gone."""
    lines = text.split("\n")
    first = max(0, min([*_tracebacks(lines)[:1], len(lines) - 40]))
    return "\n".join(lines[dice.randint(0, first) :])


def reordered(text: str, dice: random.Random) -> str:
    """What stood before the first traceback came in another order."""
    lines = text.split("\n")
    headers = _tracebacks(lines)
    if not headers or headers[0] < 3:
        return text
    early = lines[: headers[0] - 2]
    dice.shuffle(early)
    return "\n".join([*early, *lines[headers[0] - 2 :]])


def _tracebacks(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if "Traceback (most recent" in line]


def moved(text: str) -> str:
    """Somebody else's home, script and environment."""
    text = text.replace("/home/ada/", "/gpfs/proj1/grp7/b.li/").replace("train.py", "ft_v2.py")
    return text.replace("/opt/venv/", "/gpfs/proj1/grp7/miniforge3/envs/pt/")


# Of a case


def innocent_words(case: Case, dice: random.Random) -> Case:
    """Every rank had said what names other failures, and went on."""
    return _of_ranks(
        case,
        lambda rank: replace(
            rank,
            err=with_innocent_words(rank.err, dice),
            out=with_innocent_words(rank.out, dice),
        ),
    )


def handled_error(case: Case, dice: random.Random) -> Case:
    """Every rank had caught an exception, logged it with its traceback, and gone on."""
    return _of_errors(case, dice, with_handled_error)


def other_lines_between(case: Case, dice: random.Random) -> Case:
    """Another process writes into the same standard error: its lines stand between any two."""
    return _of_errors(case, dice, interleaved)


def earlier_lines_gone(case: Case, dice: random.Random) -> Case:
    """The log begins late: of what stood before the first traceback something is gone."""
    return _of_errors(case, dice, without_beginning)


def earlier_lines_reordered(case: Case, dice: random.Random) -> Case:
    """What stood before the first traceback came in another order."""
    return _of_errors(case, dice, reordered)


def other_paths(case: Case, dice: random.Random) -> Case:
    """Somebody else's home, script and environment."""

    def change(rank: Rank) -> Rank:
        return replace(rank, err=moved(rank.err), out=moved(rank.out))

    return _of_ranks(case, change)


def peers_are_lost(case: Case, dice: random.Random) -> Case | None:
    """The other ranks end as well, for they lost their peer, and say so."""
    quiet = case.others == Rank() and not (case.before_ranks or case.lost or case.hung)
    failed = any(rank.status and rank.status < 128 for rank in case.ranks.values())
    if not quiet or not failed or case.want.best in ("hang", "connection-reset", "unknown"):
        return None
    return replace(case, others=Rank(err=LOST_PEER, status=1, after_s=0.05 + dice.random() / 50))


def on_64_ranks(case: Case, dice: random.Random) -> Case | None:
    """The same on 8 nodes with 8 GPUs each; the ranks keep their nodes and their places there."""
    told = "".join(rank.err + rank.out for rank in case.ranks.values())
    numbered = re.search(r"(?i)\branks?\W{0,2}\d", told + case.batch)
    if case.size >= 64 or case.nodes > 8 or case.hung or case.stacks or numbered:
        return None
    if len(case.ranks) == case.size:  # what all ranks do, all 64 do
        return None

    def placed(rank: int) -> int:
        return rank // case.gpus * 8 + rank % case.gpus

    want = case.want
    if isinstance(want.rank, int):
        want = replace(want, rank=placed(want.rank))
    ranks = {placed(rank): one for rank, one in case.ranks.items()}
    return replace(case, nodes=8, gpus=8, ranks=ranks, want=want)


Mutation = Callable[[Case, random.Random], Case | None]
MUTATIONS: tuple[Mutation, ...] = (
    innocent_words,
    handled_error,
    other_lines_between,
    earlier_lines_gone,
    earlier_lines_reordered,
    other_paths,
    peers_are_lost,
    on_64_ranks,
)


def _of_ranks(case: Case, change: Callable[[Rank], Rank]) -> Case:
    ranks = {number: change(rank) for number, rank in case.ranks.items()}
    return replace(case, ranks=ranks, others=change(case.others))


def _of_errors(
    case: Case, dice: random.Random, change: Callable[[str, random.Random], str]
) -> Case:
    return _of_ranks(case, lambda rank: replace(rank, err=change(rank.err, dice)))


def changed(mutation: Mutation, cases: list[Case]) -> Iterator[Case]:
    """All cases that can be changed so."""
    for case in cases:
        if (other := mutation(case, random.Random(case.name))) is not None:
            yield other


def main() -> int:
    show = "--show" in sys.argv
    for mutation in MUTATIONS:
        with tempfile.TemporaryDirectory() as place:
            cases = enumerate(changed(mutation, all_cases()))
            answers = [answer(case, Path(place) / str(n)) for n, case in cases]
        wrong = [one for one in answers if one.mark != "right"]
        print(f"{mutation.__name__}: {len(answers) - len(wrong)} of {len(answers)} right")
        for one in wrong if show else ():
            print(f"    {one.case.name}: {one.diagnosis.cause}, {one.diagnosis.sentence[:150]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
