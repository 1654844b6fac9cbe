"""The combined result of all ranks' flight recorders about a launch that hung: `flight.json`.

torch keeps each rank's last collectives in memory and dumps them when one times out, or when the
agent asks. The dumps are pickles that only their owner opens. The head node's agent reads them all
(launching/flight_analysis.py) and writes this record, which anybody can read without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.bounded import DETAILS_BYTES
from fsdpkit.errors import StorageError
from fsdpkit.listing import spans
from fsdpkit.runs.reading import read_bytes

DUMP = "nccl_trace_rank_"
"""What a dump's name begins with, as torch itself names them; the rank follows."""


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """A group's first collective that some global ranks have not finished or called differently."""

    group: str
    """As the program describes it, such as `default_pg` or `mesh_dp_shard`."""
    operation: str
    """`all_reduce`, as most of those who wait called it."""
    sequence: int
    """The group's collectives are counted from 1."""
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    dtypes: list[str] = []
    waiting: list[int] = []
    """Called it, and have not finished it."""
    finished: list[int] = []
    missing: list[int] = []
    """Have not called it, and left a dump that says so."""
    without_dump: list[int] = []
    """Belong to the group and left no dump: killed, or stuck where nothing can be dumped."""
    different: dict[int, str] = {}
    """By rank, the other operation or sizes that it called under this number."""
    where: str | None = None
    """The line of the program, `train.py:88 in step`, at which a rank waits."""


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that the dumps of a launch say."""

    schema: Literal["fsdpkit.flight/1"] = "fsdpkit.flight/1"
    launch: int
    world_size: int
    dumps: list[int] = []
    """Ranks whose dumps were read."""
    unread: dict[int, str] = {}
    """Ranks whose dumps could not be, and why."""
    stuck: list[Stuck] = []
    """At most one a group: where ranks differ, then where one is missing that waits for none."""


def read_flight_record(path: Path) -> FlightRecord | None:
    """None if there is none. Raises StorageError if it cannot be read."""
    try:
        return msgspec.json.decode(read_bytes(path, DETAILS_BYTES), type=FlightRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def in_words(record: FlightRecord) -> str | None:
    """What the record shows, in one sentence; None if no rank waited for another."""
    return _of_stuck(record.stuck[0]) if record.stuck else None


def _of_stuck(stuck: Stuck) -> str:
    what = f"{stuck.operation} number {stuck.sequence} of group {stuck.group}"
    if stuck.input_sizes or stuck.output_sizes:
        what += f" ({_sizes(stuck.input_sizes or stuck.output_sizes)})"
    waits = f"{_ranks(stuck.waiting)} wait{'s' * (len(stuck.waiting) == 1)}"
    if stuck.where:
        waits += f" at {stuck.where}"
    if stuck.different:
        rank, other = min(stuck.different.items())
        alike = {*stuck.waiting, *stuck.finished} - stuck.different.keys()
        if len(alike) <= len(stuck.different):
            one = f"{_ranks(alike)} {stuck.operation} ({_sizes(stuck.input_sizes)})"
            return (
                f"the ranks of group {stuck.group} called number {stuck.sequence} differently: "
                f"{one}, rank {rank} {other}"
            )
        more = f", as did {len(stuck.different) - 1} more" if len(stuck.different) > 1 else ""
        return f"rank {rank} called {other}{more}, where others called {what}"
    if stuck.missing:
        have = "has" if len(stuck.missing) == 1 else "have"
        return f"{_ranks(stuck.missing)} {have} not called {what}, in which {waits}"
    if stuck.without_dump:
        return f"{waits} in {what}; {_ranks(stuck.without_dump)} left no record"
    if stuck.finished:
        return f"{waits} in {what}, which {_ranks(stuck.finished)} finished"
    return (
        f"all ranks of group {stuck.group} called {what.partition(' of ')[0]} and none finished it"
    )


def _sizes(sizes: Sequence[Sequence[int]]) -> str:
    shown = ", ".join("x".join(map(str, size)) or "1" for size in sizes[:3])
    return f"{shown}, …" if len(sizes) > 3 else shown


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    parts = spans(ranks).split(",")
    many = len(parts) > 1 or "-" in parts[0]
    return f"rank{'s' * many} {', '.join(parts[:8])}{', …' * (len(parts) > 8)}"
