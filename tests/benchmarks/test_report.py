"""The tables of measured figures: made from the result files, a miss shown as a miss."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import HERE, README, RESULTS, ratio, table, with_all_tables, with_table

BEGIN = "<!-- made by report.py from results/training-*.json: do not edit -->"
END = "<!-- end of what report.py made -->"
MEASURED = {"date": "2026-01-02", "cpus": 2, "python": "3.11.7", "torch": "2.13.0"}


def speed(ours: float, theirs: float) -> dict:
    return asdict(
        ratio("speed", "tokens a second", "a peer", "≥", 1.0, ([ours], [theirs]), "tokens/s")
    )


def test_the_readme_is_what_its_result_files_make_of_it() -> None:
    written = README.read_text("utf-8")
    assert with_all_tables(written) == written
    launch = json.loads(RESULTS.read_text("utf-8"))
    assert with_table(written, launch) == written


def test_every_result_file_has_a_section() -> None:
    written = README.read_text("utf-8")
    for path in RESULTS.parent.glob("*.json"):
        machine_free = path.stem.partition("-")[0]
        names = (f"results/{path.name}", f"results/{machine_free}-*.json")
        assert any(f"from {name}: do not edit" in written for name in names), path


def test_a_row_counts_in_its_own_unit() -> None:
    row = table({"figures": [speed(2345.6, 1876.5)], "measured": MEASURED}).splitlines()[2]
    assert row.split(" | ")[2:5] == ["2,346 tokens/s", "1,876 tokens/s", "1.25 ×"]


def test_a_miss_is_shown_as_a_miss() -> None:
    text = table({"figures": [speed(90, 100)], "measured": MEASURED})
    assert "| 0.90 × | ≥ 1.00 × | **missed** |" in text


def test_less_is_better_where_the_bound_says_so() -> None:
    samples = ([1.0, 9.0, 2.0], [4.0, 4.0, 4.0])
    figure = ratio("memory", "peak", "a peer", "≤", 1.0, samples, "MiB")
    assert (figure.ours, figure.theirs, figure.value, figure.met) == (2.0, 4.0, 0.5, True)
    assert figure.samples == {"ours": [1.0, 9.0, 2.0], "theirs": [4.0, 4.0, 4.0]}


def test_strategies_and_notes_follow_the_figures() -> None:
    mib = 2**20
    strategy = {
        "name": "full_shard",
        "what": "FULL_SHARD",
        "steps_per_s": 1.234,
        "parameter_bytes": 20 * mib,
        "gradient_bytes": 20 * mib,
        "optimizer_bytes": 40 * mib,
        "peak_bytes": 312.4 * mib,
    }
    result = {
        "figures": [speed(2, 1)],
        "strategies": [strategy],
        "notes": ["2 ranks."],
        "measured": {**MEASURED, "device": "1 × H100"},
    }
    text = table(result)
    assert "| FULL_SHARD | 1.23 | 20.0 MiB | 20.0 MiB | 40.0 MiB | 312 MiB |" in text
    assert text.endswith(
        "2 ranks.\n\nMeasured 2026-01-02 on 1 × H100: Python 3.11.7, torch 2.13.0."
    )


def test_each_step_is_shown_beside_the_one_before() -> None:
    first = {"what": "plain", "tokens_per_s": 1234.5, "times_before": None, "peak_bytes": 2**30}
    second = {**first, "what": "+ more", "times_before": 1.234}
    text = table({"figures": [speed(2, 1)], "steps": [first, second], "measured": MEASURED})
    assert "| Step | Tokens/s | × before | Peak |" in text
    assert "| plain | 1,234 |  | 1,024 MiB |\n| + more | 1,234 | 1.23 | 1,024 MiB |" in text


def test_a_section_shows_every_machine_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    readme = f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"
    assert "Not measured yet." in with_all_tables(readme, tmp_path)
    for machine in ("cpu-2", "h100"):
        result = {"figures": [speed(2, 1)], "measured": {**MEASURED, "device": machine}}
        (tmp_path / "results" / f"training-{machine}.json").write_text(json.dumps(result))
    text = with_all_tables(readme, tmp_path)
    assert text.startswith(f"before\n\n{BEGIN}\n\n| What")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "old" not in text
    assert text.index("on cpu-2:") < text.index("on h100:")
    assert with_all_tables(text, tmp_path) == text


def test_what_bfloat16_weights_cost_is_measured_for_both_remedies_where_nearest_is_seen_to_lose():
    (path,) = sorted((HERE / "results").glob("rounding-*.json"))
    rows = {row["name"]: row for row in json.loads(path.read_text("utf-8"))["figures"]}
    assert set(rows) == {
        *("large-stochastic", "large-compensated", "small-stochastic", "small-compensated"),
        "small-nearest",
    }
    assert all(row["met"] for row in rows.values())
    assert len(rows["small-nearest"]["samples"]["ours"]) >= 2
