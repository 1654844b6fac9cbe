"""The account of a training: whole lines, and no end to what it tells about."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.runs.events import JsonLines, read_json_lines


def test_what_is_written_is_read_and_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    lines = JsonLines(path)
    lines.write(event="a", value=1)
    lines.write(event="b", text="é\n")
    lines.close()
    with open(path, "a") as file:
        file.write('{"event": "to')
    found = list(read_json_lines(path))
    assert [record["event"] for record in found] == ["a", "b"]
    assert found[1]["text"] == "é\n"
    assert found[0]["time_s"] <= found[1]["time_s"]
