"""The tables of measured figures: made from the result files, a miss shown as a miss."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import README, RESULTS, ratio, table, with_all_tables

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


def test_every_result_file_has_a_section() -> None:
    written = README.read_text("utf-8")
    for path in RESULTS.glob("*.json"):
        machine_free = path.stem.partition("-")[0]
        names = (f"results/{path.name}", f"results/{machine_free}-*.json")
        assert any(f"from {name}: do not edit" in written for name in names), path


def test_a_miss_is_shown_as_a_miss() -> None:
    text = table({"figures": [speed(90, 100)], "measured": MEASURED})
    assert "| 0.90 × | ≥ 1.00 × | **missed** |" in text


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
