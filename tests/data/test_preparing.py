"""Preparation gives the same bytes whoever does it, survives being killed, and stays small."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fsdpkit.config.training import DataSettings
from fsdpkit.data import preparing
from fsdpkit.data.index import read_index
from fsdpkit.data.pool import PreparationProgress
from fsdpkit.data.preparing import PreparedDirectory, prepare
from fsdpkit.errors import ConfigError, NotFoundError, UsageError
from tests.data.conftest import WRITERS, pairs, write_jsonl
from tests.programs import Write, until

PAIRS = DataSettings(task="pairs")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SHARD_BYTES", 4000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", pairs(400))


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def content_of_a_fresh_one(source: Path, directory: Path) -> dict[str, bytes]:
    prepare([str(source)], directory, PAIRS)
    return content(directory)


@pytest.mark.usefixtures("small_shards")
def test_the_result_is_the_same_for_any_number_of_processes(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    table = pairs(300)
    table[123]["source"] = ""
    inputs = [str(write(tmp_path / f"a{s}", table)) for s, write in WRITERS.items()]
    settings = DataSettings(task="pairs", bad_rows="skip", tokenizer=str(tokenizer_json))
    results = []
    for processes in (1, 2, 3):
        output = tmp_path / f"out{processes}"
        index = prepare(inputs, output, settings, processes=processes).index
        assert len(index.shards) > 5
        results.append(content(output))
    assert results[0] == results[1] == results[2]
    assert (index.rows, index.bad_rows) == (3 * 299, 3)
    # In CSV a row takes as many lines as its source; the header comes first.
    line = 2 + sum(1 + row["source"].count("\n") for row in table[:123])
    assert [e.split(": ")[0] for e in index.bad_examples] == [
        f"{tmp_path / 'a.jsonl'}, line 124",
        f"{tmp_path / 'a.csv'}, line {line}",
        f"{tmp_path / 'a.parquet'}, row 124",
    ]
    assert set(results[0]) == {
        "index.json", "lengths.bin", "starts.bin", "tokenizer.json",
        *(f"shard-{i:05d}.ids" for i in range(len(index.shards))),
    }  # fmt: skip


KILLED = """
    import os, signal, sys, time
    from pathlib import Path
    from fsdpkit.config.training import DataSettings
    from fsdpkit.data import pool, preparing
    from fsdpkit.data.shards import write_shard

    pool.REPORT_S = 0.005
    preparing.SHARD_BYTES = 4000

    def write_the_first(directory, shard, *rest):
        if shard >= 20:
            time.sleep(600)  # the kill comes before the end, however late it comes
        write_shard(directory, shard, *rest)

    pool.write_shard = write_the_first  # in the workers, which read this file, too

    def report(progress):
        if progress.shards_whole >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        source, output = sys.argv[1:]
        settings = DataSettings(task="pairs")
        preparing.prepare([source], Path(output), settings, processes=2, report=report)
