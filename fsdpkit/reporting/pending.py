"""Why a job is pending: Slurm's one-word reason turned into a sentence, and what to do about it.

Pure: text in, a `PendingReason` out, for any text. Source of the reasons and what they mean:
squeue(1), "JOB REASON CODES", https://slurm.schedmd.com/job_reason_codes.html, and the tables of
Slurm 22.05 to 26.05 (job_state_reason_string, state_desc). `never` is True
only if the reason cannot clear without a person; if it may pass, or that is unknown, it is False.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fsdpkit.runs.job_ids import job_of
from fsdpkit.scheduling.refusals import named_limit
from fsdpkit.scheduling.states import HELD_AFTER_REQUEUE, HELD_STATES, JobState


class PendingEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pending job. None: not read."""

    reason: str | None = None
    """As squeue's %r or scontrol's Reason has it, with what Slurm appends."""
    state: str | None = None
    """Slurm's word for it: `PENDING`, `REQUEUE_HOLD`, `SPECIAL_EXIT`."""
    job_id: str | None = None
    run: str | None = None
    """The id of the run, for commands to type."""
    dependency: str | None = None
    """scontrol's Dependency: `afterok:12(unfulfilled)`."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = None
    restarts: int | None = None
    """How often Slurm has queued it again."""


def evidence_of(
    job_id: str, state: JobState, details: Mapping[str, str], run: str
) -> PendingEvidence:
    """Of a pending job. details: what scontrol says about it, empty if not asked."""

    def told(name: str) -> str | None:
        value = details.get(name)
        return None if value in (None, "", "(null)", "N/A", "None") else value

    restarts = details.get("Restarts", "")
    return PendingEvidence(
        reason=told("Reason") if state.reason in (None, "None") else state.reason,
        state=state.state,
        job_id=job_of(job_id),
        run=run,
        dependency=told("Dependency"),
        partition=told("Partition"),
        account=told("Account"),
        qos=told("QOS"),
        time_limit=told("TimeLimit"),
        restarts=int(restarts) if restarts.isdecimal() else state.restarts,
    )


class PendingReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why, for a person."""

    words: str
    """A clause without a full stop: `waits for free nodes`."""
    action: str | None = None
    """What to do, where that is known."""
    never: bool = False
    """Whether this will not clear by itself."""


_PARENTHESES = re.compile(r"\A\(([^()]*)\)\Z")  # as squeue's own listing shows it


def why(evidence: PendingEvidence) -> PendingReason:
    """The reason in words; for an unknown one, Slurm's own word."""
    text = _PARENTHESES.sub(r"\1", (evidence.reason or "").strip()).replace("_", " ")
    head, _, tail = text.partition(",")
    head = head.strip()
    known = _KNOWN.get(head)
    if head == "ReqNodeNotAvail":
        known = _node_not_available(tail)
    if evidence.state in HELD_STATES or re.fullmatch(r"(?i)job requeued in held state", text):
        known = _requeued_and_held(evidence.state)
    known = known or _sentence(text) or _limit(head) or _held_after_requeue(text)
    if known is None:
        return PendingReason(words=f"Slurm gives as the reason {text!r}")
    return PendingReason(
        words=_filled(known.words, evidence),
        action=known.action and _filled(known.action, evidence),
        never=known.never,
    )


class _Meaning(NamedTuple):
    words: str
    action: str | None = None
    never: bool = False


_RELEASE = "Release it: fsdpkit resume {run}"
_OTHER_PARTITION = "Move it: scontrol update JobId={job} Partition=NAME; partitions: sinfo -s."
_LESS_TIME = "scontrol update JobId={job} TimeLimit=HH:MM:SS"
_CANCEL = "Cancel it (fsdpkit cancel {run})"
_AGAIN = f"{_CANCEL} and submit again within what is allowed"
_SHORTER = f"Ask for less: {_LESS_TIME}; limits: sinfo -o '%P %l'."
_ASSOCIATIONS = "sacctmgr -nP show assoc user=$USER format=account,partition,qos"
_CENTRE = "Ask the centre"

