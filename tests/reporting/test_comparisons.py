"""What no single line says: ranks and nodes compared with one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fsdpkit.reporting.diagnosis.evidence import MachineEvidence
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import HUNG, Level
from fsdpkit.runs.flight_record import FlightRecord, Stuck
from fsdpkit.runs.log_ends import LogText
from tests.reporting.made_evidence import RESET, agent, found, rank


def stacks(number: int, *frames: str) -> Voice:
    lines = "".join(f"  File {frame}\n" for frame in frames)
    other = 'Thread 0x1:\n  File "/x/torch/distributed/a.py", line 1 in wait\n\n'
    text = LogText(f"{other}Current thread 0x2:\n{lines}")
    seen: dict[str, Any] = {"rule": HUNG, "cause": "hang", "level": Level.WAITED}
    voice = rank(number, f"rank {number} made no step for 9 s", status=124, **seen)
    return msgspec.structs.replace(voice, stacks=text)


C10D = '"/v/torch/distributed/distributed_c10d.py", line 3252 in '
LOGGER = '"/v/torch/distributed/c10d_logger.py", line 83 in wrapper'
RECORD = '"/v/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367 in wrapper'


def watchdog(number: int, kind: str) -> Voice:
    text = (
        f"[rank{number}]:[E626 ProcessGroupNCCL.cpp:616] [Rank {number}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum=808, OpType={kind}, NumelIn=9, NumelOut=9, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    )
    return rank(number, "ended by signal 6 (SIGABRT)", status=134, log=text)


def test_a_head_with_another_address_on_one_node_explains_why_that_does_not_come() -> None:
    addresses = (("node1", "10.0.0.1"), ("node2", "10.9.9.9"))
    waited = agent("node2", "rendezvous-timeout", status=1, level=Level.WAITED)
    diagnosis = found(waited, head_addresses=addresses)
    assert (diagnosis.cause, diagnosis.node) == ("head-address", "node2")


# Ranks that gave up waiting


GAVE_UP = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation"


def silent(number: int) -> Voice:
    return rank(number, None, status=None, time_s=None, log="step 12 loss 4.2\n")


@pytest.mark.parametrize("waits", [lambda n: rank(n, GAVE_UP), lambda n: watchdog(n, "ALLREDUCE")])
def test_a_rank_that_is_silent_while_all_others_waited_in_vain_is_the_one_that_hung(
    waits: Callable[[int], Voice],
) -> None:
    diagnosis = found(waits(0), waits(1), silent(2), waits(3), ranks=4)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == ("hang", 2, "node2")
    assert [line[:15] for line in diagnosis.follow_on] == [
        "rank 0 on node1",
        "rank 1 on node1",
        "rank 3 on node2",
    ]


@pytest.mark.parametrize(
    "others",
    [
        [silent(1), silent(2)],
        [rank(1, GAVE_UP), rank(2, RESET)],
        [rank(1, RESET), silent(2)],
        [rank(1, GAVE_UP), rank(2, GAVE_UP)],
    ],
    ids=["two-silent", "one-lost-its-peer", "one-of-each", "all-waited"],
)
def test_a_rank_that_only_waited_is_never_said_to_have_hung(others: list[Voice]) -> None:
    diagnosis = found(rank(0, GAVE_UP), *others, ranks=3)
    assert diagnosis.cause == "hang"
    assert "ank 0 on node1 timed out waiting for another rank" in diagnosis.sentence
    assert "making progress" not in diagnosis.sentence


# What agents wrote down beside words


def test_a_kill_that_the_kernel_counted_is_for_memory() -> None:
    killed = rank(1, "ended by signal 9 (SIGKILL)", status=137)
    counted = MachineEvidence(
        memory_kills="the kernel killed 1 process of the job at its memory limit of 60.0 GiB"
    )
    diagnosis = found(killed, machines={"node1": counted})
    assert (diagnosis.cause, diagnosis.rank) == ("host-out-of-memory", 1)
    assert "60.0 GiB" in diagnosis.sentence
    elsewhere = found(killed, machines={"node2": counted})
    assert elsewhere.cause == "unknown"


def test_an_error_of_the_hardware_explains_what_cuda_says_of_it() -> None:
    cuda = rank(1, "torch.AcceleratorError: CUDA error: unspecified launch failure")
    broken = MachineEvidence(broken_gpu="the driver reported XID 79 of GPU 0")
    diagnosis = found(cuda, machines={"node1": broken})
    assert (diagnosis.cause, diagnosis.node) == ("bad-gpu", "node1")
    assert found(cuda).cause == "exception"


DOWN = MachineEvidence(failed_link="InfiniBand port mlx5_0/1 went from ACTIVE to DOWN")
NOISY = MachineEvidence(link_errors="InfiniBand port mlx5_0/1 counted 250 more symbol_error")
QUIET = MachineEvidence()
ECC = MachineEvidence(lost_bits="GPU 1 had 2 uncorrected memory errors")


@pytest.mark.parametrize("felt", [RESET, GAVE_UP])
def test_a_link_that_failed_explains_ranks_that_only_felt_it(felt: str) -> None:
    ranks = [rank(n, felt) for n in range(4)]
    told = found(*ranks, machines={"node1": QUIET, "node2": DOWN}, ranks=4)
    assert (told.cause, told.rank, told.node) == ("node-failure", None, "node2")
    assert "mlx5_0/1" in told.sentence
    assert not told.sentence.startswith("Perhaps")
    noisy = found(*ranks, machines={"node1": QUIET, "node2": NOISY}, ranks=4)
    assert (noisy.cause, noisy.node) == ("node-failure", "node2")
    assert noisy.sentence.startswith("Perhaps")
    switch = found(*ranks, machines={"node1": DOWN, "node2": DOWN}, ranks=4)
    assert (switch.cause, switch.node) == ("node-failure", None)
    assert "node1" in switch.sentence
    assert "node2" in switch.sentence


@pytest.mark.parametrize("machine", [DOWN, NOISY, ECC])
@pytest.mark.parametrize(
    ("own", "status"), [("FileNotFoundError: a.bin", 1), ("ended by signal 9 (SIGKILL)", 137)]
)
def test_what_has_words_of_its_own_is_not_the_machine_s(
    own: str, status: int, machine: MachineEvidence
) -> None:
    ranks = [rank(0, own, status=status), rank(2, RESET)]
    told = found(*ranks, machines={"node1": machine, "node2": machine}, ranks=4)
    assert told.cause == found(*ranks, ranks=4).cause


def test_lost_bits_explain_an_error_of_cuda_on_that_node_alone() -> None:
    cuda = rank(1, "torch.AcceleratorError: CUDA error: unspecified launch failure")
    told = found(cuda, machines={"node1": ECC})
    assert (told.cause, told.node) == ("bad-gpu", "node1")
    assert found(cuda, machines={"node2": ECC}).cause == "exception"
    assert found(rank(2, GAVE_UP), machines={"node1": ECC, "node2": QUIET}).node == "node1"


def test_a_full_dev_shm_explains_a_bus_error_there() -> None:
    full = MachineEvidence(full="/dev/shm was full: 1 of 65536 MiB were free")
    ended = rank(3, "ended by signal 7 (SIGBUS)", status=135)
    told = found(ended, rank(0, RESET), machines={"node2": full})
    assert (told.cause, told.rank, told.node) == ("disk-full", 3, "node2")
    assert found(ended, rank(0, RESET), machines={"node1": full}).cause != "disk-full"


def flight(**stuck: object) -> FlightRecord:
    one = Stuck(group="default_pg", operation="all_reduce", sequence=7, **stuck)  # type: ignore[arg-type]
    return FlightRecord(launch=0, world_size=4, stuck=[one])


def test_flight_recorders_name_who_did_not_come() -> None:
    waits = [stacks(n, C10D + "all_reduce", LOGGER) for n in (0, 1, 3)]
    asleep = rank(2, None, status=None, log="step 6\n")
    diagnosis = found(*waits, asleep, flight=flight(waiting=[0, 1, 3], missing=[2]))
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == ("hang", 2, "node2")
    assert "all_reduce number 7" in diagnosis.sentence


def test_flight_recorders_tell_a_mismatch_from_a_hang() -> None:
    waits = [stacks(n, C10D + "all_reduce", LOGGER) for n in range(4)]
    record = flight(waiting=[0, 1, 2, 3], different={3: "broadcast (8)"})
    assert found(*waits, flight=record).cause == "collective-mismatch"


# A rank that leaves in order while the others go on


@pytest.mark.parametrize("noticed_s", [7.0, 10.5], ids=["before", "when-its-agent-looked-next"])
def test_a_rank_that_left_early_is_named_and_not_those_that_lost_it(noticed_s: float) -> None:
    left = rank(3, None, status=0, time_s=noticed_s)
    diagnosis = found(rank(0, RESET), left, rank(1, RESET, time_s=11.0), ranks=4)
    assert (diagnosis.cause, diagnosis.rank) == ("collective-mismatch", 3)
    assert diagnosis.sentence == (
        "Rank 3 on node2 left while other ranks still waited for it: it ended with exit status 0."
    )
    assert len(diagnosis.follow_on) == 2


@pytest.mark.parametrize(
    "other",
    [rank(0, "ValueError: x"), rank(0, "ended by signal 9 (SIGKILL)", status=137)],
    ids=["failure", "kill"],
)
def test_a_rank_that_left_early_explains_no_failure_of_anothers_own(other: Voice) -> None:
    diagnosis = found(other, rank(3, None, status=0, time_s=7.0), rank(1, RESET), ranks=4)
    assert (diagnosis.rank, diagnosis.cause == "collective-mismatch") == (0, False)


def test_a_rank_that_was_done_long_after_the_failure_is_not_its_cause() -> None:
    diagnosis = found(rank(0, RESET), rank(3, None, status=0, time_s=60.0), ranks=4)
    assert (diagnosis.cause, diagnosis.rank) == ("connection-reset", 0)
