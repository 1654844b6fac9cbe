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
from benchmarks.gpu_parts import plan, rows
from benchmarks.gpu_parts.snapshot import peak_of_trace, summary_of_snapshot
from benchmarks.gpu_parts.steps import COMMON, START, STEPS, best_words, fastest_row
from benchmarks.gpu_parts.summary import figures, missing, result_of
from benchmarks.report import table
from fsdpkit.config.training import load_settings
from tests.training.launch import in_the_pool, the_pool

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
        "words": [name],
        "sequences_per_s": sequences_per_s,
        "tokens_per_s": 640 * sequences_per_s,
        "tflops": 1.5 * sequences_per_s,
        "mfu": 0.25,
        "peak_bytes": 2**33,
        "ready_s": 40.0,
        "samples": [sequences_per_s],
        "took_s": 1.0,
    }


def row(part: str, name: str, status: str = "measured", **more: object) -> dict:
    return {"part": part, "name": name, "status": status, **more}


def test_the_best_row_without_dropout_stands_beside_what_was_published() -> None:
    found = figures(
        [
            ABOUT,
            speed("large, attention sdpa, compiled", 180.0),
            speed("large, + attention triton", 270.0),
            speed("large, all that paid, dropout 0.1", 999.0),
        ]
    )
    assert [(f.ours, f.theirs, f.met) for f in found] == [
        (270, 174.1, True), (270, 263, True), (270, 292, False)
    ]  # fmt: skip
    assert "attention triton" in found[0].what


def test_peers_at_their_best_batch_are_compared_with_our_fastest() -> None:
    peers = [
        speed("Hugging Face eager", 100.0, "peers-eager"),
        speed("Hugging Face sdpa, compiled", 160.0, "peers-compiled"),
    ]
    found = figures([ABOUT, speed("large, + attention triton", 200.0), *peers])
    assert [(f.value, f.target, f.met) for f in found[-2:]] == [
        (2.0, 2.0, True),
        (1.25, 1.3, False),
    ]


def test_what_was_not_measured_makes_no_figure_and_is_named_with_its_reason() -> None:
    known_rows = [
        ABOUT,
        {**speed("large, attention sdpa", 1.0), "status": "failed", "why": "boom"},
        row("xl", "the part", "skipped", why="no time was left"),
        row("speed", "the part", "done"),
    ]
    assert figures(known_rows) == []
    text = table(result_of(known_rows))
    assert "- speed, large, attention sdpa: failed, boom" in text
    assert "- xl, the part: skipped, no time was left" in text
    assert missing([ABOUT]) == "Every row was measured."


def test_a_check_that_failed_is_a_missed_figure() -> None:
    checks = [row("correctness", "a", passed=True), row("correctness", "b", passed=False)]
    (figure,) = figures([ABOUT, *checks])
    assert (figure.value, figure.target, figure.met) == (1, 2, False)


def test_later_parts_take_the_settings_of_the_fastest_row() -> None:
    measured = [speed("a", 2.0), speed("b", 3.0), speed("c, dropout 0.1", 9.0)]
    assert best_words(measured) == ("b",)
    assert fastest_row(measured, "xl") is None
    assert "compile=true" in best_words([])


def test_every_setting_that_is_tried_exists() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    for words in (COMMON, START, *(step.words for step in STEPS)):
        load_settings({}, words)


def test_the_sections_take_nine_minutes_each() -> None:
    assert all(sum(s.parts.values()) <= plan.SECTION_S <= 540 for s in plan.SECTIONS.values())
    wanted = tuple(plan.SECTIONS[3].parts)
    assert plan.budget_s("profile", wanted, 540) + plan.budget_s(
        "trainer", wanted[1:], 300
    ) == pytest.approx(540)


def test_a_line_that_a_crash_cut_short_is_passed_over_and_the_next_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows.append(file, row("speed", "a", sequences_per_s=1.0))
    with file.open("a") as lines:
        lines.write('{"part": "speed", "na')
    rows.append(file, row("speed", "b"))
    assert [r["name"] for r in rows.read(file)] == ["a", "b"]


