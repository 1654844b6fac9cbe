"""What the GPU benchmark says of its rows, with known answers; and that all of it runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import rows
from benchmarks.gpu_parts.summary import figures, missing, result_of
from benchmarks.report import table
from tests.programs import until
from tests.training.launch import in_the_pool, the_pool

ABOUT = {
    "call": 1,
    "part": "all",
    "name": "about",
    "status": "measured",
    "device": "NVIDIA H100 80GB HBM3",
    "date": "2026-01-02",
    "commit": "0123456789abcdef",
    "versions": {"python": "3.12.3", "torch": "2.13.0"},
}


def row(part: str, name: str, status: str = "measured", **more: object) -> dict:
    return {"call": 1, "part": part, "name": name, "status": status, **more}


def speed(name: str, sequences_per_s: float, part: str = "step", **more: object) -> dict:
    found = {
        "rows": 32,
        "words": ["compile=false"],
        "sequences_per_s": sequences_per_s,
        "samples": [sequences_per_s],
        "mfu": 0.25,
        "peak_bytes": 2**33,
        "reserved_bytes": 2**33,
        "ready_s": 40.0,
    }
    return row(part, name, **{**found, **more})


def test_what_was_not_measured_makes_no_figure_and_is_named_with_its_reason() -> None:
    known = [
        ABOUT,
        row("step", "a", "failed", why="boom"),
        row("memory", "the part", "failed", why="no time was left"),
        row("peers", "b", "skipped", why="not there"),
        {**row("peers", "b"), "call": 2, **speed("b", 1.0, "peers")},
    ]
    assert figures(known) == []
    text = table(result_of(known))
    assert "- step, a: failed, boom" in text
    assert "- memory, the part: failed, no time was left" in text
    assert "not there" not in text  # another call has measured it
    assert missing([ABOUT]) == "Every row was measured."


def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, ends: float) -> gpu.Call:
    """One whose parts are the program `child`, which has `say(name)`, a row."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys, time\n"
        f"sys.path.insert(0, {str(gpu.HERE.parent)!r})\n"
        "from pathlib import Path\n"
        "from benchmarks.gpu_parts.rows import append\n"
        "context = json.loads(sys.argv[1])\n"
        "def say(name):\n"
        "    append(Path(context['file']), {'call': context['call'], 'part': context['name'],\n"
        "           'name': name, 'status': 'measured'})\n"
        f"{child}\n"
    )
    monkeypatch.setattr(gpu, "CHILD", script)
    return gpu.Call(1, tmp_path / "gpu-x.jsonl", time.time() + ends, False, "h100-80")


@pytest.mark.parametrize(
    ("child", "ends", "why", "measured"),
    [
        ("say('a')", 600, None, ["a"]),
        ("say('a')\nsys.exit('no such kernel')", 600, "no such kernel", ["a"]),
        ("say('a')\nos.kill(os.getpid(), 9)", 600, "ended with -9", ["a"]),
        ("say('a')\nPath('hangs').touch()\ntime.sleep(600)", 600, "its time was over", ["a"]),
        ("say('a')", 1, "no time was left", []),
    ],
    ids=["well", "failed", "killed", "hangs", "too late"],
)
def test_a_part_loses_no_row_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, ends: float, why: str | None,
    measured: list[str],
) -> None:  # fmt: skip
    class Timed(subprocess.Popen[bytes]):
        """One that hangs has no time left."""

        def wait(self, timeout: float | None = None) -> int:
            hangs = Path(f"/proc/{self.pid}/cwd/hangs")
            until(lambda: hangs.exists() or self.poll() is not None)
            return super().wait(timeout and (0 if hangs.exists() else timeout))

    monkeypatch.setattr(subprocess, "Popen", Timed)
    one = call(tmp_path, monkeypatch, child, ends)
    one.run("step")
    *found, end = rows.read(one.file)
    assert [r["name"] for r in found] == measured
    assert end["status"] == ("failed" if why else "done")
    assert why is None or why in end["why"]


def a_part(tmp_path: Path, name: str, left_s: float = math.inf, dry: bool = True):  # type: ignore[no-untyped-def]
    import torch

    from benchmarks.gpu_parts.device import Device
    from benchmarks.gpu_parts.part import Part
    from fsdpkit.training.distributed import Ranks

    cpu, ends = torch.device("cpu"), time.time() + left_s
    file, ranks = tmp_path / "rows.jsonl", Ranks(0, 0, 1, 1, cpu)
    return Part(name, file, 1, ends, dry, "h100-80", tmp_path, ranks, Device(cpu))


@pytest.mark.torch
def test_a_row_that_fails_says_so_and_the_next_is_measured(tmp_path: Path) -> None:
    def too_large() -> dict:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    part = a_part(tmp_path, "step", left_s=30, dry=False)
    assert "out of memory" in part.measure("too large", too_large)["why"]
    assert part.measure("small", lambda: {"n": 1})["n"] == 1
    assert part.measure("long", dict, needs_s=60)["status"] == "skipped"
    assert part.measure("none", dict, lacks="no such thing")["why"] == "no such thing"
    statuses = [r["status"] for r in rows.read(part.file)]
    assert statuses == ["failed", "measured", "skipped", "skipped"]


