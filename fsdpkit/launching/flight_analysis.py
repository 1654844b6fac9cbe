"""Reads the flight recorder dumps of all ranks of a launch and writes the combined result.

    python -m fsdpkit.launching.flight_analysis DUMPS RESULT LAUNCH WORLD_SIZE

It is a separate process, because its time and memory grow with the number of ranks and must not
bring down the agent. A dump is a pickle of lists, dicts, numbers and texts, and only these are
accepted; the directory must belong to this user and be closed to all others. Which ranks a
collective waits for is derived from the states of the entries. Source of the format:
torch/csrc/distributed/c10d/FlightRecorder.hpp and
torch/distributed/flight_recorder/components/builder.py, torch 2.13.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fsdpkit.bounded import descriptor
from fsdpkit.process_limits import limit_resources
from fsdpkit.runs.flight_record import DUMP, FlightRecord, Stuck
from fsdpkit.runs.layout import write_atomically

MEMORY_BYTES = 4 << 30
CPU_S = 120
_MOST_BYTES = 256 << 20
_MOST_ENTRIES = 256_000
"""Of all ranks together; of each rank the last ones."""
_QUIET_S = 8.0
_SIZES_A_SECOND = 1000
"""How many files a file server is asked for, which may be what the ranks wait for."""
"""Ranks of other nodes are asked a little later; no new dump for so long: none will come."""
_NONE_S = 3.0
_LONGEST_WAIT_S = 40.0
Entry = dict[str, Any]


class Dump(NamedTuple):
    """One rank's."""

    version: str
    entries: list[Entry]
    groups: dict[str, tuple[str, tuple[int, ...]]]
    """By a group's name, its description and its ranks."""


