"""How fast text becomes token ids on disk: `python benchmarks/data_preparation.py`.

`fsdpkit data prepare` against `datasets` + `tokenizers` used as their documentation shows: load a
JSONL file of pairs, tokenise both fields in processes, save memory-mapped arrays. Both sides read
the same file, use the same tokenizer and number of processes, start from nothing, and are timed as
whole commands, alternately; the numbers of rows and tokens that they wrote must agree. The peers
have a virtual environment of their own, made once in the cache directory.

Writes results/data-<machine>.json and the table in README.md; `--quick` tries everything on a
small file and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measured import measured  # noqa: E402
from benchmarks.peers.environment import peers_python  # noqa: E402
from benchmarks.report import finish, ratio, with_load  # noqa: E402
from fsdpkit.data import python_docs  # noqa: E402
from fsdpkit.data.index import read_index  # noqa: E402

PEERS = ("datasets==5.2.0", "tokenizers==0.23.3")
VOCAB_SIZE = 32_000

PEER_PROGRAM = """
import sys

import numpy as np
from datasets import Features, List, Value, load_dataset
from tokenizers import Tokenizer

source, tokenizer, processes, work = sys.argv[1:]
fields = ("source", "target")


def of_bytes(texts):
    return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) + 3 for text in texts]


def of_tokenizer(texts):
    return [e.ids for e in model.encode_batch_fast(texts, add_special_tokens=False)]


if tokenizer == "bytes":
    encode = of_bytes
else:
    model, encode = Tokenizer.from_file(tokenizer), of_tokenizer


def main():
    rows = load_dataset("json", data_files=source, split="train", cache_dir=f"{work}/cache")
    ids = rows.map(
        lambda batch: {field: encode(batch[field]) for field in fields},
        batched=True,
        num_proc=int(processes),
        remove_columns=rows.column_names,
        features=Features({field: List(Value("uint16")) for field in fields}),
    )
    ids.save_to_disk(f"{work}/saved", num_proc=int(processes))


if __name__ == "__main__":
    main()
"""

COUNT_PROGRAM = """
import json, sys
import pyarrow.compute as pc
from datasets import load_from_disk
table = load_from_disk(sys.argv[1]).data
tokens = sum(pc.sum(pc.list_value_length(table[field])).as_py() for field in ("source", "target"))
print(json.dumps([table.num_rows, tokens]))
"""


def rows(size_bytes: int) -> Iterator[dict[str, str]]:
    """Pairs of code and docstring, each time round with other lines and other numbers."""
    pairs = list(python_docs.docstrings())
    written = number = 0
    while written < size_bytes:
        code, docstring = pairs[number % len(pairs)]
        chance = random.Random(number)
        lines = [
            line.replace("self", f"self_{chance.randrange(5000)}") for line in code.split("\n")
        ]
        chance.shuffle(lines)
        row = {"source": "\n".join(lines), "target": f"{docstring} ({number})"}
        written += len(row["source"]) + len(row["target"])
        number += 1
        yield row


def write_corpus(path: Path, size_bytes: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for row in rows(size_bytes):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def train_tokenizer(path: Path, size_bytes: int) -> None:
    """A byte-level BPE with T5's special tokens, on a part of the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(100))]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=special, show_progress=False
    )
    texts = (text for row in rows(size_bytes) for text in row.values())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