_KNOWN = {
    "": _Meaning("Slurm has not considered it yet"),
    "None": _Meaning("Slurm has not considered it yet"),
    "WaitingForScheduling": _Meaning("Slurm has not considered it yet"),
    "Starting": _Meaning("this machine is starting it"),  # the local cluster's only own reason
    "Resources": _Meaning("waits for free nodes"),
    "Priority": _Meaning("jobs with a higher priority come first"),
    "Dependency": _Meaning("waits for its dependency ({dependency})"),
    "DependencyNeverSatisfied": _Meaning(
        "waits for a dependency ({dependency}) that can no longer be met",
        "Cancel it (fsdpkit cancel {run}), or let it start: scontrol update JobId={job} "
        "Dependency=",
        True,
    ),
    "BeginTime": _Meaning("its start is deferred: it has a begin time, or was requeued"),
    "JobArrayTaskLimit": _Meaning("as many array tasks are running as the array allows at once"),
    "Licenses": _Meaning("waits for a licence"),
    "Reservation": _Meaning("waits until its reservation begins"),
    "ReservationDeleted": _Meaning(
        "its reservation no longer exists",
        "Remove it: scontrol update JobId={job} ReservationName=",
        True,
    ),
    "ReservationInvalid": _Meaning(
        "its reservation cannot be used",
        "Remove it: scontrol update JobId={job} ReservationName=",
        True,
    ),
    "JobHeldUser": _Meaning(
        "it is held, by its owner or the account's coordinator", _RELEASE, True
    ),
    "JobHeldAdmin": _Meaning(
        "it is held, by an administrator or because it was requeued too often{restarts}",
        _CENTRE + ", unless you know why",
        True,
    ),
    "JobHoldMaxRequeue": _Meaning(
        "it is held, because Slurm had to requeue it too often{restarts}",
        "See why it ended each time (fsdpkit diagnose {run}), then: fsdpkit resume {run}",
        True,
    ),
    "JobLaunchFailure": _Meaning(
        "Slurm could not launch it", "See slurm-{job}.log in its directory, or ask the centre"
    ),
    "PartitionTimeLimit": _Meaning(
        "its time limit ({time_limit}) is longer than {partition} allows", _SHORTER, True
    ),
    "PartitionNodeLimit": _Meaning(
        "it asks for more or fewer nodes than {partition} allows, or nodes it needs are down",
        "Compare: scontrol show partition",
    ),
    "PartitionConfig": _Meaning(
        "it does not fit {partition}'s limits", "Compare: scontrol show partition"
    ),
    "PartitionDown": _Meaning("{partition} takes jobs, but starts none now", _OTHER_PARTITION),
    "PartitionInactive": _Meaning("{partition} is closed", _OTHER_PARTITION),
    "BadConstraints": _Meaning(
        "no node matches what it asks for, now or later",
        _AGAIN + "; nodes: sinfo -o '%P %N %G %c %m %f'",
        True,
    ),
    "Constraints": _Meaning("no node matches what it asks for at this time"),
    "InvalidAccount": _Meaning(
        "its account ({account}) is not valid", f"{_AGAIN}; yours: {_ASSOCIATIONS}", True
    ),
    "AccountNotAllowed": _Meaning(
        "its account ({account}) may not use {partition}",
        f"{_AGAIN}; yours: {_ASSOCIATIONS}",
        True,
    ),
    "InvalidQOS": _Meaning(
        "its QOS ({qos}) is not valid", f"{_AGAIN}; yours: {_ASSOCIATIONS}", True
    ),
    "QOSNotAllowed": _Meaning(
        "its QOS ({qos}) is not allowed for its account or {partition}",
        f"{_AGAIN}; yours: {_ASSOCIATIONS}",
        True,
    ),
    "MaxMemPerLimit": _Meaning(
        "it asks for more memory per CPU or node than is allowed", f"{_AGAIN}.", True
    ),
    "DeadLine": _Meaning("it can no longer end before its deadline", f"{_AGAIN}.", True),
    "AccountingPolicy": _Meaning("a limit of its account or QOS is reached"),
    "AssociationJobLimit": _Meaning("its account runs as many jobs as its limit allows"),
    "AssociationResourceLimit": _Meaning("its account uses as much as its limit allows"),
    "AssociationTimeLimit": _Meaning("its account has used up its time"),
    "QOSJobLimit": _Meaning("its QOS ({qos}) runs as many jobs as its limit allows"),
    "QOSResourceLimit": _Meaning("its QOS ({qos}) uses as much as its limit allows"),
    "QOSTimeLimit": _Meaning("its QOS ({qos}) has used up its time"),
    "QOSUsageThreshold": _Meaning("its account has used more than its QOS ({qos}) allows at start"),
    "NodeDown": _Meaning("a node that it needs is down"),
    # "…, DRAINED or reserved for jobs in higher priority partitions"
    "Nodes required for job are DOWN": _Meaning(
        "nodes that it needs are down, drained or reserved for partitions with a higher priority",
        "See which: sinfo -R",
    ),
    "MaxPoweredUpNodes": _Meaning("as many nodes are powered up as the cluster allows at once"),
    "MpiPortsBusy": _Meaning("the ports that Slurm reserves for MPI are in use on its nodes"),
    "NvidiaImexChannels": _Meaning("waits for a channel by which GPUs share memory across nodes"),
    "BlockMaxError": _Meaning("its block of nodes failed too often", _CENTRE),
    "BlockFreeAction": _Meaning("its block of nodes is being freed"),
    "FrontEndDown": _Meaning("no front end is available to start it"),
    "Cleaning": _Meaning("its previous attempt is being cleaned up"),
    "Prolog": _Meaning("the nodes are being prepared"),
    "PowerNotAvail": _Meaning("there is not enough electric power for it now"),
    "PowerReserved": _Meaning("electric power is reserved for other jobs"),
    "BurstBufferResources": _Meaning("waits for space in the burst buffer"),
    "BurstBufferStageIn": _Meaning("its data are being copied to the burst buffer"),
    "BurstBufferOperation": _Meaning("the burst buffer failed", _CENTRE),
    "FedJobLock": _Meaning("waits for the clusters of the federation to agree"),
    "SchedDefer": _Meaning("asks to start at once, which the cluster does not support"),
    "SystemFailure": _Meaning("Slurm, a file system or the network failed", _CENTRE),
    # Reasons for an end: a requeued job keeps them until Slurm looks at it.
    "NonZeroExitCode": _Meaning("its last attempt failed, and it was requeued"),
    "RaisedSignal": _Meaning("a signal ended its last attempt, and it was requeued"),
    "TimeLimit": _Meaning("its last attempt used up its time, and it was requeued"),
    "OutOfMemory": _Meaning("its last attempt ran out of memory, and it was requeued"),
    "InactiveLimit": _Meaning("its last attempt was idle for too long, and it was requeued"),
}

