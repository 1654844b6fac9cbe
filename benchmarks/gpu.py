"""What one GPU shows in a quarter of an hour: `python benchmarks/gpu.py --out DIR`.

For a machine that is lent for minutes: the parts run in the order of their value, each a process
with a limit of its own, and each row is on disk when the next begins. Rows are appended to
gpu-<machine>.jsonl, whatever call they are of; gpu-<machine>.json, with the tables of README.md, is
made from it. A part that fails, hangs or is killed loses no row and stops no other.

    python benchmarks/gpu.py --dry-run          every part on a CPU, tiny
    python benchmarks/gpu.py --only step        some parts
    python benchmarks/gpu.py --only plans       needs no GPU: plans of what was measured
    python benchmarks/gpu.py --machine h100 --add FILE.jsonl    rows of a call made elsewhere

Ends with 1 if a part or a row failed, with 0 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.gpu_parts.rows import ABOUT, END, append, read  # noqa: E402
from benchmarks.gpu_parts.summary import result_of  # noqa: E402
from benchmarks.report import README, table, with_all_tables  # noqa: E402

PARTS = {
    "step": 240,
    "memory": 90,
    "peers": 150,
    "trainer": 150,
    "saves": 90,
    "worth": 150,
    "plans": 600,
}
"""Seconds that each may take; `--minutes` ends all of them."""

CHILD = HERE / "gpu_parts" / "child.py"
DRY_FACTOR = 10  # a CPU that does other things, too


@dataclass(frozen=True)
class Call:
    """One call of this program: the `number` that its rows have, and when it ends."""

    number: int
    file: Path
    ends: float
    dry: bool
    card: str

    def run(self, name: str) -> None:
        """One part, until its limit or the end of the call."""
        began = time.time()
        limit_s = PARTS[name] * (DRY_FACTOR if self.dry else 1)
        why = self._start(name, min(began + limit_s, self.ends))
        row = {"status": "failed" if why else "done", "took_s": round(time.time() - began, 1)}
        append(self.file, {"call": self.number, "part": name, "name": END, **row, "why": why})
        print(f"{name}: {row['took_s']:.0f} s{f', {why[-300:]}' if why else ''}", flush=True)

    def _start(self, name: str, ends: float) -> str | None:
        """Run the part's process; why it did not come to its end, if it did not."""
        if ends < time.time() + 3:
            return "no time was left"
        log = self.file.with_name(f"{self.file.stem}-{name}.log")
        scratch = Path(tempfile.mkdtemp(prefix=f"fsdpkit-gpu-{name}-"))
        context = {
            "name": name,
            "file": str(self.file),
            "call": self.number,
            "deadline": ends,
            "dry": self.dry,
            "card": self.card,
            "scratch": str(scratch),
        }
        with log.open("w", encoding="utf-8") as output:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(context)],
                env=environment(self.dry),
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = child.wait(ends - time.time())
            except subprocess.TimeoutExpired:
                return "stopped: its time was over"
            finally:
                kill_group(child)
                shutil.rmtree(scratch, ignore_errors=True)
        tail = " ".join(log.read_text("utf-8", errors="replace")[-300:].split())
        return f"ended with {status}: {tail}" if status else None


def environment(dry: bool) -> dict[str, str]:
    """What torchrun would set for one rank; in a dry run no GPU."""
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
    }
    environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as for ranks of a job
    return environ | ({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if dry else {})


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started: torchrun needs a moment to end its ranks."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        for _ in range(100):
            os.killpg(child.pid, 0)
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGKILL)


def about(dry: bool) -> dict[str, Any]:
    """The machine, and versions of what was measured."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    device, _, driver = ("CPU" if dry else first_line(*query) or "CPU").partition(", ")
    versions = {"python": platform.python_version()}
    for name in ("torch", "triton", "transformers", "accelerate"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    commit = first_line("git", "-C", str(HERE), "rev-parse", "HEAD")
    date = time.strftime("%Y-%m-%d")
    return {
        "device": device,
        "driver": driver,
        "date": date,
        "commit": commit,
        "versions": versions,
    }


def first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure on one GPU.")
    add = parser.add_argument
    add("--only", action="append", choices=[*PARTS], help="these parts only; may be repeated")
    add("--minutes", type=float, default=14.0, help="for all parts")
    add("--out", type=Path, help="directory of the results")
    add("--machine", help="name in the results' file names")
    add("--card", default="h100-80", help="the GPU's name for fsdpkit plan")
    add("--add", type=Path, metavar="FILE", help="measure nothing: add another machine's rows")
    add("--dry-run", action="store_true", help="every part on the CPU, tiny sizes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    dry = arguments.dry_run
    out = arguments.out or (Path(tempfile.mkdtemp(prefix="gpu-")) if dry else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    machine = about(dry)
    name = arguments.machine or ("dry-run" if dry else machine["device"])
    file = out / f"gpu-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.jsonl"
    result = file.with_suffix(".json")
    if not file.exists() and result.exists():  # rows are kept in the repository as a result only
        for row in json.loads(result.read_text("utf-8"))["rows"]:
            append(file, row)
    number = 1 + max((row["call"] for row in read(file)), default=0)
    if arguments.add:
        for row in read(arguments.add):
            append(file, {**row, "call": number + row["call"] - 1})
    else:
        head = {"call": number, "part": "all", "name": ABOUT, "status": "measured"}
        append(file, {**head, **machine})
        ends = time.time() + 60 * arguments.minutes * (DRY_FACTOR if dry else 1)
        call = Call(number, file, ends, dry, arguments.card)
        for part in PARTS:
            if part in (arguments.only or PARTS):
                call.run(part)
    known = read(file)
    before = json.loads(result.read_text("utf-8"))["notes"] if result.exists() else []
    found = result_of(known, before)
    result.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(table(found), f"\n{result}", sep="\n")
    if not dry and arguments.out is None:
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return int(any(row["call"] >= number and row["status"] == "failed" for row in known))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the part under way along
    sys.exit(main())
