"""Text from a checkpoint: the same in one process and on several ranks, each with its part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import generate as command
import msgspec
import pytest
import torch
from generate import main
from launch import findings
from model import T5
from small_t5 import V1_0, V1_1, build
from weights import export

from fsdpkit.data import index
from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs import checkpoints

RUNS = {  # run → Hugging Face directory that its checkpoint has the weights of, engine
    "untied, fsdp2": ("untied", "fsdp2"),
    "untied, fsdp1": ("untied", "fsdp1"),
    "tied, fsdp1": ("tied", "fsdp1"),
    "tied, not scaled, fsdp2": ("tied, not scaled", "fsdp2"),
    "deep": ("deep", "fsdp2"),
}
SEVEN = ["one", "a much longer text than the others", "4", "zwölf", "five", "six", "the last one"]
FILE = ["--input", "seven.jsonl", "--batch-size", "2"]  # two on each of three ranks, then one left
BEAMS = [*FILE, "--beams", "4"]
COMMANDS = {
    **{f"greedy: {run}": [f"{run}/checkpoints/step-7", *FILE] for run in RUNS if run != "deep"},
    "beams: untied": ["untied, fsdp2/checkpoints/step-7", *BEAMS],
    "one text": ["untied, fsdp2/checkpoints/step-7", "one"],
    "ending at once, early and later": ["untied, fsdp2/checkpoints/step-7", "", "five", "six more"],
    "Hugging Face": ["tied", *BEAMS],
    "a run with a damaged checkpoint": ["damaged", "one"],
    "a run without checkpoints": ["empty", "one"],
    "a damaged checkpoint": ["damaged/checkpoints/step-9", "one"],
}  # fmt: skip


def words_of(name: str, folder: Path) -> list[str]:
    weights, *others = COMMANDS[name]
    others = [str(folder / word) if word.endswith(".jsonl") else word for word in others]
    return ["--weights", str(folder / weights), "--max-new-tokens", "8", *others]


def writer(eos: float, seed: int, **family: object) -> T5:
    """Untrained; its texts end at once, early and late."""
    model = build(**{**family, "vocab_size": 384}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".o.weight", ".wo.weight")):
                parameter *= 3
        if model.lm_head is not None:  # few tokens, so that EOS is among the likely ones
            model.lm_head.weight[:100] = 0
            model.lm_head.weight[112:] = 0
        head = model.shared if model.lm_head is None else model.lm_head
        head.weight[1] = eos * torch.randn(12, generator=torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder of Hugging Face directories, and of runs with a checkpoint by four ranks."""
    folder = tmp_path_factory.mktemp("runs")
    deep = {"d_model": 32, "d_ff": 128, "num_layers": 4, "num_decoder_layers": 6}
    models = {
        "untied": writer(2, 8, **V1_1),
        "tied": writer(3, 9, **V1_0),
        "tied, not scaled": writer(3, 9, **V1_0, scale_decoder_outputs=False),
        "deep": build(**{**V1_1, **deep, "vocab_size": 384}),
    }
    for name, model in models.items():
        export(folder / name, model, model.config)
    save = {str(folder / run): [str(folder / of), engine] for run, (of, engine) in RUNS.items()}
    findings(4, "generated.py", folder, json.dumps({"save": save}))
    rows = [json.dumps({"source": text, "target": "b"}) for text in SEVEN]
    (folder / "seven.jsonl").write_text("\n".join(rows), encoding="utf-8")
    shutil.copytree(folder / "untied, fsdp2", folder / "damaged")
    newest = folder / "damaged" / "checkpoints" / "step-9"
    shutil.copytree(newest.with_name("step-7"), newest)
    flip_a_byte(newest / "__2_0.distcp")
    (folder / "empty" / "checkpoints").mkdir(parents=True)
    return folder


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def found(runs) -> dict:
    write = {name: words_of(name, runs) for name in COMMANDS}
    write["to a file"] = [
        *words_of("greedy: untied, fsdp2", runs),
        *("--rouge", "--output", str(runs / "ranks.jsonl")),
    ]
    measure = str(runs / "deep" / "checkpoints" / "step-7")
    asked = {"write": write, "measure": measure}
    return findings(3, "generated.py", runs, json.dumps(asked))


