"""Every printed number has a known answer; the lines are what a person and a program can read."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass

import pytest
import torch
from loop_parts import loop_parts

from fsdpkit.training.display import Display, text
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.hardware import peak_of_name
from fsdpkit.training.metrics import memory
from fsdpkit.training.progress import lost_patience

CPU = torch.device("cpu")
FIRST = Ranks(0, 0, 1, 1, CPU)
LINE = {
    "step": 5,
    "loss": 5.12345,
    "grad_norm": 2.344,
    "lr": 4e-3,
    "step_time_s": 0.1234,
    "tokens_per_s": 12345.6,
    "tokens": 100,
    "skipped": 0,
}


@pytest.mark.torch
def test_a_line_over_two_steps_on_two_ranks_has_the_numbers_that_a_person_computes():
    line = loop_parts()["line"]
    assert line["step"] == 2
    assert line["loss"] == (6 + 2) * 2 / (10 + 10)  # both ranks' sums over all target tokens
    assert line["grad_norm"] == 1.25
    assert line["lr"] == 0.5
    assert line["step_time_s"] == 1.5, "the pause does not count"
    assert line["loading_s"] == 1.0
    assert line["tokens_per_s"] == 60 / 3
    assert line["tokens"] == 1000 + 20
    assert line["tflops_per_device"] == 2 * 3 / 3
    assert line["mfu"] == 2 / 4
    assert line["memory_bytes"] > 50e6


def test_on_a_gpu_a_line_has_peak_and_reserved_memory_and_the_allocators_retries(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 40)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 2})
    assert memory(torch.device("cuda", 0)) == {
        "memory_bytes": 30,
        "memory_reserved_bytes": 40,
        "alloc_retries": 2,
    }


@pytest.mark.torch
def test_skipped_steps_are_counted_and_add_neither_loss_nor_tokens():
    found = loop_parts()
    line = found["only skipped"]
    assert (line["skipped"], line["tokens"], line["step_time_s"]) == (3, 1020, 1.0)
    assert "loading_s" not in line, "it did not say"
    assert "loss" not in line
    assert found["settled"] == 1020


@pytest.mark.torch
def test_a_rank_that_computes_three_times_as_long_is_named_though_all_wait_for_it():
    found = loop_parts()
    assert found["own seconds"] == [2.0, 6.0], "waiting in a gather is no computing"
    first, second = found["compared"]
    assert first == {}, "every second line compares"
    assert (second["slowest_rank"], second["slowest_ratio"]) == (1, 3.0)
    assert second["slowest_host"]
    assert second["rank_compute_s"] == found["own seconds"]
    assert found["said"].startswith("rank 1 on ")
    assert "3.00 times" in found["said"]


@pytest.mark.torch
def test_a_gradient_bad_on_one_rank_is_bad_on_all():
    found = loop_parts()
    assert found["may update"] == [[False, False], True]
    assert "step 7 is not finite" in found["stopped"]


def test_plain_lines_have_the_form_that_people_grep_for(capsys):
    display = Display(FIRST, 100, kind="auto")
    display.step(5)
    display.line(LINE)
    display.close()
    assert capsys.readouterr().out == (
        "step      5/100  loss 5.1235  grad 2.34  lr 4.00e-03  12,346 tokens/s  0.123 s\n"
    )
    assert len(text({**LINE, "step": 500, "tokens_per_s": 123_456.0}, 1000)) <= 80
    extended = text({**LINE, "mfu": 0.4321, "skipped": 2}, 100)
    assert extended.endswith("0.123 s  MFU 43.2%  2 skipped")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_of_80_columns_the_bar_is_one_line_with_loss_and_speed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    shown = sys.stdout
    with Display(FIRST, 1_000_000, kind="auto") as display:
        display.step(500_000)
        display.line({**LINE, "tokens_per_s": 1_234_567.0, "mfu": 0.43})
        FIRST.say("checkpoint saved")
    assert "checkpoint saved" in shown.getvalue()
    last = [part for part in shown.getvalue().replace("\r", "\n").split("\n") if "tok/s" in part][
        -1
    ]
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)
    assert len(plain) <= 80
    assert "500000/1000000" in plain
    assert "loss 5.123 1,234,567 tok/s 43%" in plain


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756.5),
        ("NVIDIA H200 NVL", torch.bfloat16, 835.5),
        ("NVIDIA GB200", torch.bfloat16, 2500.0),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312.0),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("Tesla V100-SXM2-32GB", torch.float16, 125.0),
        ("Tesla V100-SXM2-32GB", torch.bfloat16, None),  # no bfloat16 before Ampere
        ("AMD Instinct MI300X", torch.float16, 1307.4),
        ("NVIDIA GeForce RTX 3060", torch.bfloat16, None),
        ("NVIDIA GeForce RTX 4090 D", torch.bfloat16, None),  # slower than a 4090
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", torch.bfloat16, None),
    ],
)
def test_dense_peaks_by_the_names_that_torch_gives(name, dtype, peak):
    assert peak_of_name(name, dtype) == peak


@dataclass
class Record:
    best_loss: float | None = None
    worse: int = 0


def test_patience_counts_evaluations_without_a_lower_loss_and_survives_a_resume():
    record = Record()
    assert [lost_patience(record, loss, 2) for loss in (3.0, 2.0, 2.0)] == [False] * 3
    resumed = Record(record.best_loss, record.worse)
    assert lost_patience(resumed, 2.5, 2)
    assert not lost_patience(resumed, 1.0, 2)
    assert resumed == Record(1.0, 0)


def test_no_patience_never_stops_and_nan_is_no_improvement():
    record = Record()
    assert not any(lost_patience(record, loss, 0) for loss in (float("nan"), 1.0, 2.0, 3.0))
    assert record == Record(1.0, 2)
