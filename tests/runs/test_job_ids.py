"""Slurm's ids, as squeue(1) says of %i and sacct(1) of JobID: `JobID[.JobStep]`,
`ArrayJobID_ArrayTaskID`, `HetJobID+HetJobOffset`; lists of tasks as squeue prints them without -r.
"""

from __future__ import annotations

import re

import pytest

from fsdpkit.runs.job_ids import ONE, each_of, id_of, job_of, task_of, without_step


@pytest.mark.parametrize(
    ("job_id", "job", "task", "each"),
    [
        ("12", "12", None, ["12"]),
        ("12_0", "12", 0, ["12_0"]),
        ("12_3", "12", 3, ["12_3"]),
        ("12_[1-3%2]", "12", None, ["12_1", "12_2", "12_3"]),
        ("12_[1-3,7]", "12", None, ["12_1", "12_2", "12_3", "12_7"]),
        ("12_[1-7:3]", "12", None, ["12_1", "12_4", "12_7"]),
        ("12_1-3%2", "12", None, ["12_1", "12_2", "12_3"]),  # scontrol's ArrayTaskId
        ("12_[1,3,5,...]", "12", None, ["12_[1,3,5,...]"]),  # cut at SLURM_BITSTR_LEN
        ("12+1", "12", None, ["12+1"]),
        ("12+1.0", "12", None, ["12+1.0"]),
        ("12.0", "12", None, ["12.0"]),
        ("12.batch", "12", None, ["12.batch"]),
        ("12_3.batch", "12", 3, ["12_3.batch"]),
        ("12_3.0", "12", 3, ["12_3.0"]),
        ("12_3.extern", "12", 3, ["12_3.extern"]),
    ],
)
def test_an_id_names_its_job_and_its_tasks(
    job_id: str, job: str, task: int | None, each: list[str]
) -> None:
    assert (job_of(job_id), task_of(job_id), each_of(job_id)) == (job, task, each)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "_3",
        "12_",
        "12_x",
        "12_3_4",
        "12_3\n",
        " 12_3",
        "-12_3",
        "12_-3x",
        "12;scancel -u me_3",
        "$(id)_3",
        "\x1b[31m_3",
        "١٢_٣",
        "12_²",
        pytest.param("12_" + "9" * 10_000, id="a long task"),
        pytest.param("9" * 10_000 + "_3", id="a long job"),
        pytest.param("12_3." + "b" * 10_000, id="a long step"),
    ],
)
def test_what_is_no_id_names_no_task_and_stays_as_it_is(text: str) -> None:
    assert (job_of(text), task_of(text), each_of(text)) == (text, None, [text])
    assert re.fullmatch(ONE, text) is None


def test_a_step_is_told_from_its_job() -> None:
    assert without_step("12_3.batch") == ("12_3", "batch")
    assert without_step("12.0") == ("12", "0")
    assert without_step("12+1.extern") == ("12+1", "extern")
    assert without_step("12_3") == ("12_3", "")


@pytest.mark.parametrize("task", [None, 0, 7])
def test_an_id_made_is_taken_apart_again(task: int | None) -> None:
    made = id_of("12", task)
    assert (job_of(made), task_of(made), each_of(made)) == ("12", task, [made])
    assert re.fullmatch(ONE, made)
