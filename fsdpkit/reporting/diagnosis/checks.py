"""Findings that no single line shows: comparisons of ranks, of nodes, of a signal with the memory.

Each function takes all that is known about an attempt and yields what it finds; `CHECKS` maps it to
the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from fsdpkit.failures.ends import STOPPED
from fsdpkit.failures.stacks import current_thread, waits_in
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs import flight_record
from fsdpkit.runs.failures import HEAD_SILENT, Level
from fsdpkit.runs.log_ends import LogText


class Observation(NamedTuple):
    """What a function found that no single line says."""

    words: str
    level: Level = Level.OWN
    rank: int | None = None
    node: str | None = None
    seen_in: LogText | None = None
    time_s: float | None = None
    sure: bool = True


def killed_for_memory(attempt: AttemptEvidence) -> Iterator[Observation]:
    """A rank, or a process of its own, ended by SIGKILL on a node whose memory was full: the kernel
    chose it. Perhaps, too, where a rank only says that a process of its own is gone."""
    for voice in attempt.voices:
        machine = attempt.machines.get(voice.node or "")
        if machine is None or not (voice.killed or voice.lost_a_child):
            continue
        share, counted = machine.memory_share, machine.memory_kills
        if counted or share >= 0.95:
            used = f"while {100 * share:.0f} % of the node's memory were in use"
            how = "ended by SIGKILL" if voice.killed else "a process of its own was gone"
            words = f"{how}, and {counted}" if counted else f"{how} {used}"
            place = (voice.rank, voice.node, voice.message)
            yield Observation(words, Level.OWN, *place, sure=voice.killed)


def broken_hardware(attempt: AttemptEvidence) -> Iterator[Observation]:
    """The driver reported an error of a GPU that NVIDIA attributes to the hardware."""
    for node, machine in attempt.machines.items():
        if machine.broken_gpu:
            yield Observation(machine.broken_gpu, Level.OUTSIDE, node=node)


def no_room_in_memory(attempt: AttemptEvidence) -> Iterator[Observation]:
    """SIGBUS, on a node whose /dev/shm or /tmp was full: a mapped file there could not grow."""
    for voice in attempt.voices:
        machine = attempt.machines.get(voice.node or "")
        if machine is not None and machine.full and voice.status == 128 + signal.SIGBUS:
            words = f"ended by SIGBUS, and {machine.full}"
            who, when = (voice.rank, voice.node, voice.message), voice.time_s
            yield Observation(words, Level.OWN, *who, when)


def missing_in_flight(attempt: AttemptEvidence) -> Iterator[Observation]:
    """By the flight recorders of all ranks: which had not called what the others wait in."""
    record = attempt.flight
    for stuck in record.stuck[:1] if record is not None else ():
        if record is not None and stuck.missing and not stuck.different:
            words = flight_record.in_words(record) or ""
            rank = stuck.missing[0] if len(stuck.missing) == 1 else None
            nodes = {attempt.node_of(number) for number in stuck.missing}
            yield Observation(words, Level.OWN, rank, nodes.pop() if len(nodes) == 1 else None)


def different_in_flight(attempt: AttemptEvidence) -> Iterator[Observation]:
    """By the flight recorders: which ranks called something other than the rest."""
    record = attempt.flight
    if record is not None and any(stuck.different for stuck in record.stuck[:1]):
        yield Observation(flight_record.in_words(record) or "", Level.OWN)


def silent_node(attempt: AttemptEvidence) -> Iterator[Observation]:
    """A node whose agent disappeared without a message: the head if the others lost it, or the
    first whose end srun reports, if that was SIGKILL."""
    for voice in attempt.voices:
        if voice.told is not None and voice.told.rule == HEAD_SILENT:
            words = f"the head's agent does not answer {voice.node} any more"
            yield Observation(words, Level.WAITED, node=attempt.head, seen_in=voice.message)
    for node, place in _killed_agent(attempt) if _anybody_spoke(attempt) else ():
        words = "its agent was killed, and it is unknown by whom"
        yield Observation(words, Level.KILLED, node=node, seen_in=place)


def _killed_agent(attempt: AttemptEvidence) -> Iterator[tuple[str, LogText]]:
    told = list(srun_tells(attempt)) if not _shell_was_killed(attempt) else []
    yield from ((node, place) for node, words, place in told[:1] if words == "Killed")


_SRUN = re.compile(r"^srun: error: ([\w.-]+): tasks? [\d,-]+: (.*)$", re.MULTILINE)


def srun_tells(attempt: AttemptEvidence) -> Iterator[tuple[str, str, LogText]]:
    """How the tasks of which node ended, in the order in which srun reports it."""
    logs = (log for voice in attempt.voices if voice.kind == "batch" for log in voice.logs)
    for log in logs:
        for match in _SRUN.finditer(log.text):
            yield match[1], match[2], log.part(*match.span())


def _anybody_spoke(attempt: AttemptEvidence) -> bool:
    return any(voice.kind != "batch" for voice in attempt.voices)


def _shell_was_killed(attempt: AttemptEvidence) -> bool:
    state = attempt.job.state if attempt.job else None
    return attempt.ending is None and state is not None and state.exit_signal == 9


def killed_in_silence(attempt: AttemptEvidence) -> Iterator[Observation]:
    """The batch shell itself was killed, and all that it had started with it; or a task before its
    agent came to be, which says nothing of the node."""
    if _shell_was_killed(attempt):
        yield Observation("the job's own shell was ended by SIGKILL", Level.KILLED)
    for node, place in _killed_agent(attempt) if not _anybody_spoke(attempt) else ():
        words = f"the task on {node} was killed before it wrote anything"
        yield Observation(words, Level.KILLED, node=node, seen_in=place)


def different_head_addresses(attempt: AttemptEvidence) -> Iterator[Observation]:
    """Nodes that look for the head node at another address than most, or the head itself."""
    addresses = list(attempt.head_addresses)
    if len({address for _, address in addresses}) < 2:
        return
    head, right = addresses[0]
    for node, address in addresses:
        if address != right:
            words = f"the head node's name is {address} on {node}, {right} on {head}"
            yield Observation(words, Level.WAITED, node=node)
            return


class _Stand(NamedTuple):
    """Where a rank's main thread was when it was asked."""

    voice: Voice
    waits_in: str | None
    """The function of torch.distributed; None: it was somewhere else."""
    place: str
    line: LogText


