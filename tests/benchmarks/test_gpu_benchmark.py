"""What the GPU benchmark says of its rows, with known answers; and that all of it runs."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts.steps import FIRST, KEPT, KEPT_BY_DEFAULT, STEPS, words_of
from benchmarks.gpu_parts.summary import figures, missing, result_of
from benchmarks.report import table
from tests.training.launch import the_pool

ABOUT = {
    "part": "speed",
    "name": "about",
    "status": "measured",
    "device": "NVIDIA H100 80GB HBM3",
    "versions": {"python": "3.12.3", "torch": "2.13.0"},
    "took_s": 0.0,
}


def speed(name: str, sequences_per_s: float, part: str = "speed") -> dict:
    return {
        "part": part,
        "name": name,
        "status": "measured",
        "rows": 32,
        "sequences_per_s": sequences_per_s,
        "tokens_per_s": 640 * sequences_per_s,
        "tflops": 1.5 * sequences_per_s,
        "mfu": 0.25,
        "peak_bytes": 2**33,
        "samples": [sequences_per_s],
        "took_s": 1.0,
    }


def named(rows: list[dict]) -> dict:
    return {(figure.against, figure.what): figure for figure in figures(rows)}


def test_the_best_row_without_dropout_stands_beside_what_was_published() -> None:
    rows = [
        ABOUT,
        speed("large, + attention sdpa", 180.0),
        speed("large, + compiled blocks", 200.0),
        speed("large, all that paid, dropout 0.1", 999.0),
    ]
    found = figures(rows)
    assert [(f.ours, f.theirs, f.met) for f in found] == [(200, 174.1, True), (200, 263, False)]
    assert "compiled blocks" in found[0].what


def test_peers_are_compared_with_ours_compiled_or_not_as_they_are() -> None:
    rates = {
        "ours": 300.0,
        "ours, not compiled": 180.0,
        "Hugging Face eager": 100.0,
        "Hugging Face sdpa, compiled": 150.0,
    }
    found = named([ABOUT, *(speed(name, rate, "peers") for name, rate in rates.items())])
    values = {against: (f.value, f.target, f.met) for (against, _), f in found.items()}
    assert values == {
        "Hugging Face eager": (1.8, 2.0, False),
        "Hugging Face sdpa, compiled": (2.0, 1.0, True),
    }


def test_what_was_not_measured_makes_no_figure_and_is_named_with_its_reason() -> None:
    rows = [
        ABOUT,
        {**speed("large, attention math", 1.0), "status": "failed", "why": "boom"},
        {"part": "xl", "name": "the part", "status": "skipped", "why": "no time was left"},
    ]
    assert figures(rows) == []
    text = table(result_of(rows))
    assert "- speed, large, attention math: failed, boom" in text
    assert "- xl, the part: skipped, no time was left" in text
    assert missing([ABOUT]) == "Every row was measured."


def test_a_check_that_failed_is_a_missed_figure() -> None:
    check = {"part": "correctness", "status": "measured", "took_s": 1.0}
    rows = [ABOUT, {**check, "name": "a", "passed": True}, {**check, "name": "b", "passed": False}]
    (figure,) = figures(rows)
    assert (figure.value, figure.target, figure.met) == (1, 2, False)


def test_steps_that_paid_are_settings_in_their_order() -> None:
    words = words_of(KEPT_BY_DEFAULT)
    assert words[:2] == ("model.attention=math", "optimizer.implementation=foreach")
    assert words.index("model.attention=sdpa") < words.index("compile=true")
    assert "loss=chunked" in words
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_other_parts_take_the_measured_steps_only_when_the_first_are_all_known(
    tmp_path: Path,
) -> None:
    parts = conductor(tmp_path)
    steps = [speed(f"large, + {step.name}", 1.0) for step in FIRST]
    kept = {**ABOUT, "name": KEPT, "kept": ["attention sdpa"]}
    parts.earlier = [*steps, kept]
    assert parts.kept() == ["attention sdpa"]
    parts.earlier = [*steps[:-1], {**steps[-1], "status": "skipped"}, kept]
    assert parts.kept() == KEPT_BY_DEFAULT


def conductor(tmp_path: Path, seconds: float = 900) -> gpu.Conductor:
    return gpu.Conductor(tmp_path, None, time.time() + seconds, dry=True)


def test_a_part_that_hangs_is_stopped_and_keeps_the_rows_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "gpu_parts" / "child.py"
    child.parent.mkdir()
    written = "\n".join([json.dumps(ABOUT), json.dumps(speed("large, x", 7.0)), '{"half'])
    child.write_text(
        "import sys, time\n"
        "with open(sys.argv[2], 'a') as file:\n"
        f"    file.write({written!r})\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    parts = conductor(tmp_path)

    def now() -> float:
        """Its time is over when it has written all that it will, however long that takes."""
        over = any('{"half' in file.read_text() for file in parts.files.values())
        return time.time() + 10_000 * over

    monkeypatch.setattr(gpu, "time", SimpleNamespace(sleep=time.sleep, time=now))
    parts.run("speed", 900)
    rows = json.loads((tmp_path / "gpu-dry-run.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["about", "large, x", "the part"]
    assert rows[-1]["why"] == "stopped: its time was over"


def test_a_part_that_dies_says_why_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "gpu_parts" / "child.py"
    child.parent.mkdir()
    child.write_text(
        "import sys\n"
        "if sys.argv[1] == 'speed': sys.exit('no such kernel')\n"
        f"open(sys.argv[2], 'a').write({json.dumps({**ABOUT, 'part': 'xl'})!r} + '\\n')\n"
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    parts = conductor(tmp_path)
    parts.run("speed", 120)
    parts.run("xl", 120)
    found = {(row["part"], row["name"]): row for row in parts.rows}
    assert "no such kernel" in found["speed", "the part"]["why"]
    assert ("xl", "about") in found


def test_a_part_that_is_measured_again_replaces_its_rows_only(tmp_path: Path) -> None:
    parts = conductor(tmp_path)
    parts.earlier = [ABOUT, {**ABOUT, "part": "xl"}]
    parts.skip("xl")
    assert [(row["part"], row["status"]) for row in parts.rows] == [
        ("speed", "measured"),
        ("xl", "skipped"),
    ]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("peaks", "wanted"),
    [
        ({16: 50}, 32),  # 10 + 2·40 fit into 93
        ({16: 55}, 8),  # 10 + 2·45 do not: is half as many faster?
        ({16: None}, 8),
        ({1: None}, None),
        ({16: None, 8: 50}, 4),
        ({16: 30, 32: 50}, None),  # 64 rows would need 90, and `most` is 32
        ({16: 30, 32: None}, 8),
    ],
)
def test_the_next_batch_to_try_is_foreseen_from_the_peaks(peaks: dict, wanted: int | None) -> None:
    from benchmarks.gpu_parts.trial import next_rows

    assert next_rows(peaks, idle_bytes=10, total_bytes=100, most=32) == wanted


@pytest.mark.torch
def test_the_oracle_is_float64_throughout() -> None:
    import torch

    from benchmarks.gpu_parts.correctness import first_weights, float64, with_padding
    from benchmarks.gpu_parts.trial import made_up, plan

    task = plan("t5-v1.1-base", "model.dropout_rate=0", dry=True)
    weights = first_weights(task, torch.float32)
    batch = with_padding(made_up(task, 3, torch.device("cpu")))
    exact = float64(task, weights, batch)
    moved = {name: value.clone() for name, value in weights.items()}
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    moved[name][3, 1] += 1e-3
    near = float64(task, moved, batch)
    slope = (near["loss"] - exact["loss"]).item() / (moved[name] - weights[name]).sum().item()
    middle = (exact[name][3, 1] + near[name][3, 1]).item() / 2
    assert slope == pytest.approx(middle, rel=1e-5)
    assert torch.Tensor.float(torch.ones(1)).dtype is torch.float32


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

    def poll(self) -> int:
        return self.returncode

    wait = kill = poll


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as changed:
        starting = SimpleNamespace(Popen=PartInThePool, DEVNULL=None, STDOUT=None)
        changed.setattr(gpu, "subprocess", starting)
        changed.setattr(gpu.signal, "signal", lambda *_: None)
        changed.setattr(sys, "argv", ["gpu.py", "--dry-run", "--out", str(out)])
        gpu.main()
    assert {f.name for f in out.iterdir()} == {
        "gpu-dry-run.json", *(f"{part}.log" for part in gpu.BUDGETS_S)
    }  # fmt: skip
    return json.loads((out / "gpu-dry-run.json").read_text("utf-8"))


@pytest.mark.torch
def test_every_part_of_the_dry_run_is_measured(dry_run: dict) -> None:
    wrong = [row for row in dry_run["rows"] if row["status"] not in ("measured", "unavailable")]
    assert wrong == []
    for part in gpu.BUDGETS_S:
        measured = [row for row in dry_run["rows"] if row["part"] == part]
        assert any(row["name"] != "about" and row["status"] == "measured" for row in measured), part


@pytest.mark.torch
def test_every_check_of_the_dry_run_passes(dry_run: dict) -> None:
    checks = [row for row in dry_run["rows"] if "passed" in row]
    assert {row["part"] for row in checks} == {"correctness", "triton", "checkpoints"}
    assert [row for row in checks if not row["passed"]] == []
    ways = {row["name"] for row in checks}
    assert {
        "base, float32, sdpa, chunked loss",
        "base, bfloat16, sdpa, whole loss, compiled",
    } <= ways


@pytest.mark.torch
def test_the_numbers_of_the_dry_run_are_finite_and_make_a_table(dry_run: dict) -> None:
    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [number for each in value for number in numbers(each)]
        return [value] if isinstance(value, float) else []

    assert all(map(math.isfinite, numbers(dry_run)))
    assert {**dry_run, **result_of(dry_run["rows"])} == dry_run
    text = table(dry_run)
    for heading in ("Sequences/s", "Same process and batch", "Strategy", "Against float64", "Save"):
        assert f"| {heading}" in text, heading
