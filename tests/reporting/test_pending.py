"""Slurm's reasons in words: each known one, any text at all, and `never` only where it is true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.reporting.pending import PendingEvidence, evidence_of, why
from fsdpkit.scheduling.states import JobState


def words(text: str) -> list[str]:
    return text.split()


# https://slurm.schedmd.com/job_reason_codes.html and squeue(1), with what the 22.05 library holds.
SINGLE = words("""
    AccountNotAllowed AccountingPolicy AssociationJobLimit AssociationResourceLimit
    AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation BurstBufferResources
    BurstBufferStageIn Cleaning Constraints DeadLine Dependency DependencyNeverSatisfied FedJobLock
    FrontEndDown InactiveLimit InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin JobHeldUser
    JobHoldMaxRequeue JobLaunchFailure Licenses MaxMemPerLimit NodeDown NonZeroExitCode None
    OutOfMemory PartitionConfig PartitionDown PartitionInactive PartitionNodeLimit
    PartitionTimeLimit PowerNotAvail PowerReserved Priority Prolog QOSJobLimit QOSNotAllowed
    QOSResourceLimit QOSTimeLimit QOSUsageThreshold RaisedSignal ReqNodeNotAvail Reservation
    ReservationDeleted ReservationInvalid Resources SchedDefer SystemFailure TimeLimit
    WaitingForScheduling MaxPoweredUpNodes MpiPortsBusy NvidiaImexChannels BlockMaxError
    BlockFreeAction
""")
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


@pytest.mark.parametrize("reason", [*SINGLE, *LIMITS])
def test_every_reason_of_slurm_s_list_has_words_of_its_own(reason: str) -> None:
    answer = why(PendingEvidence(reason=reason))
    assert "Slurm gives as the reason" not in answer.words
    assert "{" not in answer.words + (answer.action or "")


NEVER = words("""
    DependencyNeverSatisfied JobHeldUser JobHeldAdmin JobHoldMaxRequeue PartitionTimeLimit
    BadConstraints InvalidAccount InvalidQOS AccountNotAllowed QOSNotAllowed ReservationDeleted
    AssocGrpCPUMinutesLimit QOSMaxWallDurationPerJobLimit AssocMaxNodePerJobLimit QOSMinGRES
    MaxMemPerLimit launch_failed_requeued_held
""")
MAY_PASS = words("""
    Resources Priority Dependency BeginTime JobArrayTaskLimit Licenses ReqNodeNotAvail NodeDown
    PartitionDown PartitionNodeLimit QOSMaxJobsPerUserLimit QOSMaxGRESPerUser AssocGrpGRES
    AssocGrpCPURunMinutesLimit MaxGRESPerAccount MaxGRESRunMinsPerUser Cleaning None
    MaxPoweredUpNodes
""")


def test_what_only_a_person_can_clear_says_so_and_what_to_do() -> None:
    answers = {reason: why(PendingEvidence(reason=reason)) for reason in NEVER}
    assert [reason for reason, answer in answers.items() if not answer.never] == []
    assert [reason for reason, answer in answers.items() if not answer.action] == []


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
    ],
)
def test_a_remedy_is_about_the_limit_that_was_named(reason: str, helps: str) -> None:
    assert helps in (why(PendingEvidence(reason=reason, job_id="7")).action or "")


def test_a_job_of_the_local_cluster_is_not_said_to_wait_for_slurm() -> None:
    told = why(PendingEvidence(reason="Starting"))
    assert "machine" in told.words
    assert "Slurm" not in told.words
    assert not told.never


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


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "do not answer: n[1-2]"),
        ("ReqNodeNotAvail,_UnavailableNodes:n[1-2]", "do not answer: n[1-2]"),
        ("(ReqNodeNotAvail, Reserved for maintenance)", "reserved for maintenance"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved for other jobs"),
        ("ReqNodeNotAvail", "in use, reserved, down or drained"),
        ("launch failed requeued held", "because of this: launch failed"),
        ("user_env_retrieval_failed_requeued_held", "user env retrieval failed"),
        ("job requeued in held state", "is held"),
        ("the moon is full", "'the moon is full'"),
    ],
)
def test_what_slurm_appends_is_read(reason: str, told: str) -> None:
    assert told in why(PendingEvidence(reason=reason)).words


def test_a_shorter_time_is_proposed_where_it_can_fit_before_a_maintenance() -> None:
    evidence = PendingEvidence(reason="ReqNodeNotAvail, Reserved for maintenance", job_id="7")
    assert "scontrol update JobId=7 TimeLimit=" in (why(evidence).action or "")


@given(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()))
def test_any_text_has_an_answer(reason: str | None, name: str | None) -> None:
    evidence = PendingEvidence(
        reason=reason, job_id=name, run=name, account=name, partition=name, dependency=name
    )
    answer = why(evidence)
    assert answer.words
    assert answer.action != ""


@given(st.from_regex(r"(Assoc|QOS)?(Grp|Max|Min)[A-Za-z]{0,12}(Minutes)?(Per[A-Z][a-z]{2,6})?"))
def test_reasons_of_a_later_slurm_have_an_answer(reason: str) -> None:
    assert why(PendingEvidence(reason=reason)).words


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


@pytest.mark.parametrize("gap", [" ", "_"])  # as squeue and scontrol have it
def test_the_whole_sentence_that_slurm_says_of_lost_nodes_is_known(gap: str) -> None:
    told = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
    told = f"{told} partitions"
    answer = why(PendingEvidence(state="PENDING", reason=told.replace(" ", gap), job_id="7"))
    assert "Slurm gives" not in answer.words
    assert "sinfo -R" in (answer.action or "")
    assert not answer.never


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
