"""Everything that one GPU can show, in under ten minutes: `python benchmarks/gpu.py`.

Correctness against float64, speed of T5 v1.1-large and -xl step by step and beside Hugging Face's,
checkpoints, memory. Each part is a process with a time of its own, and each of its rows is on disk
when the next begins: a part that fails, hangs or is cut off loses nothing of what is known, and
says in a row of its own what became of it. Nothing is downloaded; transformers and triton are used
where they are installed.

Writes results/gpu-<machine>.json and the tables in README.md; with --out DIR the file, and a log
of each part.
`--only speed --only xl` measures these parts and replaces their rows. `--dry-run` runs every part
on the CPU with tiny sizes: it shows that the script works, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_parts.steps import FIRST, KEPT_BY_DEFAULT  # noqa: E402
from benchmarks.gpu_parts.summary import kept_in, result_of  # noqa: E402
from benchmarks.report import README, table, with_all_tables  # noqa: E402

# The most important first; seconds that each may take, of nine minutes in all.
BUDGETS_S = {
    "correctness": 60,
    "speed": 210,
    "peers": 85,
    "checkpoints": 65,
    "memory": 35,
    "xl": 50,
    "triton": 35,
}
ENDING_S = 8.0  # from asking a process to stop to the last line of this one

Rows = list[dict[str, Any]]


def environment(dry: bool) -> dict[str, str]:
    """What torchrun would set for one rank; in a dry run no GPU, and Triton's interpreter."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environ = {
        **os.environ,
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # read when CUDA starts; for the part on resuming
    }
    if dry:
        environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return environ