class _Plain(pickle.Unpickler):
    """Accepts no classes and no functions: a dump has none."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def main(words: Sequence[str]) -> None:
    """Wait for the dumps, read them, write the result; nothing where there are no dumps."""
    dumps, result, launch, world_size = Path(words[0]), Path(words[1]), int(words[2]), int(words[3])
    os.nice(10)
    if not wait_for_dumps(dumps, world_size):
        return
    limit_resources(memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)
    read, unread = read_dumps(dumps)
    record = record_of(read, launch, world_size)
    record = msgspec.structs.replace(record, unread=unread)
    write_atomically(result, msgspec.json.format(msgspec.json.encode(record)).decode())


def wait_for_dumps(directory: Path, world_size: int) -> bool:
    """Whether there are any, once all ranks have left theirs or no more arrive."""
    began_s = changed_s = time.monotonic()
    before: dict[int, int] = {}
    while (now := time.monotonic()) - began_s < _LONGEST_WAIT_S:
        sizes = {rank: _size(path) for rank, path in _files(directory).items()}
        if sizes != before:
            before, changed_s = sizes, now
        quiet_s = now - changed_s
        whole = len(sizes) >= world_size and all(sizes.values())
        if quiet_s > (1.0 if whole else _QUIET_S if sizes else _NONE_S):
            break
        time.sleep(max(0.2, len(sizes) / _SIZES_A_SECOND))
    return bool(before)


def _files(directory: Path) -> dict[int, Path]:
    found = {}
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if match := re.fullmatch(rf"{DUMP}(\d{{1,7}})", path.name):
                found[int(match[1])] = path
    return dict(sorted(found.items()))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def read_dumps(directory: Path) -> tuple[dict[int, Dump], dict[int, str]]:
    """By rank; and for those that cannot be read, the reason."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(number)
        ranks = _files(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return {}, dict.fromkeys(ranks, "the directory is not this user's alone")
        most = max(200, _MOST_ENTRIES // max(1, len(ranks)))
        read: dict[int, Dump] = {}
        unread: dict[int, str] = {}
        for rank, path in ranks.items():
            try:
                read[rank] = _dump(_own_bytes(path.name, number), most)
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                unread[rank] = f"{type(error).__name__}: {error}"[:200]
            except (pickle.UnpicklingError, EOFError, IndexError, MemoryError) as error:
                unread[rank] = f"{type(error).__name__}: {error}"[:200]
    finally:
        os.close(number)
    return read, unread


def _own_bytes(name: str, directory: int) -> bytes:
    with open(descriptor(name, directory), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise OSError("it is not this user's file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return data


def _dump(data: bytes, most: int) -> Dump:
    """Raises whatever reading a malformed one raises."""
    content = _Plain(io.BytesIO(data)).load()
    entries = [_checked(entry) for entry in content["entries"][-most:]]
    groups = {}
    for name, group in content["pg_config"].items():
        ranks = tuple(int(rank) for rank in re.findall(r"\d+", str(group["ranks"])))
        if name and ranks:
            groups[str(name)] = (str(group["desc"]), ranks)
    return Dump(str(content["version"]), entries, groups)


def _checked(entry: Entry) -> Entry:
    """With what is read of it; frames, most of a dump's size, only of calls that go on."""
    name, description = entry["process_group"]
    return {
        **entry,
        "process_group": (str(name), str(description)),
        "profiling_name": str(entry["profiling_name"]),
        "collective_seq_id": int(entry["collective_seq_id"]),
        "record_id": int(entry["record_id"]),
        "frames": [] if _is_done(entry) else list(entry.get("frames", ()))[:24],
    }


def _is_done(entry: Entry) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"


def record_of(dumps: Mapping[int, Dump], launch: int, world_size: int) -> FlightRecord:
    """What the dumps say together."""
    dumps = _with_groups(dumps, world_size)
    return FlightRecord(
        launch=launch, world_size=world_size, dumps=sorted(dumps), stuck=_stuck(dumps)
    )


def _with_groups(dumps: Mapping[int, Dump], world_size: int) -> dict[int, Dump]:
    """gloo records no group by name: the default one has all ranks, another those that used it."""
    used: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        for entry in dump.entries:
            used[entry["process_group"]].add(rank)
    completed = {}
    for rank, dump in dumps.items():
        groups = dict(dump.groups)
        for (name, description), ranks in used.items():
            if name not in groups and rank in ranks:
                everybody = range(world_size) if description == "default_pg" else sorted(ranks)
                groups[name] = (description, tuple(everybody))
        completed[rank] = dump._replace(groups=groups)
    return completed


class _Group(NamedTuple):
    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        plain = self.description in ("", "undefined")
        return self.name if plain else self.description


def _stuck(dumps: Mapping[int, Dump]) -> list[Stuck]:
    calls: dict[_Group, dict[int, dict[int, Entry]]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for name, (description, ranks) in dump.groups.items():
            calls[_Group(name, description, ranks)].setdefault(rank, {})
        for entry in dump.entries:
            if entry.get("is_p2p"):
                continue
            description, ranks = dump.groups[entry["process_group"][0]]
            group = _Group(entry["process_group"][0], description, ranks)
            # Coalesced calls share a number: ranks wait for the group of them.
            calls[group].setdefault(rank, {})[entry["collective_seq_id"]] = entry
    found = [stuck for group, by_rank in calls.items() if (stuck := _first(group, by_rank))]
    waiting = {rank for stuck in found for rank in stuck.waiting}

    def order(stuck: Stuck) -> tuple[bool, bool, int, str]:
        """The one all wait for waits for none; others are missing because they wait elsewhere."""
        to_blame = set(stuck.missing) - waiting
        return not stuck.different, not to_blame, -len(stuck.waiting), stuck.group

    return sorted(found, key=order)


def _first(group: _Group, calls: Mapping[int, Mapping[int, Entry]]) -> Stuck | None:
    """The earliest collective called differently, or that a rank waits in; where the others are."""
    is_open = {rank: [n for n, e in by.items() if not _is_done(e)] for rank, by in calls.items()}
    differing = _differing(calls)
    numbers = [number for some in is_open.values() for number in some] + differing
    if numbers:
        number = min(numbers)
        waiting = [rank for rank, some in is_open.items() if number in some]
    else:
        # gloo also closes the entry of an abandoned call, and never says `completed`.
        number = 1 + min((max(by, default=0) for by in calls.values()), default=0)
        called = {rank: by[number] for rank, by in calls.items() if number in by}
        waiting = [rank for rank, entry in called.items() if entry["state"] != "completed"]
    entries = {rank: by[number] for rank, by in calls.items() if number in by}
    if not waiting and number not in differing:
        return None
    kinds = Counter(_call(entry) for entry in entries.values())
    usual = max(kinds, key=lambda kind: (kinds[kind], kind == _call(entries[min(entries)])))
    alike = {rank: entry for rank, entry in entries.items() if _call(entry) == usual}
    shown = next(iter(alike.values()))
    # The recorder keeps only the last calls: a rank with later calls has made this one.
    beyond = {rank for rank, by in calls.items() if any(later > number for later in by)}
    without = [rank for rank in group.ranks if rank not in calls]
    asked = next((e for r, e in alike.items() if r in waiting), shown)
    return Stuck(
        group=group.label,
        operation=_operation(shown),
        sequence=number,
        input_sizes=shown["input_sizes"],
        output_sizes=shown["output_sizes"],
        dtypes=sorted({str(kind) for kind in shown["input_dtypes"]}),
        waiting=sorted(waiting),
        finished=sorted(({*entries} | beyond) - {*waiting}),
        missing=sorted(r for r in calls if r in group.ranks and r not in {*entries} | beyond),
        without_dump=sorted(without),
        different={
            rank: _in_words(entry) for rank, entry in sorted(entries.items()) if rank not in alike
        },
        where=_place(asked["frames"]),
    )


def _differing(calls: Mapping[int, Mapping[int, Entry]]) -> list[int]:
    """Numbers under which ranks called different operations. Sizes are not compared here: those of
    a call that finished everywhere prove nothing."""
    operations: dict[int, set[str]] = defaultdict(set)
    for by in calls.values():
        for number, entry in by.items():
            operations[number].add(_operation(entry))
    return [number for number, names in operations.items() if len(names) > 1]


_OF_EACH_RANK_S_OWN_SIZE = frozenset(
    {
        *("all_to_all", "all_to_all_single", "all_to_all_v_single"),
        *("scatter", "gather", "all_gather_v", "reduce_scatter_v"),
    }
)


def _call(entry: Entry) -> tuple[str, str]:
    """What all ranks must have alike."""
    operation = _operation(entry)
    if operation in _OF_EACH_RANK_S_OWN_SIZE:
        return operation, ""
    return operation, str((entry["input_sizes"], entry["output_sizes"], entry["input_dtypes"]))


def _operation(entry: Entry) -> str:
    return str(entry["profiling_name"].partition(":")[2] or entry["profiling_name"])


def _in_words(entry: Entry) -> str:
    sizes = entry["input_sizes"] or entry["output_sizes"]
    shown = ", ".join("x".join(map(str, size)) or "1" for size in sizes[:3])
    kinds = ", ".join(sorted({str(kind) for kind in entry["input_dtypes"]}))
    return f"{_operation(entry)} ({shown} {kinds})".replace(" )", ")")


def _place(frames: Iterable[Mapping[str, Any]]) -> str | None:
    """The innermost line that is not torch's own."""
    for frame in frames:
        path = str(frame.get("filename", ""))
        if path and "/torch/" not in path and not path.startswith("<"):
            return f"{path}:{frame.get('line')} in {frame.get('name')}"
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