# Slurm's sentences, which squeue shows in place of a word (job_ptr->state_desc of 22.05 to 26.05),
# each with the word that says the same, or what it means.
_SENTENCES: tuple[tuple[str, str | _Meaning], ...] = (
    (r"Job's account not permitted to use this partition.*", "AccountNotAllowed"),
    (r"Job's QOS not permitted to use this partition.*", "QOSNotAllowed"),
    (
        r"(uid \d+ not in|User's|Job's) group (not )?permitted to use this partition.*",
        _Meaning("{partition} is not open to your groups", _OTHER_PARTITION, True),
    ),
    (r"Nodes required for job are DOWN.*", "Nodes required for job are DOWN"),
    (r"Reservation \S+ was deleted", "ReservationDeleted"),
    (r"Reservation \S+, which this job was running under, has ended", "ReservationDeleted"),
    (r"Reservation \S+ is invalid|Problem using reservation", "ReservationInvalid"),
    (
        r"Required nodes outside of the reservation",
        _Meaning(
            "nodes that it must have are not in its reservation",
            _AGAIN + "; nodes: scontrol show reservation",
            True,
        ),
    ),
    (r".* specification can not be satisfied", "BadConstraints"),
    (r"Node feature requirements can not be satisfied", "BadConstraints"),
    (r"CPU count per node can not be satisfied", "BadConstraints"),
    (r"RaisedSignal:.*", "RaisedSignal"),
    (
        r"Job is at or exceeds .*",
        _Meaning(
            "a budget or limit of its account or QOS is used up",
            "Ask for less time, or the centre for a larger budget; limits: sacctmgr show assoc "
            "user=$USER",
        ),
    ),
    (r"Burst buffer .*error.*", "BurstBufferOperation"),
)
_ALLOWS = re.compile(r".*\((?P<partition>\S+) (?P<does>allows|denies) (?P<names>\S+) .*\)")


