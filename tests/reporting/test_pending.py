"""Slurm's reasons in words: each known one, any text at all, and `never` only where it is true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.reporting.pending import PendingEvidence, _table, evidence_of, why
from fsdpkit.scheduling.states import JobState


def words(text: str) -> list[str]:
    return text.split()


TRES = ["BB", "Billing", "Energy", "GRES", "License", "Mem", "Memory", "Node", "Unknown"]
LIMITS = [
    *(
        f"{w}Grp{r}{m}"
        for w in ("Assoc", "QOS")
        for r in TRES
        for m in ("", "Minutes", "RunMinutes")
    ),
    *(f"{w}Max{r}{p}" for w in ("Assoc", "QOS") for r in TRES for p in ("PerJob", "PerNode")),
    *(f"{w}Max{r}MinutesPerJob" for w in ("Assoc", "QOS") for r in TRES),
    *(f"QOSMax{r}PerUser" for r in TRES),
    *(f"QOSMin{r}" for r in TRES),
    *(f"Max{r}PerAccount" for r in [*TRES, "Cpu", "Jobs", "SubmitJobs"]),
    *(f"Max{r}RunMinsPer{p}" for r in [*TRES, "Cpu"] for p in ("Account", "User")),
    *words("""
    AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpJobsLimit
    AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpWallLimit
    AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode AssocMaxJobsLimit
    AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxWallDurationPerJobLimit
    QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpJobsLimit QOSGrpMemLimit
    QOSGrpNodeLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuMinutesPerJobLimit
    QOSMaxCpuPerJobLimit QOSMaxCpuPerNode QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit
    QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit
    QOSMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied
    """),
]


@pytest.mark.parametrize("reason", [*_table().reasons, *LIMITS])
def test_every_reason_that_is_known_has_words_without_a_gap(reason: str) -> None:
    answer = why(PendingEvidence(reason=reason))
    assert "Slurm gives as the reason" not in answer.words
    assert "{" not in answer.words + (answer.action or "")


NEVER = words("""
    PartitionTimeLimit AssocGrpCPUMinutesLimit QOSMaxWallDurationPerJobLimit QOSMinGRES
    AssocMaxNodePerJobLimit launch_failed_requeued_held
""")
MAY_PASS = words("""
    Resources ReqNodeNotAvail QOSMaxJobsPerUserLimit QOSMaxGRESPerUser AssocGrpGRES
    AssocGrpCPURunMinutesLimit MaxGRESPerAccount MaxGRESRunMinsPerUser
