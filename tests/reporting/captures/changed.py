"""The captures again with what means nothing changed, and on more ranks: cause, rank and node must
be named as before.

`python -m tests.reporting.captures.changed` counts, for each kind of change, how many still are.
Seeded, so that the same capture is always changed alike.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.reporting.captures import Capture, all_captures, diagnosis_of, with_noise
from tests.reporting.unseen import mutations as words

Change = Callable[[Capture, Path], Capture | None]
"""A changed copy in an empty directory; None where there is nothing to change."""


def renamed(capture: Capture, place: Path) -> Capture | None:
    """Other names of nodes, homes and addresses."""
    names = {"node1": "r08i3n14", "node2": "r08i3n02", "node3": "r11i0n33"}

    def change(text: str) -> str:
        text = re.sub(r"\bnode\[1-2\]", "r08i3n[14,02]", text)
        text = re.sub(r"\bnode[123]\b", lambda found: names[found[0]], text)
        return re.sub(r"\b10\.99\.\d+\.", "172.21.4.", words.moved(text))

    copy = _copy(capture, place)
    _rewrite(copy, change)
    return _expecting(copy, node=names.get(capture.description.get("node", "")))


def clocks_apart(capture: Capture, place: Path) -> Capture | None:
    """A rank that only lost its peer is the first on record, for clocks differ and files delay."""
    return with_noise(capture, place)


def _of_rank_logs(text_changed: Callable[[str, random.Random], str], why: str) -> Change:
    def change(capture: Capture, place: Path) -> Capture | None:
        dice = random.Random(str(capture))
        logs = [*capture.dir.glob("attempt-*/rank-*.err"), *capture.dir.glob("attempt-*/rank*.out")]
        if not logs:
            return None
        copy = _copy(capture, place)
        for log in sorted(copy.glob("attempt-*/rank-*")):
            if log.suffix in (".err", ".out"):
                log.write_text(text_changed(log.read_text(errors="replace"), dice))
        return Capture.of(copy)

    change.__doc__ = why
    return change


def on_2_x_4(capture: Capture, place: Path) -> Capture | None:
    """The same on 2 nodes of 4 ranks."""
    return _in_shape(capture, place, 2, 4)


def on_8_x_8(capture: Capture, place: Path) -> Capture | None:
    """The same on 8 nodes of 8 ranks."""
    return _in_shape(capture, place, 8, 8)


CHANGES: dict[str, Change] = {
    "renamed": renamed,
    "innocent-words": _of_rank_logs(words.with_innocent_words, "Words of other failures before."),
    "handled-error": _of_rank_logs(words.with_handled_error, "An error got over before."),
    "interleaved": _of_rank_logs(words.interleaved, "Another process writes between the lines."),
    "dropped": _of_rank_logs(words.without_beginning, "The logs begin late."),
    "reordered": _of_rank_logs(words.reordered, "What came before the end came in another order."),
    "clocks-apart": clocks_apart,
    "2x4": on_2_x_4,
    "8x8": on_8_x_8,
}


# Copies


def _copy(capture: Capture, place: Path) -> Path:
    return Path(shutil.copytree(capture.dir, place / capture.dir.name))


def _rewrite(directory: Path, change: Callable[[str], str]) -> None:
    """The content of every file, but for what a person said of it."""
    for file in directory.rglob("*"):
        if file.is_file() and file.name != "capture.toml":
            file.write_text(
                change(file.read_text(errors="surrogateescape")), errors="surrogateescape"
            )


def _expecting(directory: Path, *, node: str | None = None, rank: int | None = None) -> Capture:
    """With this node and this rank where there was one to name."""
    capture = Capture.of(directory)
    for key, value in (("node", node), ("rank", rank)):
        if key in capture.description and value is not None:
            capture.description[key] = value
    return capture


# More ranks


def _in_shape(capture: Capture, place: Path, nodes: int, gpus: int) -> Capture | None:
    """Of a capture with one rank on each of two nodes: its ranks stand in the middle of the first
    and of the last node, and all others do as the rank does that is not to blame."""
    shape = json.loads((capture.dir / "run.json").read_text())
    if (shape["nodes"], shape["ranks_per_node"]) != (2, 1):
        return None
    copy = _copy(capture, place)
    last = nodes - 1
    own = {0: gpus // 2, 1: last * gpus + gpus // 2}
    blamed = capture.description.get("rank")
    _rewrite(copy, lambda text: _in_larger_shape(text, own, nodes, gpus))
    for attempt in copy.glob("attempt-*"):
        _rename(attempt, own, last)
        _add_nodes(attempt, own, nodes, gpus, 1 if blamed == 0 else 0)
        _add_ranks(attempt, own, nodes, gpus, blamed)
    node = {"node2": f"node{nodes}"}.get(capture.description.get("node", ""))
    return _expecting(copy, node=node, rank=own[blamed] if blamed is not None else None)


def _in_larger_shape(text: str, own: dict[int, int], nodes: int, gpus: int) -> str:
    """What programs would have written of ranks and nodes."""
    names = [f"node{number + 1}" for number in range(nodes)]
    spoken, listed = " ".join(names), ",".join(f'"{name}"' for name in names)
    text = text.replace("node1 node2", "\0spoken").replace('"node1","node2"', "\0listed")
    text = re.sub(r"\bnode2\b", f"node{nodes}", text)
    text = text.replace("\0spoken", spoken).replace("\0listed", listed)
    text = text.replace("node[1-2]", f"node[1-{nodes}]")
    text = re.sub(
        r"(?i)(\brank[ =:]?|\branks? |\"rank\": ?)([01])\b",
        lambda found: f"{found[1]}{own[int(found[2])]}",
        text,
    )
    text = re.sub(r"\btask 1\b", f"task {nodes - 1}", text)
    text = re.sub(r"(?<=fsdpkit: )2(?= nodes)", str(nodes), text)
    text = text.replace('"nodes": 2,', f'"nodes": {nodes},')
    return text.replace('"ranks_per_node": 1,', f'"ranks_per_node": {gpus},')


def _rename(attempt: Path, own: dict[int, int], last: int) -> None:
    """Files that are called after ranks and nodes."""
    for file in sorted(attempt.rglob("*"), reverse=True):
        name = re.sub(r"\bnode-1\b", f"node-{last}", file.name)
        name = re.sub(r"\brank-([01])\b", lambda found: f"rank-{own[int(found[1])]}", name)
        if file.is_file() and name != file.name:
            file.rename(file.with_name(name))


def _add_nodes(attempt: Path, own: dict[int, int], nodes: int, gpus: int, like: int) -> None:
    """The nodes between the first and the last, each as the one that is not to blame."""
    source = (nodes - 1) * like
    for file in sorted(attempt.glob(f"node-{source}.*")):
        for node in range(1, nodes - 1):
            text = file.read_text().replace(f"node{source + 1}", f"node{node + 1}")
            text = re.sub(rf'"rank": ?{own[like]}\b', f'"rank":{node * gpus}', text)
            file.with_name(file.name.replace(f"node-{source}", f"node-{node}")).write_text(text)


def _add_ranks(
    attempt: Path, own: dict[int, int], nodes: int, gpus: int, blamed: int | None
) -> None:
    """The other ranks, each as the one that is not to blame, or as the one on its node."""
    for rank in range(nodes * gpus):
        if rank in own.values():
            continue
        near = 1 if rank // gpus == nodes - 1 else 0
        like = near if blamed is None else 1 - blamed
        for file in sorted(attempt.glob(f"rank-{own[like]}.*")):
            text = file.read_text(errors="replace")
            text = re.sub(rf"(?i)(\brank[ =:]?|\"rank\": ?){own[like]}\b", rf"\g<1>{rank}", text)
            text = text.replace(f"node{(nodes - 1) * like + 1}", f"node{rank // gpus + 1}")
            name = file.name.replace(f"rank-{own[like]}", f"rank-{rank}")
            file.with_name(name).write_text(text)


# Counting


def changed(change: Change, place: Path) -> Iterator[Capture]:
    """All captures that can be changed so, each in a directory of its own in `place`."""
    for number, capture in enumerate(all_captures()):
        directory = place / str(number)
        directory.mkdir()
        if (other := change(capture, directory)) is not None:
            yield other


def still_right(change: Change, *, show: bool = False) -> tuple[int, int]:
    """How many of them are named right, and how many there are."""
    right = of = 0
    with tempfile.TemporaryDirectory() as place:
        for capture in changed(change, Path(place)):
            wrong = capture.differences(diagnosis_of(capture))
            right, of = right + (not wrong), of + 1
            if wrong and show:
                print(f"    {capture}: {wrong}: {diagnosis_of(capture).sentence[:160]}")
    return right, of


def main() -> int:
    show = "--show" in sys.argv
    for name, change in CHANGES.items():
        right, of = still_right(change, show=show)
        print(f"{name}: {right} of {of} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