def _stands(attempt: AttemptEvidence) -> list[_Stand]:
    """Where each rank was that wrote its stacks, as asked when there is no progress."""
    found = []
    for voice in attempt.voices:
        if voice.kind != "rank" or voice.rank is None or voice.stacks is None:
            continue
        if not (calls := current_thread(voice.stacks.text)):
            continue
        shown = f'  File "{calls[0].file}", line {calls[0].line} in {calls[0].function}'
        at = voice.stacks.text.index(shown)
        line = voice.stacks.part(at, at + len(shown))
        found.append(_Stand(voice, waits_in(calls), str(calls[0]), line))
    return found


def hung(attempt: AttemptEvidence) -> Iterator[Observation]:
    """The one rank, or few, that is somewhere else while the others wait for it."""
    stands = _stands(attempt)
    elsewhere = [stand for stand in stands if stand.waits_in is None]
    if len(elsewhere) < len(stands):
        for stand in elsewhere:
            words = f"it is at {stand.place}, while other ranks wait for it"
            yield Observation(words, Level.OWN, stand.voice.rank, stand.voice.node, stand.line)


def _stacks_differ(attempt: AttemptEvidence) -> Iterator[Observation]:
    """When the ranks count as hung, all wait in collectives, but not in the same one."""
    stands = _stands(attempt)
    where = {stand.waits_in: stand for stand in reversed(stands)}
    if len(where) > 1 and None not in where:
        told = sorted((stand.voice.rank or 0, name) for name, stand in where.items())
        words = ", ".join(f"rank {rank} waits in {name}" for rank, name in told)
        yield Observation(words, Level.OWN, seen_in=stands[0].line)


_WATCHDOG = re.compile(
    r"Rank (\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
)


def _watchdog_texts(attempt: AttemptEvidence) -> Iterator[str]:
    for voice in attempt.voices:
        if voice.kind == "rank":
            yield from (text.text for text in (voice.message, *voice.logs) if text is not None)


def _watchdogs_differ(attempt: AttemptEvidence) -> Iterator[Observation]:
    """NCCL's watchdogs gave up on different collectives with the same number."""
    seen: dict[str, dict[str, set[int]]] = {}
    for text in _watchdog_texts(attempt):
        for rank, number, kind in _WATCHDOG.findall(text):
            seen.setdefault(number, {}).setdefault(kind, set()).add(int(rank))
    for number, kinds in seen.items():
        if len(kinds) > 1:
            told = (f"rank {min(ranks)} {kind}" for kind, ranks in sorted(kinds.items()))
            odd = _odd_one(kinds.values())
            node = None if odd is None else attempt.node_of(odd)
            words = f"collective {number} is not the same everywhere: {', '.join(told)}"
            yield Observation(words, Level.OWN, odd, node)
            return


def _odd_one(groups: Collection[set[int]]) -> int | None:
    """The only rank that differs from several others."""
    alone = [ranks for ranks in groups if len(ranks) == 1]
    return min(alone[0]) if len(groups) == 2 and len(alone) == 1 else None


_POLL_S = 2.0
"""How much later than a process has left its agent may notice it."""


def left_early(attempt: AttemptEvidence) -> Iterator[Observation]:
    """The first rank that ended with status 0 before the others failed: its data ended earlier, or
    something in it called exit. The others only lose their connection to it."""
    ranks = [voice for voice in attempt.voices if voice.kind == "rank" and voice.rank is not None]
    timed = [(v.time_s, v.rank or 0, v) for v in ranks if v.time_s is not None]
    ended = [one for one in timed if one[2].status == 0]
    failed = [time_s for time_s, _, v in timed if v.status not in (0, None, STOPPED)]
    if not ended or not failed:
        return
    time_s, rank, voice = min(ended, key=lambda one: one[:2])
    if time_s <= min(failed) + _POLL_S:
        yield Observation("it ended with exit status 0", Level.WAITED, rank, voice.node)


def _collectives(attempt: AttemptEvidence) -> Iterator[Observation]:
    for check in (different_in_flight, _stacks_differ, _watchdogs_differ, left_early):
        yield from check(attempt)


def log_not_opened(attempt: AttemptEvidence) -> Iterator[Observation]:
    """Slurm ends a batch job by `signal 53` when it cannot open its log or working directory."""
    state = attempt.job.state if attempt.job else None
    if state is not None and state.exit_signal == 53:
        yield Observation("Slurm could not open the job's log on the node (signal 53)")


def _hung_or_behind(attempt: AttemptEvidence) -> Iterator[Observation]:
    for check in (missing_in_flight, hung):
        found = list(check(attempt))
        yield from found
        if found:
            return


CHECKS: dict[str, Callable[[AttemptEvidence], Iterator[Observation]]] = {
    "host-out-of-memory": killed_for_memory,
    "bad-gpu": broken_hardware,
    "disk-full": no_room_in_memory,
    "node-failure": silent_node,
    "head-address": different_head_addresses,
    "script-not-visible": log_not_opened,
    "collective-mismatch": _collectives,
    "hang": _hung_or_behind,
    "unknown": killed_in_silence,
}
"""By cause."""
