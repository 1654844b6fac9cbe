"""`fsdpkit.run` in a notebook, with a real kernel, on the local cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.packaging.installation import ROOT

CELLS = [
    f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import fsdpkit

FACTOR = 3
here = dict(cluster="local", gpus=2, sets=["launch.warm=off"])

def scaled(number):
    print("one\\u001b[2Jline")
    return FACTOR * number + int(os.environ["RANK"])
""",
    "fsdpkit.run(scaled, 14, **here)",
    """
def breaks():
    if os.environ["RANK"] == "1":
        raise KeyError("of the notebook")
try:
    fsdpkit.run(breaks, **here)
except fsdpkit.FunctionError as error:
    print(error)
""",
]


def test_a_cell_s_function_runs_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(
        f'{{"argv": ["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"],'
        ' "display_name": "Python", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    _, good, bad = (cell.outputs for cell in notebook.cells)
    results = [out for out in good if out.output_type == "execute_result"]
    assert [out.data["text/plain"] for out in results] == ["[42, 43]"]
    shown = [out for out in good if out.output_type == "display_data"]
    assert len(shown) == 1  # one line, redrawn
    assert "COMPLETED" in shown[0].data["text/plain"]
    said = "".join(out.text for out in bad if out.output_type == "stream")
    assert "rank 1" in said
    assert 'raise KeyError("of the notebook")' in said  # the cell's own line
