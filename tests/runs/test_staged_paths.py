"""Where a script finds the node's own copy of a path, and that nothing on record names it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import fsdpkit
from fsdpkit.config.training import DataSettings, ModelSettings, TrainingSettings
from fsdpkit.data.loading import load
from fsdpkit.training.command_line import on_this_node
from tests.programs import ran

ROWS = '{"source": "a", "target": "b"}\n{"source": "c", "target": "d"}\n'


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared directory with a corpus, of which a node has copied most."""
    sources = {"corpus": "corpus/*.jsonl", "model": "model", "tok.json": "tok.json"}
    for base in (tmp_path / "shared", tmp_path / "stage"):
        for name in ("corpus/a.jsonl", "corpus/b.jsonl", "model/config.json", "tok.json"):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_text(ROWS, encoding="utf-8")
    (tmp_path / "shared/corpus/later.jsonl").write_text(ROWS, encoding="utf-8")
    items = [{"name": n, "source": str(tmp_path / "shared" / s)} for n, s in sources.items()]
    (tmp_path / "stage/.staged.json").write_text(json.dumps({"items": items}), encoding="utf-8")
    monkeypatch.setenv("FSDPKIT_STAGE", str(tmp_path / "stage"))
    monkeypatch.chdir(tmp_path / "shared")
    return tmp_path / "shared"


@pytest.mark.parametrize(
    ("path", "is_copied"),
    [
        *((p, True) for p in ("corpus/*.jsonl", "corpus/a.jsonl", "./model/", "model/config.json")),
        *((p, True) for p in ("tok.json", "corpus/../tok.json")),
        *((p, False) for p in ("corpus", "corpus/later.jsonl", "corpus/a*.jsonl", "models")),
        *((p, False) for p in ("model/new.json", "bytes", "", "corpus/**/*.jsonl")),
    ],
)
def test_a_path_leads_to_the_copy_if_all_of_it_is_there(
    shared: Path, path: str, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = str(shared.parent / "stage" / os.path.normpath(path))
    assert fsdpkit.staged(path) == (copy if is_copied else path)
    if path:
        assert fsdpkit.staged(shared / path) == (copy if is_copied else str(shared / path))
    monkeypatch.delenv("FSDPKIT_STAGE")
    assert fsdpkit.staged(path) == path


def test_a_list_that_cannot_be_read_leads_to_the_shared_files(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("none", None), ("broken", "{"), ("other", '{"items": [1]}')):
        there = shared.parent / name
        there.mkdir()
        if text:
            (there / ".staged.json").write_text(text, encoding="utf-8")
        monkeypatch.setenv("FSDPKIT_STAGE", str(there))
        assert fsdpkit.staged("model") == "model"


def test_the_trainer_opens_copies_and_its_data_are_the_same_by_name(shared: Path) -> None:
    data = DataSettings(
        source="corpus/[ab].jsonl", held_out_source="corpus/a.jsonl", tokenizer="tok.json"
    )
    settings = TrainingSettings(data=data, model=ModelSettings(pretrained="model"))
    copies, stage = on_this_node(settings), str(shared.parent / "stage")
    assert copies.data.source == data.source  # another pattern may stand for other files
    opened = (copies.data.held_out_source, copies.data.tokenizer, copies.model.pretrained)
    assert opened == (f"{stage}/corpus/a.jsonl", f"{stage}/tok.json", f"{stage}/model")
    prints = [
        load(DataSettings(source=source, task="pairs"))[0].fingerprint()
        for source in ("corpus/a.jsonl", opened[0])
        if source is not None
    ]
    assert prints[0] == prints[1]


def test_a_script_that_asks_imports_nothing_of_the_launcher() -> None:
    code = "import sys, fsdpkit; fsdpkit.staged('x'); print('msgspec' in sys.modules)"
    done = ran([sys.executable, "-c", code], status=0)
    assert done.stdout == "False\n"