class Conductor:
    """Starts the parts one after the other and keeps the result file up to date."""

    def __init__(self, out: Path, machine: str | None, deadline: float, dry: bool) -> None:
        self.out, self.machine, self.deadline, self.dry = out, machine, deadline, dry
        self.keeps_logs = False  # a copy of each part's beside the result
        self.earlier: Rows = []  # of an earlier call with --only
        self.work = Path(tempfile.mkdtemp(prefix="fsdpkit-bench-"))
        self.files: dict[str, Path] = {}  # of the parts, in the order of their start
        self.endings: dict[str, Rows] = {}  # what became of those that did not end by themselves

    @property
    def rows(self) -> Rows:
        """All that is known, parts in the order in which they were measured."""
        rows = [row for row in self.earlier if row["part"] not in self.files]
        for name, file in self.files.items():
            rows += map(json.loads, _whole_lines(file))
            rows += self.endings.get(name, [])
        return rows

    def run(self, name: str, budget_s: float) -> None:
        """One part, for `budget_s` at most; then it is stopped."""
        began = time.time()
        ends = min(self.deadline, began + budget_s)
        file, log = self.work / f"{name}.jsonl", self.work / f"{name}.log"
        file.touch()
        self.files[name] = file
        how = "dry" if self.dry else "full"
        argv = [sys.executable, str(HERE / "gpu_parts" / "child.py"), name, str(file)]
        argv += [str(ends), how, json.dumps(self.kept())]
        with log.open("w", encoding="utf-8") as output:
            child = subprocess.Popen(
                argv,
                env=environment(self.dry),
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                said = self._follow(child, file, ends)
            finally:
                child.kill()
                child.wait()
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
                if self.keeps_logs:
                    shutil.copyfile(log, self.out / log.name)
        if said or child.returncode:
            tail = " ".join(log.read_text("utf-8", errors="replace")[-1500:].split())
            why = said or f"ended with {child.returncode}: {tail}"
            self._end(name, "failed", why)
        self.write()
        rows = [row for row in self.rows if row["part"] == name and row["name"] != "about"]
        print(f"{name}: {time.time() - began:.0f} s, {_counted(rows)}", flush=True)

    def _follow(self, child: subprocess.Popen[bytes], file: Path, ends: float) -> str | None:
        """Wait for it, writing its rows as they come; why it was stopped, if it was."""
        seen = 0
        while child.poll() is None:
            time.sleep(0.2)
            if (size := file.stat().st_size) > seen:
                seen = size
                self.write()
            if time.time() > ends:
                return "stopped: its time was over"
        return None

    def skip(self, name: str) -> None:
        why = "no time was left"
        self.files[name] = self.work / f"{name}.jsonl"
        self._end(name, "skipped", why)
        self.write()
        print(f"{name}: skipped, {why}", flush=True)

    def kept(self) -> Sequence[str]:
        """The steps that paid for the large model, as far as they are known."""
        measured = {row["name"] for row in self.rows if row["status"] == "measured"}
        known = all(f"large, + {step.name}" in measured for step in FIRST)
        return kept_in(self.rows) if known else KEPT_BY_DEFAULT

    def _end(self, name: str, status: str, why: str) -> None:
        row = {"part": name, "name": "the part", "status": status, "why": why, "took_s": 0.0}
        self.endings[name] = [row]

    def path(self) -> Path | None:
        """The result's file, once it is known what it is measured on."""
        machine = self.machine or next(
            (row["device"] for row in self.rows if row["name"] == "about"), None
        )
        if machine is None:
            return None
        plain = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
        return self.out / f"gpu-{'dry-run' if self.dry else plain}.json"

    def read_earlier(self) -> None:
        if (path := self.path()) and path.exists():
            self.earlier = json.loads(path.read_text("utf-8"))["rows"]

    def write(self) -> None:
        """The whole result anew, so that what is there is complete whenever this ends."""
        path = self.path()
        if path is None:
            return
        text = json.dumps(result_of(self.rows), indent=1, ensure_ascii=False) + "\n"
        draft = path.with_suffix(".tmp")
        draft.write_text(text, "utf-8")
        draft.replace(path)


def _whole_lines(file: Path) -> list[str]:
    if not file.exists():
        return []
    return [line for line in file.read_text("utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def _counted(rows: Rows) -> str:
    statuses = [row["status"] for row in rows]
    counts = {s: statuses.count(s) for s in dict.fromkeys(statuses)}
    failed = sum(row.get("passed") is False for row in rows)
    if failed:
        counts["out of bounds"] = failed
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure on one GPU.")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--out", type=Path, help="directory of the result file")
    parser.add_argument("--machine", help="name in the result's file name")
    parser.add_argument("--only", action="append", choices=[*BUDGETS_S], help="these parts only")
    parser.add_argument("--dry-run", action="store_true", help="every part on the CPU, tiny")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the part under way along
    dry = arguments.dry_run
    out = arguments.out or (Path(tempfile.mkdtemp()) if dry else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    conductor = Conductor(
        out, arguments.machine, time.time() + 60 * arguments.minutes - ENDING_S, dry
    )
    conductor.keeps_logs = arguments.out is not None
    parts = arguments.only or list(BUDGETS_S)
    if arguments.only:
        conductor.machine = conductor.machine or gpu_name()
        conductor.read_earlier()
    for number, name in enumerate(parts):
        left = sum(BUDGETS_S[later] for later in parts[number:])
        # A dry run waits for whatever else the machine does, to see each part end by itself.
        share = 1.0 if dry else BUDGETS_S[name] / left
        budget_s = share * (conductor.deadline - time.time())
        if budget_s < 5:
            conductor.skip(name)
        else:
            conductor.run(name, budget_s)
    path = conductor.path()
    if path is None:
        print("nothing was measured: no part could start", file=sys.stderr)
        return 1
    result = json.loads(path.read_text("utf-8"))
    print(table(result), f"\n{path}", sep="\n")
    if not dry and arguments.out is None:
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    rows = result["rows"]
    wrong = any(row["status"] == "failed" or row.get("passed") is False for row in rows)
    return int(wrong or not all(figure["met"] for figure in result["figures"]))


def gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


if __name__ == "__main__":
    sys.exit(main())