def test_what_was_measured_is_replaced_only_by_what_is_measured_anew() -> None:
    first = [row("speed", "a", n=1), row("speed", "a", "started"), row("speed", "a", "failed")]
    assert rows.latest(first) == [row("speed", "a", n=1)]
    assert rows.latest([*first, row("speed", "a", n=2)]) == [row("speed", "a", n=2)]
    (begun,) = rows.shown([row("speed", "b", "started")])
    assert begun["status"] == "failed"
    assert "the process ended" in begun["why"]


@pytest.mark.parametrize(
    ("last", "done"),
    [
        ([row("speed", "the part", "done")], True),
        ([], False),
        ([row("speed", "the part", "failed")], False),
        ([row("speed", "b", "skipped"), row("speed", "the part", "done")], False),
        ([row("speed", "b", "unavailable"), row("speed", "the part", "done")], True),
    ],
    ids=["ended", "cut off", "died", "a row is missing", "a row cannot be measured here"],
)
def test_a_part_is_done_when_nothing_is_left_to_measure(last: list[dict], done: bool) -> None:
    assert rows.is_done([row("speed", "a"), *last], "speed") is done


def conductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, *, again: bool = False
) -> gpu.Conductor:
    """One whose parts are the program `child`, which has the context and `say(name, **row)`."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys, time\n"
        f"sys.path.insert(0, {str(gpu.ROOT)!r})\n"
        "from benchmarks.gpu_parts.rows import append, latest, read\n"
        "from pathlib import Path\n"
        "context = json.loads(sys.argv[1])\n"
        "file, part = Path(context['file']), context['part']\n"
        "known = [row['name'] for row in latest(read(file)) if row['part'] == part]\n"
        "def say(name, status='measured', **more):\n"
        "    append(file, {'part': part, 'name': name, 'status': status, **more})\n"
        f"say('about', **{ {k: v for k, v in ABOUT.items() if k in ('device', 'versions')}!r})\n"
        f"{child}\n"
    )
    monkeypatch.setattr(gpu, "CHILD", script)
    return gpu.Conductor(tmp_path / "gpu-x.jsonl", True, again=again)


def names_and_status(parts: gpu.Conductor, part: str = "speed") -> list[tuple[str, str]]:
    return [(r["name"], r["status"]) for r in parts.rows if r["part"] == part][1:]


def test_a_part_that_hangs_is_stopped_and_keeps_the_rows_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conductor(tmp_path, monkeypatch, "say('a'); say('b', 'started'); time.sleep(600)")

    def now() -> float:
        """Its time is over when it has written all that it will, however long that takes."""
        over = any(r["name"] == "b" for r in rows.read(parts.file))
        return time.time() + 10_000 * over

    monkeypatch.setattr(gpu, "time", SimpleNamespace(sleep=time.sleep, time=now))
    parts.run("speed", time.time() + 900)
    assert names_and_status(parts) == [("a", "measured"), ("b", "failed"), ("the part", "failed")]
    assert parts.rows[-1]["why"] == "stopped: its time was over"
    assert json.loads((tmp_path / "gpu-x.json").read_text())["rows"] == parts.rows
    assert not parts.is_done("speed")


def test_a_part_that_dies_in_a_row_goes_on_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conductor(
        tmp_path,
        monkeypatch,
        "if 'a' not in known: say('a', 'started'); os.abort()\nsay('b')",
    )
    parts.run("speed", time.time() + 60)
    assert names_and_status(parts) == [("a", "failed"), ("b", "measured"), ("the part", "done")]
    assert not gpu.all_ran(rows.read(parts.file), ["speed"])  # a row is missing: exit status 1


def test_a_part_that_cannot_start_says_why_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conductor(
        tmp_path, monkeypatch, "if part == 'memory': sys.exit('no such kernel')\nsay('a')"
    )
    parts.run_section(4, ["memory", "machine"], time.time() + 60)
    assert "no such kernel" in next(
        r["why"] for r in parts.rows if r["part"] == "memory" and "why" in r
    )
    assert names_and_status(parts, "machine") == [("a", "measured"), ("the part", "done")]


def test_what_is_done_is_passed_over_unless_it_is_wanted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = "say('a', n=len(read(file)))"
    parts = conductor(tmp_path, monkeypatch, say)
    parts.run_section(1, ["ceilings"], time.time() + 60)
    before = rows.read(parts.file)
    parts.run_section(1, ["ceilings"], time.time() + 60)
    assert rows.read(parts.file) == before
    conductor(tmp_path, monkeypatch, say, again=True).run_section(1, ["ceilings"], time.time() + 60)
    assert len(rows.read(parts.file)) > len(before)


def test_without_time_a_part_is_skipped_and_the_call_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conductor(tmp_path, monkeypatch, "say('a')")
    parts.run_section(2, ["speed"], time.time() + 1)
    assert [r["status"] for r in rows.read(parts.file)] == ["skipped"]
    assert not gpu.all_ran(rows.read(parts.file), ["speed"])


@pytest.mark.torch
def test_an_earlier_row_of_a_part_stays_unless_it_is_measured_again(tmp_path: Path) -> None:
    from benchmarks.gpu_parts.child import settled

    file = tmp_path / "rows.jsonl"
    known_rows = [
        {**row("speed", "before"), "at": 5.0},
        {**row("speed", "failed before", "failed"), "at": 5.0},
        {**row("speed", "failed now", "failed"), "at": 15.0},
        {**row("speed", "died now", "started"), "at": 15.0},
        {**row("xl", "of another"), "at": 15.0},
    ]
    context = {"part": "speed", "file": str(file), "since": 0.0, "call": 10.0}
    found = settled(known_rows, context)
    assert set(found) == {"before", "failed now", "died now"}
    assert found["died now"]["status"] == rows.read(file)[0]["status"] == "failed"
    assert set(settled(known_rows[:3], {**context, "since": 10.0})) == {"failed now"}
    assert settled(known_rows[:1], {**context, "part": "checkpoints"}) == {}


def a_part(tmp_path: Path, name: str = "speed", deadline: float = math.inf, dry: bool = True):  # type: ignore[no-untyped-def]
    import torch

    from benchmarks.gpu_parts.device import Device
    from benchmarks.gpu_parts.part import Part
    from fsdpkit.training.distributed import Ranks

    cpu = torch.device("cpu")
    ranks = Ranks(0, 0, 1, 1, cpu)
    return Part(name, tmp_path / "rows.jsonl", deadline, dry, ranks, Device(cpu), tmp_path)


@pytest.mark.torch
def test_a_row_that_runs_out_of_memory_says_so_and_the_next_is_measured(tmp_path: Path) -> None:
    import torch

    part = a_part(tmp_path)

    def too_large() -> dict:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    failed = part.measure("too large", too_large)
    assert failed["status"] == "failed"
    assert "out of memory" in failed["why"]
    assert part.measure("small", lambda: {"n": 1})["status"] == "measured"
    late = a_part(tmp_path, deadline=time.time() + 5, dry=False)
    assert late.measure("long", dict, needs_s=60)["status"] == "skipped"
    assert late.measure("none", dict, lacks="no such thing")["status"] == "unavailable"
    assert [r["name"] for r in rows.latest(rows.read(part.file))] == [
        "too large", "small", "long", "none"
    ]  # fmt: skip


@pytest.mark.torch
def test_a_gpu_that_can_do_no_more_ends_the_process(tmp_path: Path) -> None:
    part = a_part(tmp_path)

    def broken() -> dict:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(SystemExit):
        part.measure("broken", broken)
    assert rows.read(part.file)[-1]["status"] == "failed"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("peaks", "wanted"),
    [
        ({16: 50}, 32),  # 10 + 2.5 a row: 33 rows fill 93, the next step of 8 below is 32
        ({16: 90}, None),  # 5 a row: no more than 16
        ({4: 50}, 8),  # 10 a row
        ({3: 40}, 8),
        ({64: None}, 32),
        ({20: None}, 8),  # 10, in steps of 8
        ({1: None}, None),
        ({16: 50, 32: None}, 24),
        ({16: 50, 24: 80, 32: None}, None),
        ({16: 20}, 40),  # no more than is asked for
    ],
)
def test_the_next_batch_to_try_is_foreseen_from_the_peaks(peaks: dict, wanted: int | None) -> None:
    from benchmarks.gpu_parts.trial import next_rows

    assert next_rows(peaks, idle_bytes=10, total_bytes=100, most=40) == wanted


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


@pytest.mark.torch
@pytest.mark.parametrize("case", range(4))
def test_attention_alone_is_held_against_float64(tmp_path: Path, case: int) -> None:
    import torch

    from benchmarks.gpu_parts import attention_alone
    from benchmarks.gpu_parts.attention_alone import Case, alone

    which = (
        Case("encoder", 24, 24, causal=False, biased=True),
        Case("decoder", 12, 12, causal=True, biased=True),
        Case("across", 12, 24, causal=False, biased=False),
        Case("odd", 17, 17, causal=False, biased=True),
    )[case]
    part, attend = a_part(tmp_path), attention_alone.ATTEND["sdpa"]
    right = alone(part, which, "sdpa", torch.float32)
    assert set(right["errors"]) == {"out", "dq", "dk", "dv"} | (
        {"dbias"} if which.biased else set()
    )
    assert max(right["errors"].values()) < 1e-5

    def off(*inputs):  # type: ignore[no-untyped-def]
        return 1.01 * attend(*inputs)

    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(attention_alone.ATTEND, "sdpa", off)
        wrong = alone(part, which, "sdpa", torch.float32)
    assert not wrong["passed"]
    assert wrong["relative"] == pytest.approx(0.01, rel=0.1)


@pytest.mark.torch
def test_kernels_are_sorted_by_kind_and_what_no_pattern_fits_is_other() -> None:
    from benchmarks.gpu_parts.roofline import (
        ATTENTION,
        CROSS_ENTROPY,
        ELEMENTWISE,
        OPTIMIZER,
        OTHER,
        PRODUCTS,
        SHARDING,
    )  # fmt: skip
    from benchmarks.gpu_parts.step_kernels import kind_of, summary_of

    kinds = {
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT": PRODUCTS,
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": PRODUCTS,
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(Params)": ATTENTION,
        "key_gradient_kernel": ATTENTION,
        "backward_kernel": ATTENTION,
        "void at::native::embedding_backward_kernel<float, float, long>": OTHER,
        "triton_tem_fused_flex_attention_backward_0": ATTENTION,
        "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_3": ELEMENTWISE,
        "void at::native::vectorized_elementwise_kernel<4, MulFunctor>": ELEMENTWISE,
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>": CROSS_ENTROPY,
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>": OPTIMIZER,
        "void at::native::multi_tensor_apply_kernel<CopyFunctor<BFloat16, float>>": SHARDING,
        "split_with_sizes_copy_out_contiguous_kernel": SHARDING,
        "ncclDevKernel_AllGather_RING_LL": SHARDING,
        "some_new_kernel": OTHER,
    }
    assert {name: kind_of(name) for name in kinds} == kinds
    found = summary_of([("nvjet_a", 0.6, 30), ("what", 0.3, 3)], wall_s=1.2, steps=3)
    assert found["by_kind_s"] == {PRODUCTS: pytest.approx(0.2), OTHER: pytest.approx(0.1)}
    assert (found["wall_s"], found["idle_s"], found["launches"]) == pytest.approx((0.4, 0.1, 11))


def test_a_snapshot_comes_to_the_peak_of_the_step_and_who_held_it() -> None:
    def event(action: str, addr: int, size: int, name: str = "forward") -> dict:
        frame = {"filename": "/x/model.py", "name": name}
        torch_ = {"filename": "/x/site-packages/torch/nn.py", "name": "linear"}
        return {"action": action, "addr": addr, "size": size, "frames": [torch_, frame]}

    events = [
        event("free_completed", 9, 1000),  # allocated before
        event("alloc", 1, 100),
        event("alloc", 2, 50, "backward"),
        event("free_requested", 1, 100),
        event("free_completed", 1, 100),
        event("alloc", 3, 80),
    ]
    assert peak_of_trace(events) == (150, {"model.py:forward": 100, "model.py:backward": 50})
    found = summary_of_snapshot(
        {"segments": [{"total_size": 300, "allocated_size": 130}], "device_traces": [events]}
    )
    assert (found["unused_bytes"], found["step_peak_bytes"]) == (170, 150)
    assert found["alive"][0] == {"place": "model.py:forward", "bytes": 100}
    assert summary_of_snapshot({"segments": [], "device_traces": []})["step_peak_bytes"] == 0


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


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Every part but the trainer, which has a test of its own."""
    out = tmp_path_factory.mktemp("gpu")
    wanted = [part for part in plan.PARTS if part != "trainer"]
    with pytest.MonkeyPatch.context() as changed:
        starting = SimpleNamespace(Popen=PartInThePool, DEVNULL=None, STDOUT=None)
        changed.setattr(gpu, "subprocess", starting)
        changed.setattr(gpu, "kill_group", lambda _: None)
        changed.setattr(gpu.signal, "signal", lambda *_: None)
        only = [word for part in wanted for word in ("--only", part)]
        changed.setattr(sys, "argv", ["gpu.py", "--dry-run", "--out", str(out), *only])
        status = gpu.main()
    assert {f.name for f in out.iterdir()} == {
        "gpu-dry-run.jsonl", "gpu-dry-run.json", *(f"gpu-dry-run-{part}.log" for part in wanted)
    }  # fmt: skip
    return {"status": status, **json.loads((out / "gpu-dry-run.json").read_text("utf-8"))}


