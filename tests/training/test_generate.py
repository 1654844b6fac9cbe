"""The command that writes text: what it prints, scores and refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import generate as command
import pytest
import torch
from data import Batch
from generate import main, write
from launch import EXAMPLE, RANKS, environment, run_ranks
from model import IGNORE, T5, T5Config
from scores import held_out_rouge
from search import CachedDecoder, Search, generate
from small_t5 import DIMENSIONS, V1_1, batch_of, build
from weights import export

from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.errors import ConfigError, NotFoundError, StorageError, UsageError
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


def test_writing_stops_at_eos_and_runs_no_step_more(monkeypatch):
    model = byte_model()
    steps = 0
    original = CachedDecoder.step

    def ending(self: CachedDecoder, tokens: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        scores = original(self, tokens)
        scores[:, 1] = 1e4 if steps == 4 else -1e4
        return scores

    monkeypatch.setattr(CachedDecoder, "step", ending)
    source, mask, _ = batch_of(([7, 8, 1], [1]), ([9, 1], [1]))
    assert [len(ids) for ids in generate(model, source, mask)] == [3, 3]
    assert steps == 4


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


def test_a_beam_never_scores_below_greedy():
    model = byte_model()
    source, mask, _ = batch_of(*(([7 + i, 8, 30 + i, 1], [1]) for i in range(6)))

    def score(row: int, ids: list[int]) -> float:
        labels = torch.tensor([[*ids, 1]])[:, :6]
        log_p = model(source[row : row + 1], mask[row : row + 1], labels).log_softmax(-1)
        return float(log_p.gather(2, labels[..., None]).sum().detach())

    # All the paths there are near the best: six tokens, wide beams, no reward for length.
    wide = generate(model, source, mask, Search(max_new_tokens=6, beams=24, length_penalty=0.0))
    narrow = generate(model, source, mask, Search(max_new_tokens=6))
    for row in range(6):
        assert score(row, wide[row]) >= score(row, narrow[row]) - 1e-4


def test_a_tokenizer_with_ids_the_model_lacks_is_refused():
    small = T5(T5Config(**DIMENSIONS)).eval()
    with pytest.raises(ConfigError, match=r"bytes has ids to 258, but the model knows 40"):
        write(small, BYTES, ["text"], Search())


def test_ids_beyond_the_tokenizer_s_are_left_out(monkeypatch):
    monkeypatch.setattr(command, "generate", lambda *_: [[100, 383, 101]])
    assert write(byte_model(), BYTES, ["x"], Search()) == ["ab"]


def test_flex_is_refused():
    model = build("flex", **V1_1).eval()
    source, mask, _ = batch_of(([7, 1], [1]))
    with pytest.raises(ConfigError, match="load the model with sdpa"):
        generate(model, source, mask)


def test_texts_are_printed_a_line_each(weights, capsys):
    main(["--weights", str(weights), "--max-new-tokens", "6", "one", "two"])
    assert capsys.readouterr().out.splitlines() == alone(
        byte_model(), ["one", "two"], max_new_tokens=6
    )


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


def test_rouge_of_known_texts():
    scores = rouge(["the cat sat", "no"], ["the cat sat on the mat", "no"])
    # First text: 3 of 3 and 3 of 6 words, F1 2/3; 2 of 2 and 2 of 5 pairs, F1 4/7. Second: one
    # word, no pairs.
    assert scores["rouge1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert scores["rouge2"] == pytest.approx(100 * (4 / 7) / 2)
    assert scores["rougeL"] == pytest.approx(100 * (2 / 3 + 1) / 2)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_it_reads_what_training_reads(weights, tmp_path, capsys, suffix):
    rows = [{"q": text, "a": "#"} for text in ("one, or two", "three")]
    path = WRITERS[suffix](tmp_path / f"in{suffix}", rows)
    main(["--weights", str(weights), "--input", str(path), "--source-field", "q",
          "--max-new-tokens", "6"])  # fmt: skip
    expected = alone(byte_model(), ["one, or two", "three"], max_new_tokens=6)
    assert capsys.readouterr().out == "\n".join(expected) + "\n"


def test_rows_that_cannot_be_used_may_be_left_out(weights, tmp_path, capsys):
    path = WRITERS[".csv"](tmp_path / "in.csv", [{"source": ""}, {"source": "one"}])
    main(["--weights", str(weights), "--input", str(path), "--bad-rows", "skip",
          "--max-new-tokens", "6"])  # fmt: skip
    printed = capsys.readouterr()
    assert printed.out.splitlines() == alone(byte_model(), ["one"], max_new_tokens=6)
    assert "1 bad rows left out, such as" in printed.err
    assert "in.csv, line 2: field 'source' is empty" in printed.err


def test_a_prefix_is_put_before_what_the_model_reads(weights, capsys):
    main(["--weights", str(weights), "--max-new-tokens", "6", "--source-prefix", "to: ", "one"])
    assert capsys.readouterr().out.splitlines() == alone(
        byte_model(), ["to: one"], max_new_tokens=6
    )


def test_a_missing_rouge_package_names_its_extra_before_any_work(weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    monkeypatch.setattr(command, "load", None)
    source = pairs(tmp_path / "in.jsonl", {"source": "a", "target": "b"})
    with pytest.raises(ConfigError, match=r"fsdpkit\[rouge\]"):
        main(["--weights", str(weights), "--input", str(source), "--rouge"])


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"source": "a"}\nnot json\n', ["in.jsonl, line 2", "not JSON"]),
        (b'{"source": "a"}\n{"text": "b"}\n', ["in.jsonl, line 2", "'source'"]),
        (b'{"source": 3}\n', ["in.jsonl, line 1", "'source'"]),
        (b"[1]\n", ["in.jsonl, line 1", "source"]),
        (b"\n\n", ["in.jsonl", "no rows"]),
        (b'{"source": "\xff"}\n', ["in.jsonl", "UTF-8"]),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(weights, tmp_path, content, words):
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        main(["--weights", str(weights), "--input", str(tmp_path / "in.jsonl")])
    for word in words:
        assert word in str(caught.value)


def test_what_is_missing_is_told(weights, tmp_path):
    with pytest.raises(NotFoundError, match=r"gone\.jsonl: no such file"):
        main(["--weights", str(weights), "--input", str(tmp_path / "gone.jsonl")])
    with pytest.raises(NotFoundError, match=r"config\.json"):
        main(["--weights", str(tmp_path), "text"])
    with pytest.raises(UsageError, match="not both"):
        main(["--weights", str(weights)])
    with pytest.raises(UsageError, match="--rouge"):
        main(["--weights", str(weights), "--rouge", "text"])
    with pytest.raises(StorageError, match=r"gone/out\.jsonl"):
        main(["--weights", str(weights), "--max-new-tokens", "1",
              "--output", str(tmp_path / "gone" / "out.jsonl"), "text"])  # fmt: skip


def test_weights_bring_their_own_tokenizer(weights, tmp_path):
    assert command.own_tokenizer(weights) == "bytes"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert command.own_tokenizer(tmp_path) == str(tmp_path / "tokenizer.json")


def test_as_a_script_it_exits_with_the_error_s_code_and_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "generate.py"), "--weights", str(tmp_path), "text"],
        env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 66
    assert done.stderr.startswith("generate: ")
    assert len(done.stderr.splitlines()) == 1


def test_ids_that_are_no_bytes_need_their_tokenizer(weights, tmp_path):
    shutil.copytree(weights, tmp_path / "flan")
    config = json.loads((weights / "config.json").read_text())
    (tmp_path / "flan" / "config.json").write_text(json.dumps({**config, "vocab_size": 32128}))
    with pytest.raises(ConfigError, match="no tokenizer beside its weights, and 32,128 ids"):
        main(["--weights", str(tmp_path / "flan"), "text"])


@pytest.mark.torch
def test_a_sharded_model_writes_whatever_its_units_are(tmp_path):
    done = run_ranks(2, RANKS / "generated_units.py", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 5
    assert set(map(str, found.values())) == {str(found["blocks"])}
