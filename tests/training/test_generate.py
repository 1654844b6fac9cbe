"""The command that writes text: what it prints, scores and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from data import Batch
from generate import main, write
from launch import findings
from model import IGNORE, T5
from scores import held_out_rouge
from search import Search, generate
from small_t5 import V1_1, batch_of, build
from weights import export

from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.rouge import rouge
from tests.data.conftest import WRITERS

BYTES = load_tokenizer("bytes")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "export"
    model = byte_model()
    export(folder, model, model.config)
    return folder


def byte_model() -> T5:
    """Untrained, of the size of ByT5's vocabulary; writes readable bytes only."""
    model = build(**{**V1_1, "vocab_size": 384}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".o.weight", ".wo.weight")):
                parameter *= 3
        readable = torch.zeros(384, dtype=torch.bool)
        readable[[1, *range(100, 126)]] = True  # EOS and a … z
        model.lm_head.weight[~readable] = 0
    return model


def pairs(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def alone(model: T5, texts: list[str], **search: int) -> list[str]:
    return [write(model, BYTES, [text], Search(**search))[0] for text in texts]


TEXTS = ["one", "a much longer text than the others", "", "zwölf"]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_writes_what_each_text_gets_alone_in_the_order_given(beams):
    model = byte_model()
    together = write(model, BYTES, TEXTS, Search(max_new_tokens=9, beams=beams), batch_size=3)
    assert together == alone(model, TEXTS, max_new_tokens=9, beams=beams)
    assert len(set(together)) > 1


def test_the_encoder_runs_once_and_each_step_reads_one_token(monkeypatch):
    model = byte_model()
    encoded, looked_up = [], []
    model.encoder.register_forward_hook(lambda *_: encoded.append(1))
    model.shared.register_forward_hook(lambda _m, ids, _o: looked_up.append(ids[0].shape[1]))
    source, mask, _ = batch_of(([7, 8, 9, 1], [1]))
    generate(model, source, mask, Search(max_new_tokens=5, beams=2))
    assert len(encoded) == 1
    assert looked_up[0] == 4
    assert set(looked_up[1:]) == {1}


def test_a_file_of_pairs_is_written_and_scored(weights, tmp_path, capsys):
    texts = ["one", "two", "three"]
    (said,) = alone(byte_model(), ["one"], max_new_tokens=6)
    rows = [{"q": t, "a": said if t == "one" else "#"} for t in texts]
    source = pairs(tmp_path / "in.jsonl", *rows)
    output = tmp_path / "out.jsonl"
    main(
        ["--weights", str(weights), "--input", str(source), "--source-field", "q",
         "--target-field", "a", "--rouge", "--output", str(output), "--max-new-tokens", "6"]
    )  # fmt: skip
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["source"] for row in written] == texts
    assert [row["output"] for row in written] == alone(byte_model(), texts, max_new_tokens=6)
    assert capsys.readouterr().out == (
        "rouge1 33.33  rouge2 0.00  rougeL 33.33  (mean F1 of 3 texts, percent)\n"
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_it_reads_what_training_reads(weights, tmp_path, capsys, suffix):
    rows = [{"q": text, "a": "#"} for text in ("one, or two", "three")]
    path = WRITERS[suffix](tmp_path / f"in{suffix}", rows)
    main(["--weights", str(weights), "--input", str(path), "--source-field", "q",
          "--max-new-tokens", "6"])  # fmt: skip
    expected = alone(byte_model(), ["one, or two", "three"], max_new_tokens=6)
    assert capsys.readouterr().out == "\n".join(expected) + "\n"


def test_rouge_while_training_is_that_of_what_the_model_writes(monkeypatch):
    """One rank; a row of nothing, which fills up a batch, counts for nothing."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: None)
    model, tokenizer = byte_model().eval(), load_tokenizer("bytes")
    texts = ["one", "two", "three"]
    said = alone(model, texts, max_new_tokens=6)
    targets = [said[0], "# #", said[2] + " and more"]
    assert said[0].split(), "the model writes something"
    rows = [
        ([*tokenizer.encode(t), 1], [*tokenizer.encode(x), 1])
        for t, x in zip(texts, targets, strict=True)
    ]
    batches = [Batch(*batch_of(*part)) for part in (rows[:2], [rows[2], rows[2]])]
    batches[1].labels[1] = IGNORE
    ranks = Ranks(0, 0, 1, 1, torch.device("cpu"))
    found = held_out_rouge(model, batches, tokenizer, 6, ranks)
    expected = rouge(said, targets)
    assert found == pytest.approx({f"eval_{kind}": score for kind, score in expected.items()})


@pytest.mark.torch
def test_a_sharded_model_writes_whatever_its_units_are(tmp_path):
    found = findings(2, "generated_units", tmp_path)
    assert len(found) == 5
    assert set(map(str, found.values())) == {str(found["blocks"])}