class Bench:
    """One corpus and the two commands over it."""

    def __init__(self, work: Path, size_bytes: int, processes: int) -> None:
        self.work, self.processes = work, processes
        self.python = peers_python("data", PEERS)
        self.corpus, self.tokenizer = work / "corpus.jsonl", work / "tokenizer.json"
        print("making a corpus and a tokenizer", file=sys.stderr)
        write_corpus(self.corpus, size_bytes)
        train_tokenizer(self.tokenizer, min(size_bytes, 4_000_000))
        (work / "peer.py").write_text(PEER_PROGRAM)
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_HOME": str(work / "hf"),
        }
        for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
            self.environ.pop(name, None)

    def ours(self, tokenizer: str) -> float:
        """MB/s of `fsdpkit data prepare`, from its start to its end."""
        output = self.work / "ours"
        shutil.rmtree(output, ignore_errors=True)
        argv = [sys.executable, "-m", "fsdpkit", "data", "prepare", str(self.corpus)]
        argv += ["--output", str(output), "--tokenizer", tokenizer]
        return self._rate([*argv, "--processes", str(self.processes)])

    def theirs(self, tokenizer: str) -> float:
        """MB/s of the peers' program, from its start to its end."""
        output = self.work / "theirs"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        argv = [self.python, str(self.work / "peer.py"), str(self.corpus), tokenizer]
        return self._rate([*argv, str(self.processes), str(output)])

    def check_same_work(self) -> None:
        """Raises RuntimeError unless both sides wrote as many rows and tokens."""
        index = read_index(self.work / "ours")
        argv = [self.python, "-c", COUNT_PROGRAM, str(self.work / "theirs" / "saved")]
        counted = json.loads(self._run(argv))
        if counted != [index.rows, index.tokens]:
            raise RuntimeError(f"ours: {[index.rows, index.tokens]}, theirs: {counted}")

    def _rate(self, argv: list[str]) -> float:
        started = time.perf_counter()
        self._run(argv)
        return self.corpus.stat().st_size / 1e6 / (time.perf_counter() - started)

    def _run(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv, cwd=self.work, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout


def figure(bench: Bench, name: str, tokenizer: str, count: int) -> list[dict[str, Any]]:
    """One row: medians of MB/s of input, and theirs in ours."""
    load = os.getloadavg()[0]
    ours: list[float] = []
    theirs: list[float] = []
    sides: list[tuple[list[float], Callable[[str], float]]] = [
        (ours, bench.ours),
        (theirs, bench.theirs),
    ]
    for _ in range(count):
        for samples, run in sides:
            samples.append(round(run(tokenizer), 3))
        print(f"  {name}: {ours[-1]:.1f} MB/s, {theirs[-1]:.1f} MB/s", file=sys.stderr)
    bench.check_same_work()
    size = f"{bench.corpus.stat().st_size / 1e6:,.0f} MB of pairs in JSONL"
    row = ratio(
        f"prepare-{name}",
        f"`fsdpkit data prepare`, {name}, {size}, {bench.processes} processes",
        "`datasets` `map` and `save_to_disk` with `tokenizers`",
        "≥",
        1.0,
        (ours, theirs),
        "MB/s",
    )
    return with_load([row], load)


def measure(work: Path, size_bytes: int, processes: int, count: int) -> dict[str, Any]:
    """Everything that the result file holds."""
    bench = Bench(work, size_bytes, processes)
    figures = [
        *figure(bench, "bytes", "bytes", count),
        *figure(bench, "tokenizer.json", str(bench.tokenizer), count),
    ]
    peers = dict(peer.split("==") for peer in PEERS)
    return {"measured": measured(**peers), "figures": figures}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how fast data is prepared.")
    parser.add_argument("--quick", action="store_true", help="a small file; write no results")
    parser.add_argument(
        "--machine", default=f"cpu-{os.cpu_count()}", help="name in the result's file name"
    )
    parser.add_argument("--megabytes", type=int, default=64, help="size of the corpus")
    parser.add_argument("--samples", type=int, default=5, help="runs of each side")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    size = 2_000_000 if arguments.quick else arguments.megabytes * 1_000_000
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as work:
        result = measure(
            Path(work), size, arguments.processes, 1 if arguments.quick else arguments.samples
        )
    path = HERE / "results" / f"data-{arguments.machine}.json"
    return finish(result, None if arguments.quick else path)


if __name__ == "__main__":
    sys.exit(main())