@pytest.mark.parametrize("name", [name for name in COMMANDS if "without" not in name][:-1])
def test_three_ranks_print_once_what_one_process_prints(found, runs, capsys, name):
    main(words_of(name, runs))
    assert found[name]["raised"] == ["", "", ""]
    assert found[name]["printed"] == [capsys.readouterr().out, "", ""]


def test_no_rank_ever_holds_the_model(found):
    memory = found["memory"]
    shard = 1.05 * memory["model"] / 3  # padded to a multiple of the ranks
    assert memory["most after loading"] < shard
    # In use, and on its way. A gather's buffer may live a moment longer in gloo's thread.
    blocks = 3 * memory["largest block"]
    rest = 0.05 * memory["model"]  # activations, keys and values
    assert memory["most while writing"] < shard + memory["root"] + blocks + rest
    assert shard + memory["root"] + blocks + rest < 0.9 * memory["model"]
    assert (memory["most blocks"], memory["blocks left"]) == (1, 0)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("a damaged checkpoint", StorageError, "step-9/__2_0.distcp is not what was written"),
        ("a run without checkpoints", NotFoundError, "empty/checkpoints holds no checkpoint"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(found, runs, name, kind, words):
    with pytest.raises(kind, match=words):
        main(words_of(name, runs))
    assert len(set(found[name]["raised"])) == 1
    assert words in found[name]["raised"][0]
    assert found[name]["raised"][0].startswith(f"{kind.exit_code}: ")
    assert found[name]["printed"] == ["", "", ""]


@pytest.mark.torch
def test_a_run_is_its_newest_whole_checkpoint_and_says_which(runs, capsys):
    main(words_of("a run with a damaged checkpoint", runs))
    refused, reading = capsys.readouterr().err.splitlines()
    assert refused.startswith("checkpoint step-9 is refused: ")
    assert "step-9/__2_0.distcp is not what was written" in refused
    assert reading == f"reading {runs / 'damaged' / 'checkpoints' / 'step-7'}"


def test_a_checkpoint_brings_the_tokenizer_of_its_run(tmp_path):
    def tokenizer_after(**data: object) -> str:
        about = checkpoints.Description(
            step=1, saved_at="", world_size=1, optimizer="", versions={}, progress={}, files={},
            settings={"data": data},
        )  # fmt: skip
        (tmp_path / "checkpoint.json").write_text(about.to_json())
        return command.own_tokenizer(tmp_path)

    assert tokenizer_after(source="python-docs", tokenizer=None) == "bytes"
    assert tokenizer_after(source="a.jsonl", tokenizer="/t5/spiece.model") == "/t5/spiece.model"
    prepared = prepared_with(tmp_path / "prepared", "tokenizer.json")
    assert tokenizer_after(source=str(prepared)) == str(prepared / "tokenizer.json")
    prepared = prepared_with(tmp_path / "more", "bytes")
    assert tokenizer_after(source=str(prepared), tokenizer=None) == "bytes"


def prepared_with(directory: Path, tokenizer: str) -> Path:
    """An empty prepared directory."""
    directory.mkdir()
    preparation = index.Preparation(
        version=index.VERSION, task="pairs", fields=("source", "target"), bad_rows="fail",
        tokenizer=index.TokenizerRecord(file=tokenizer, sha256="", vocab_size=1), inputs=(),
    )  # fmt: skip
    record = index.DataIndex(
        preparation=preparation, dtype="<u2", shards=(), rows=0, tokens=0, bad_rows=0,
        bad_examples=(), fingerprint="",
    )  # fmt: skip
    (directory / index.INDEX).write_bytes(msgspec.json.encode(record))
    (directory / index.LENGTHS).touch()
    (directory / index.STARTS).touch()
    return directory
