"""Why a job is pending: Slurm's one-word reason turned into a sentence, and what to do about it.

Text in, a `PendingReason` out, for any text; the words and their sources are in pending.toml.
`never` is True only if the reason cannot clear without a person; if it may pass, or that is
unknown, it is False.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from fsdpkit.reporting.status.granted import said
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
    restarts = details.get("Restarts", "")
    return PendingEvidence(
        reason=said(details, "Reason") if state.reason in (None, "None") else state.reason,
        state=state.state,
        job_id=job_of(job_id),
        run=run,
        dependency=said(details, "Dependency"),
        partition=said(details, "Partition"),
        account=said(details, "Account"),
        qos=said(details, "QOS"),
        time_limit=said(details, "TimeLimit"),
        restarts=int(restarts) if restarts.isdecimal() else state.restarts,
    )


class PendingReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, for a person; and an entry of pending.toml, where `words` and `action` have blanks."""

    words: str
    """A clause without a full stop: `waits for free nodes`."""
    action: str | None = None
    """What to do, where that is known."""
    never: bool = False
    """Whether this will not clear by itself."""
    refused: bool = False
    """Whether Slurm does not allow such a job: an account, a QOS, a group, too much memory."""
    says: tuple[str, ...] = ()
    """What Slurm says then, as regular expressions."""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    names: dict[str, str]
    reasons: dict[str, PendingReason]
    sentences: dict[str, PendingReason]


@lru_cache
def _table() -> _Table:
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Table)


_Blanks = Mapping[str, str | None]
_PARENTHESES = re.compile(r"\A\(([^()]*)\)\Z")  # as squeue's own listing shows it


def why(evidence: PendingEvidence) -> PendingReason:
    """The reason in words; for an unknown one, Slurm's own word."""
    text = _PARENTHESES.sub(r"\1", (evidence.reason or "").strip()).replace("_", " ")
    known, found = _known(text, evidence.state)
    blanks = {**_blanks(evidence), **found}
    if known is None:
        return PendingReason(words=f"Slurm gives as the reason {text!r}")
    return msgspec.structs.replace(
        known,
        words=_filled(known.words, blanks),
        action=known.action and _filled(known.action, blanks),
    )


def _known(text: str, state: str | None) -> tuple[PendingReason | None, _Blanks]:
    """What the text means, and what it names."""
    reasons, sentences = _table().reasons, _table().sentences
    head = text.partition(",")[0].strip()
    if state in HELD_STATES:
        marked = ", marked as a special exit" if state == "SPECIAL_EXIT" else ""
        return sentences["held"], {"marked": marked}
    for reason in (*reasons.values(), *sentences.values()):
        for sentence in reason.says:
            if match := re.fullmatch(sentence, text):
                return _with_names(reason, text), {"marked": "", **match.groupdict()}
    if HELD_AFTER_REQUEUE.search(text) and head not in reasons:
        failed = text.lower().partition("requeue")[0].strip(" ,;:{}")
        because = f" because of this: {failed}" if failed else ""
        return sentences["held_after_failure"], {"because": because}
    return reasons.get(head) or _limit(head), {}


_ALLOWS = re.compile(r".*\(\S+ (?P<does>allows|denies) (?P<names>\S+) .*\)")


def _with_names(reason: PendingReason, text: str) -> PendingReason:
    """With those that a partition allows or denies, where Slurm's sentence has them."""
    if (rule := _ALLOWS.fullmatch(text)) is None:
        return reason
    names = re.sub("[{}]", "", rule["names"])
    words = f"{reason.words}, which {rule['does']} {names}"
    return msgspec.structs.replace(reason, words=words)


def _limit(reason: str) -> PendingReason | None:
    """`AssocGrpCPUMinutesLimit` and the other names that are put together like it."""
    limit = named_limit(reason)
    if limit is None:
        return None
    words = limit.words("its QOS ({qos})" if limit.of_qos else "its account ({account})")
    if not limit.never:
        return PendingReason(words)
    if limit.kind == "Max" and limit.what in ("time", "running time"):
        todo = "Ask for less: {less_time}"
    elif limit.kind == "Grp":
        todo = "Ask for less time ({less_time}), or the centre for a larger budget"
    else:
        ask = limit.ask_for()
        todo = f"{{cancel}} and ask for {ask}" if ask else "{again}"
    return PendingReason(words, f"{todo}; limits: {limit.show()}", never=True)


def _blanks(evidence: PendingEvidence) -> _Blanks:
    return {
        "job": evidence.job_id or "JOBID",
        "run": evidence.run or "RUN",
        "partition": f"partition {evidence.partition}" if evidence.partition else "its partition",
        "restarts": f"{evidence.restarts} times" if evidence.restarts else None,
        "dependency": evidence.dependency,
        "account": evidence.account,
        "qos": evidence.qos,
        "time_limit": evidence.time_limit,
    }


def _filled(text: str, blanks: _Blanks) -> str:
    """The text with known values filled in; unknown ones leave no gap."""
    for name, phrase in reversed(_table().names.items()):
        text = text.replace(f"{{{name}}}", phrase)
    for name, value in blanks.items():
        if value is None:
            text = text.replace(f" ({{{name}}})", "")
    # Each once, from left to right: a name chosen by a user may contain braces.
    return re.sub(r"\{(\w+)\}", lambda match: str(blanks.get(match[1], match[0])), text)