""")


def test_what_only_a_person_can_clear_says_so_and_what_to_do() -> None:
    answers = [why(PendingEvidence(reason=reason)) for reason in NEVER]
    assert [answer for answer in answers if not answer.never] == []
    known = [*answers, *_table().reasons.values(), *_table().sentences.values()]
    assert [answer for answer in known if answer.never and not answer.action] == []


# job_ptr->state_desc of 22.05 to 26.05, which squeue shows in place of a word.
SENTENCES = {
    "Job's account not permitted to use this partition (acc allows other not mine)": "other",
    "Job's account not permitted to use this partition (acc denies mine including mine)": "mine",
    "Job's QOS not permitted to use this partition (acc allows gold not normal)": "gold",
    "User's group not permitted to use this partition (acc). groups allowed: daemon": "group",
    "uid 7 not in group permitted to use this partition (acc). groups allowed: g": "group",
    "Reservation r was deleted": "reservation",
    "Reservation r, which this job was running under, has ended": "reservation",
    "Reservation r is invalid": "reservation",
    "Problem using reservation": "reservation",
    "Required nodes outside of the reservation": "reservation",
    "CPU count per node can not be satisfied": "no node",
    "Memory specification can not be satisfied": "no node",
    "Node feature requirements can not be satisfied": "no node",
    "Socket, core and/or thread specification can not be satisfied": "no node",
}


@pytest.mark.parametrize("gap", [" ", "_"])
@pytest.mark.parametrize("said", SENTENCES)
def test_a_sentence_of_slurm_s_that_will_not_clear_is_told_so_with_a_remedy(
    said: str, gap: str
) -> None:
    answer = why(PendingEvidence(reason=said.replace(" ", gap), partition="acc"))
    assert SENTENCES[said] in answer.words
    assert answer.never
    assert answer.action


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("QOSMaxWallDurationPerJobLimit", "TimeLimit="),
        ("AssocMaxWallDurationPerJobLimit", "TimeLimit="),
        ("QOSMaxGRESPerJob", "--gpus"),
        ("QOSMaxNodePerJobLimit", "--nodes"),
        ("QOSMaxMemoryPerJob", "resources.memory"),
        ("AssocMaxCpuPerJobLimit", "cpus"),
        ("AssocGrpGRESMinutes", "budget"),
        ("ReqNodeNotAvail, Reserved for maintenance", "TimeLimit="),
    ],
)
def test_a_remedy_is_about_the_limit_that_was_named(reason: str, helps: str) -> None:
    assert helps in (why(PendingEvidence(reason=reason, job_id="7")).action or "")


def test_what_may_pass_is_never_called_hopeless() -> None:
    assert [r for r in MAY_PASS if why(PendingEvidence(reason=r)).never] == []


def test_the_answer_names_what_is_known_and_leaves_no_gap_where_nothing_is() -> None:
    known = PendingEvidence(
        reason="DependencyNeverSatisfied", job_id="12", run="r", dependency="afterok:3(failed)"
    )
    assert why(known).words.startswith("waits for a dependency (afterok:3(failed)) that")
    assert "scontrol update JobId=12 Dependency=" in (why(known).action or "")
    assert "fsdpkit cancel r" in (why(known).action or "")
    assert why(PendingEvidence(reason="Dependency")).words == "waits for its dependency"
    limit = PendingEvidence(reason="PartitionTimeLimit", partition="gpu", time_limit="2-00:00:00")
    assert why(limit).words == "its time limit (2-00:00:00) is longer than partition gpu allows"
    braces = PendingEvidence(reason="InvalidAccount", account="{job}")
    assert why(braces).words == "its account ({job}) is not valid"


LOST = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "do not answer: n[1-2]"),
        ("ReqNodeNotAvail,_UnavailableNodes:n[1-2]", "do not answer: n[1-2]"),
        ("(ReqNodeNotAvail, Reserved for maintenance)", "reserved for maintenance"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved for other jobs"),
        ("ReqNodeNotAvail", "in use, reserved, down or drained"),
        (LOST, "reserved for partitions"),
        (LOST.replace(" ", "_"), "reserved for partitions"),
        ("Starting", "this machine"),
        ("launch failed requeued held", "because of this: launch failed"),
        ("user_env_retrieval_failed_requeued_held", "user env retrieval failed"),
        ("job requeued in held state", "is held"),
        ("the moon is full", "'the moon is full'"),
    ],
)
def test_what_slurm_appends_is_read(reason: str, told: str) -> None:
    assert told in why(PendingEvidence(reason=reason)).words


OF_A_LATER_SLURM = st.from_regex(
    r"(Assoc|QOS)?(Grp|Max|Min)[A-Za-z]{0,12}(Minutes)?(Per[A-Z][a-z]{2,6})?"
)


@given(st.one_of(st.none(), st.text(), OF_A_LATER_SLURM), st.one_of(st.none(), st.text()))
def test_any_text_has_an_answer(reason: str | None, name: str | None) -> None:
    evidence = PendingEvidence(
        reason=reason, job_id=name, run=name, account=name, partition=name, dependency=name
    )
    answer = why(evidence)
    assert answer.words
    assert answer.action != ""


@pytest.mark.parametrize(
    ("state", "reason", "marked"),
    [
        ("PENDING", "job requeued in held state", ""),  # squeue of 22.05, after requeuehold
        ("PENDING", "job_requeued_in_held_state", ""),  # scontrol of 22.05
        ("REQUEUE_HOLD", "JobHeldUser", ""),
        ("SPECIAL_EXIT", "job requeued in held state", ", marked as a special exit"),
        ("SPECIAL_EXIT", None, ", marked as a special exit"),
    ],
)
def test_what_was_queued_again_and_held_is_told_as_that(
    state: str, reason: str | None, marked: str
) -> None:
    answer = why(PendingEvidence(state=state, reason=reason, job_id="7", run="r"))
    assert answer.words == (f"it was requeued and is held{marked}")
    assert answer.action == "Release it: fsdpkit resume r"
    assert answer.never


def test_what_slurm_leaves_blank_is_not_read_and_its_own_reason_is_believed_over_none() -> None:
    details = {
        "Reason": "Resources",
        "Dependency": "(null)",
        "Partition": "gpu",
        "Account": "",
        "QOS": "N/A",
        "Restarts": "2",
    }
    read = evidence_of("12_3", JobState("PENDING", "squeue", reason="None"), details, "run-1")
    assert read == PendingEvidence(
        reason="Resources", state="PENDING", job_id="12", run="run-1", partition="gpu", restarts=2
    )
    told = evidence_of("12", JobState("PENDING", "squeue", reason="Priority"), details, "run-1")
    assert told.reason == "Priority"