def _sentence(text: str) -> _Meaning | None:
    """Of a sentence, with the names that a partition allows or denies."""
    for pattern, meaning in _SENTENCES:
        if re.fullmatch(pattern, text) is None:
            continue
        known = _KNOWN[meaning] if isinstance(meaning, str) else meaning
        if rule := _ALLOWS.fullmatch(text):
            names = rule["names"].replace("{", "").replace("}", "")
            return known._replace(words=f"{known.words}, which {rule['does']} {names}")
        return known
    return None


def _limit(reason: str) -> _Meaning | None:
    """`AssocGrpCPUMinutesLimit` and the other names that are put together like it."""
    limit = named_limit(reason)
    if limit is None:
        return None
    words = limit.words("its QOS ({qos})" if limit.of_qos else "its account ({account})")
    if not limit.never:
        return _Meaning(words)
    show = f"limits: {limit.show()}"
    if limit.kind == "Max" and limit.what in ("time", "running time"):
        return _Meaning(words, f"Ask for less: {_LESS_TIME}; {show}", True)
    if limit.kind == "Grp":
        centre = "or the centre for a larger budget"
        return _Meaning(words, f"Ask for less time ({_LESS_TIME}), {centre}; {show}", True)
    ask = limit.ask_for()
    todo = f"{_CANCEL} and ask for {ask}" if ask else _AGAIN
    return _Meaning(words, f"{todo}; {show}", True)


def _node_not_available(tail: str) -> _Meaning:
    """What follows `ReqNodeNotAvail,`: a reservation, or the nodes that are broken."""
    if "maint" in tail.lower():
        return _Meaning(
            "the nodes are reserved for maintenance that begins before the job would end",
            "Wait until it is over, or ask for less time to fit in before it: "
            "scontrol update JobId={job} TimeLimit=HH:MM:SS; when: scontrol show reservation",
        )
    if nodes := re.search(r"UnavailableNodes:(\S+)", tail):
        name = nodes[1].replace("{", "").replace("}", "").rstrip(",;")
        return _Meaning(
            f"nodes that it could use are down, drained or do not answer: {name}",
            "See why: sinfo -R",
        )
    if "reserved" in tail.lower():
        return _Meaning("the nodes that it could use are reserved for other jobs")
    return _Meaning("nodes that it needs are in use, reserved, down or drained", "See: sinfo -R")


def _requeued_and_held(state: str | None) -> _Meaning:
    """By `scontrol requeuehold`, or by the site for an exit status that it holds jobs for."""
    marked = ", marked as a special exit" if state == "SPECIAL_EXIT" else ""
    words = f"it was requeued and is held{marked}"
    return _Meaning(words, _RELEASE, True)


def _held_after_requeue(text: str) -> _Meaning | None:
    if not HELD_AFTER_REQUEUE.search(text):
        return None
    failed = text.lower().partition("requeue")[0].strip(" ,;:{}")
    because = f" because of this: {failed}" if failed else ""
    return _Meaning(f"Slurm requeued it and holds it{because}", _RELEASE, True)


def _filled(text: str, evidence: PendingEvidence) -> str:
    """The text with known values filled in; unknown ones leave no gap."""
    if evidence.dependency is None:
        text = text.replace(" ({dependency})", "")
    for name in ("account", "qos", "time_limit"):
        if getattr(evidence, name) is None:
            text = text.replace(f" ({{{name}}})", "")
    restarts = f" ({evidence.restarts} times)" if evidence.restarts else ""
    partition = f"partition {evidence.partition}" if evidence.partition else "its partition"
    # One replacement each, in order: a name chosen by a user may contain braces.
    values = {
        "job": evidence.job_id or "JOBID",
        "run": evidence.run or "RUN",
        "partition": partition,
        "restarts": restarts,
        "dependency": evidence.dependency,
        "account": evidence.account,
        "qos": evidence.qos,
        "time_limit": evidence.time_limit,
    }
    return re.sub(r"\{(\w+)\}", lambda match: str(values.get(match[1], match[0])), text)
