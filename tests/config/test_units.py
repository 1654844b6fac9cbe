"""Slurm's spellings of time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.units import format_time, parse_memory_mb, parse_time_s

TIMES = {
    "30": 30 * 60,
    "30:15": 30 * 60 + 15,
    "2:30:15": 9015,
    "1-12": 36 * 3600,
    "1-12:30": 36 * 3600 + 1800,
    "1-12:30:15": 36 * 3600 + 1815,
    "90:00:00": 90 * 3600,
    "00:00:01": 1,
}


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_all_six_forms_of_a_time_are_read(text: str, seconds: int) -> None:
    assert parse_time_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "UNLIMITED", "infinite", "-1", "0h", "1:2:3:4", "1-", "1.5"),
        *("٣", " 30", "30 ", "1-1-1", "1\n"),
    ],
)
def test_a49_a50_endless_and_strange_times_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"):
        parse_time_s(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1 hour", "01:00:00"),
        ("90min", "01:30:00"),
        ("1D12H", "1-12:00:00"),
        ("2d", "2-00:00:00"),
    ],
)
def test_a_time_with_units_is_said_as_slurm_writes_it(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"write {meant}$"):
        parse_time_s(text)


@pytest.mark.parametrize("text", ["0", "00:00:00", "0-0"])
def test_a_time_of_zero_is_refused_with_the_least(text: str) -> None:
    with pytest.raises(ValueError, match="a minute"):
        parse_time_s(text)


@pytest.mark.parametrize("text", ["366-0", "9" * 400])
def test_a_time_beyond_a_year_is_refused_with_the_most(text: str) -> None:
    with pytest.raises(ValueError, match="365-00:00:00"):
        parse_time_s(text)


@given(st.integers(min_value=1, max_value=365 * 86400))
def test_a_time_that_is_written_is_read_back(seconds: int) -> None:
    assert parse_time_s(format_time(seconds)) == seconds


MEMORY = {
    "0": 0,
    "0G": 0,
    "480G": 480 * 1024,
    "1T": 1024**2,
    "500": 500,
    "500M": 500,
    "2048K": 2,
    "4gb": 4096,
}


@pytest.mark.parametrize(("text", "megabytes"), MEMORY.items())
def test_memory_is_read_in_slurms_units(text: str, megabytes: int) -> None:
    assert parse_memory_mb(text) == megabytes


@pytest.mark.parametrize("text", ["", "1K", "-4G", "4.5G", "lots", "4 G", "4P", "٣G", "G"])
def test_what_is_no_memory_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size"):
        parse_memory_mb(text)