@pytest.mark.torch
def test_every_part_of_the_dry_run_is_measured(dry_run: dict) -> None:
    fine = ("measured", "unavailable", "done")
    assert [r for r in dry_run["rows"] if r["status"] not in fine] == []
    assert dry_run["status"] == 0
    for part in plan.PARTS.keys() - {"trainer"}:
        measured = [r for r in dry_run["rows"] if r["part"] == part and r["status"] == "measured"]
        assert any(r["name"] != "about" for r in measured), part


@pytest.mark.torch
def test_every_check_of_the_dry_run_passes(dry_run: dict) -> None:
    checks = [r for r in dry_run["rows"] if "passed" in r]
    assert {r["part"] for r in checks} == {"correctness", "triton", "checkpoints", "attention"}
    assert [r for r in checks if not r["passed"]] == []
    ways = {r["name"] for r in checks}
    assert {
        "base, float32, sdpa, chunked loss",
        "base, bfloat16, sdpa, whole loss, compiled",
        "encoder, odd length, sdpa",
        "decoder, triton",
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
    headings = (
        "Step", "Peer, Accelerate FSDP2", "Kernels of a step, batch", "Product", "Attention alone",
        "Strategy", "Against float64", "Save",
    )  # fmt: skip
    for heading in headings:
        assert f"| {heading}" in text, heading


@pytest.mark.torch
def test_the_trainer_is_started_as_a_user_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.gpu_parts import trainer

    def start(argv, environ, cwd, timeout_s):  # type: ignore[no-untyped-def]
        return in_the_pool(argv, env=environ, cwd=cwd)

    monkeypatch.setattr(trainer, "start", start)
    trainer.run(a_part(tmp_path, "trainer"))
    found = {r["name"]: r for r in rows.latest(rows.read(tmp_path / "rows.jsonl"))}
    assert found["full rows"]["status"] == "measured", found["full rows"]
    assert found["full rows"]["full"]  # no padding, as in the benchmark
    assert found["buckets and evaluation"]["evaluations"] == 4
    assert found["buckets and evaluation"]["passed"]