class PartInThePool:
    """In the place of subprocess.Popen: a part on a rank of the pool, over when it has started."""

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: Path, stdout: TextIO, **_: object
    ) -> None:
        python, script, *arguments = argv
        assert python == sys.executable
        done = the_pool().run(1, Path(script), *arguments, environment=env, directory=cwd)
        stdout.write(done.stdout)
        self.returncode = done.returncode

    def wait(self, _: float) -> int:
        return self.returncode


@pytest.mark.torch
def test_all_of_a_dry_run_is_measured_and_makes_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the parts that start torchrun: they have tests of their own."""
    changed = {**vars(subprocess), "Popen": PartInThePool}
    monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(**changed))
    monkeypatch.setattr(gpu, "kill_group", lambda _: None)
    wanted = ("step", "memory", "peers")
    only = [word for part in wanted for word in ("--only", part)]
    assert gpu.main(["--dry-run", "--out", str(tmp_path), *only]) == 0
    result = json.loads((tmp_path / "gpu-dry-run.json").read_text("utf-8"))
    assert {r["part"] for r in result["rows"] if r["status"] == "measured"} == {
        "all",
        *wanted,
    }
    assert [r for r in result["rows"] if r["status"] == "failed"] == []
    rates = [r["sequences_per_s"] for r in result["rows"] if "sequences_per_s" in r]
    assert len(rates) > 10
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    text = table(result)
    for heading in ("T5 v1.1-large", "Phases", "Peer, Accelerate"):
        assert f"| {heading}" in text, heading


@pytest.mark.torch
def test_the_parts_that_start_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.gpu_parts import plans, saves, trainer
    from benchmarks.gpu_parts.trial import plan as trial_of

    file, words = tmp_path / "rows.jsonl", list(trial_of("", dry=True).words)
    rows.append(file, speed("sdpa, compiled", 1.0, rows=2, words=words, lengths=[24, 12]))
    plans.run(a_part(tmp_path, "plans"))
    monkeypatch.setattr("subprocess.run", in_the_pool)
    trainer.run(a_part(tmp_path, "trainer"))
    saves.run(a_part(tmp_path, "saves"))
    found = {r["name"]: r for r in rows.read(file)}
    assert found["full rows"]["full"]  # no padding, as in the part step
    assert found["full rows"]["expected_per_s"] == 1.0
    assert found["buckets and evaluation"]["evaluations"] == 4
    assert found["large"]["samples"]["background"][0]["bytes"] > 0
    assert rows.read(file)[1]["allocated_bytes"] > 0
    assert "| fsdp_t5.py as torchrun starts it |" in table(result_of([ABOUT, *rows.read(file)]))


@pytest.mark.torch
@pytest.mark.parametrize(
    "wrong", [{}, {"energy_j": 9e3}, {"busy_s": 8.0}, {"idle_s": 9.0}, {"active_s": 5.0}]
)
def test_an_account_by_samples_is_compared_with_one_by_hand(wrong: dict[str, float]) -> None:
    """Of a kernel that waits: busy all the time, and hardly active."""
    from benchmarks.gpu_parts.worth import agrees

    right = {"observed_s": 18.1, "energy_j": 2250.0, "busy_s": 17.7, "idle_s": 0.0, "active_s": 0.1}
    hand = {"joules": 2230.0, "percent": 100.0, "busy_s": 18.0, "loading_s": None}
    row = {"phase_s": 18.0, "observed_s": 18.1, "loading_s": 0.0, "by_hand": hand}
    assert agrees("waiting", {**row, "gpu": {**right, **wrong}}) == (not wrong)


def test_rows_of_a_call_made_elsewhere_become_the_next_one(tmp_path: Path) -> None:
    """And a table stays that is of a part which there is no more."""
    result, elsewhere = tmp_path / "gpu-x.json", tmp_path / "elsewhere.jsonl"
    gone = "| Of old | Call |\n| ------ | ---- |\n| a | 1 |"
    made = result_of([ABOUT, {**row("step", "a"), **speed("a", 1.0)}])
    result.write_text(json.dumps({**made, "notes": [gone, *made["notes"]]}))
    for one in ({**ABOUT, "call": 1}, {**row("step", "b"), **speed("b", 2.0)}):
        rows.append(elsewhere, one)
    gpu.main(["--machine", "x", "--out", str(tmp_path), "--add", str(elsewhere)])
    after = json.loads(result.read_text())
    assert [(r["call"], r["name"]) for r in after["rows"]] == [
        (1, "about"), (1, "a"), (2, "about"), (2, "b"),
    ]  # fmt: skip
    text = table(after)
    assert gone in text
    assert text.count("| T5 v1.1-large |") == 1