"""


def processes_with(variable: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if variable in process.environ():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_killed_preparation_leaves_no_process_and_goes_on_with_whole_shards(
    tmp_path: Path, source: Path, write_script: Write, small_shards: None
) -> None:
    output, mark = tmp_path / "out", f"FSDPKIT_TEST_{os.getpid()}"
    done = subprocess.run(
        [sys.executable, str(write_script("killed.py", KILLED)), str(source), str(output)],
        env={**os.environ, mark: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    until(lambda: not processes_with(mark))

    with pytest.raises(NotFoundError, match=r"not complete: run the same .* again"):
        read_index(output)
    whole = sorted(output.glob("shard-*.json"))
    assert 3 <= len(whole) <= 20
    before = {p.stem: (output / f"{p.stem}.ids").stat().st_mtime_ns for p in whole}

    seen: list[PreparationProgress] = []
    prepare([str(source)], output, PAIRS, processes=2, report=seen.append)
    assert seen[0].shards_whole == len(whole)
    assert seen[0].bytes_found > 0
    assert seen[-1].bytes_found + seen[-1].bytes == source.stat().st_size
    after = {name: (output / f"{name}.ids").stat().st_mtime_ns for name in before}
    assert after == before
    assert content(output) == content_of_a_fresh_one(source, tmp_path / "fresh")


@pytest.fixture
def complete(tmp_path: Path, source: Path) -> Path:
    prepare([str(source)], tmp_path / "out", PAIRS)
    return tmp_path / "out"


def again(source: Path, output: Path, force: bool = False, **changed: object) -> PreparedDirectory:
    settings = DataSettings(**{"task": "pairs", **changed})  # type: ignore[arg-type]
    return prepare([str(source)], output, settings, force=force)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"task": "span-corruption"}, "was begun with task pairs"),
        ({"target_field": "id"}, "was begun with fields source, target"),
        ({"tokenizer": "json"}, "was begun with another tokenizer"),
    ],
)
def test_other_settings_are_refused_and_forced(
    changed: dict[str, str], told: str, source: Path, complete: Path, tokenizer_json: Path
) -> None:
    if "tokenizer" in changed:
        changed = {"tokenizer": str(tokenizer_json)}
    with pytest.raises(UsageError, match=f"{told}.*--output, or start over with --force"):
        again(source, complete, **changed)
    if "target_field" not in changed:
        assert not again(source, complete, force=True, **changed).found
        assert read_index(complete).rows == 400


def test_changed_input_is_refused_and_forced(source: Path, complete: Path) -> None:
    write_jsonl(source, pairs(401))
    with pytest.raises(UsageError, match=r"another content of .*a\.jsonl.*--force"):
        again(source, complete)
    assert again(source, complete, force=True).index.rows == 401


def test_rows_skipped_before_are_not_forgiven_later(tmp_path: Path, source: Path) -> None:
    again(source, tmp_path / "out", bad_rows="skip")
    with pytest.raises(UsageError, match="was begun with bad rows skip"):
        again(source, tmp_path / "out", bad_rows="fail")


@pytest.mark.usefixtures("small_shards")
def test_the_first_bad_row_by_number_ends_it_and_skipping_goes_on(tmp_path: Path) -> None:
    table = pairs(400)
    for row in (45, 25, 15):  # in three shards that begin at the same time
        table[row]["target"] = 5
    source = write_jsonl(tmp_path / "a.jsonl", table)
    with pytest.raises(ConfigError, match=r"line 16: field 'target'.*--bad-rows skip"):
        prepare([str(source)], tmp_path / "out", PAIRS, processes=3)
    done = again(source, tmp_path / "out", bad_rows="skip")
    assert (done.index.rows, done.index.bad_rows) == (397, 3)


SMALL = """
    import resource, sys
    from pathlib import Path
    from fsdpkit.data import preparing, readers, shards
    from fsdpkit.config.training import DataSettings
    from fsdpkit.data.prepared import open_tokens
    from fsdpkit.data.tokenizers import ByteTokenizer

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    source, output = map(Path, sys.argv[1:])
    asked = preparing._describe([source], DataSettings(task="pairs"))
    before = peak()
    output.mkdir()
    (piece,) = readers.pieces(source, 1 << 40)
    shards.write_shard(output, 0, [piece], asked, ByteTokenizer(), lambda *_: None)
    preparing._complete(output, asked, 1)
    tokens = open_tokens(output)
    tokens.ids(len(tokens) - 1, 1)
    print(peak() - before)
"""


def test_a_corpus_is_prepared_and_opened_in_little_memory(
    tmp_path: Path, write_script: Write
) -> None:
    source = tmp_path / "large.jsonl"
    with open(source, "wb") as file:
        block = b"".join(
            b'{"source": "%d %s", "target": "%d"}\n' % (i, b"text " * 200, i) for i in range(1000)
        )
        for _ in range(100):
            file.write(block)
    assert source.stat().st_size > 100e6
    done = subprocess.run(
        [sys.executable, str(write_script("small.py", SMALL)), str(source), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, "MiB more than before, for 100 MB of text and 200 MB of ids"
