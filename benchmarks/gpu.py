"""What one GPU can show, section by section: `python benchmarks/gpu.py --section 1`.

For a machine with a GPU that is there for half an hour, and on which nothing can be installed:
Python and torch 2.11 or newer with CUDA are enough. Before, where a package index can be reached:

    python benchmarks/gpu.py --fetch-wheels wheels --python 3.12
    python benchmarks/gpu.py --dry-run --wheels wheels      every part on a CPU, tiny

and on the machine, one command for each section of nine minutes at most (README.md, "The first hour
on a GPU"):

    python benchmarks/gpu.py --check --wheels wheels        what is missing, in one list
    python benchmarks/gpu.py --wheels wheels --section 1    and 2, 3, 4; without: all of them

Each part is a process of its own, and each of its rows is on disk when the next begins, in
gpu-<machine>.jsonl; gpu-<machine>.json is made from it. The same command again goes on where an
earlier one was cut off, `--again` measures anew. Ends with 0 when all parts ran, 1 when some row is
missing, 2 when the machine lacks what every part needs.
"""

from __future__ import annotations

import argparse
import fcntl
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_parts import needs, plan, rows, wheels  # noqa: E402
from benchmarks.gpu_parts.rows import END, Row  # noqa: E402
from benchmarks.gpu_parts.summary import result_of  # noqa: E402
from benchmarks.report import README, table, with_all_tables  # noqa: E402

CHILD = HERE / "gpu_parts" / "child.py"
NOTHING_RAN, INCOMPLETE = 2, 1
EXTRA = {"checkpoints": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}  # deterministic; read by CUDA
MOST_STARTS = 4  # of one part in one call, when its process dies in the middle


def environment(dry: bool, path: Path | None = None) -> dict[str, str]:
    """What torchrun would set for one rank; in a dry run no GPU, and Triton's interpreter.

    `path` has the wheels that were carried here.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    cache = Path(tempfile.gettempdir()) / f"fsdpkit-gpu-{os.getuid()}"
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
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),  # later parts compile less
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    if path:
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(path), os.environ.get("PYTHONPATH", "")])
        )
    if not any(f"PYTORCH_{word}ALLOC_CONF" in environ for word in ("", "CUDA_", "HIP_")):
        environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # as for ranks of a job
    if dry:
        environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return environ


class Conductor:
    """Starts the parts one after the other; `file` is the record of their rows."""

    def __init__(
        self, file: Path, dry: bool, *, again: bool = False, path: Path | None = None
    ) -> None:
        self.file, self.dry, self.again, self.path = file, dry, again, path
        self.began = time.time()
        self.work = Path(tempfile.mkdtemp(prefix="fsdpkit-gpu-"))

    @property
    def rows(self) -> list[Row]:
        return rows.shown(rows.read(self.file))

    def run_section(self, number: int, wanted: Sequence[str], ends: float) -> None:
        """These parts of a section, with `ends` for all of them; what is done is passed over."""
        left = [name for name in wanted if self.again or not self.is_done(name)]
        for name in wanted:
            if name not in left:
                print(f"{name}: done before", flush=True)
        for at, name in enumerate(left):
            budget_s = plan.budget_s(name, tuple(left[at:]), ends - time.time())
            if budget_s < 3:
                self._end(name, "skipped", f"no time was left in section {number}", 0.0)
            else:
                self.run(name, time.time() + budget_s)

    def is_done(self, name: str) -> bool:
        return rows.is_done(rows.read(self.file), name)

    def run(self, name: str, ends: float) -> None:
        """One part until `ends`; its process is started anew for the other rows when it dies."""
        began = time.time()
        log = self.file.with_name(f"{self.file.stem}-{name}.log")
        log.unlink(missing_ok=True)
        why: str | None = None
        for _ in range(MOST_STARTS):
            known = len(rows.read(self.file))
            status = self._start(name, ends, log)
            if status == 0:
                why = None
                break
            if status is None:
                why = "stopped: its time was over"
                break
            tail = " ".join(log.read_text("utf-8", errors="replace")[-1500:].split())
            why = f"ended with {status}: {tail}"
            if len(rows.read(self.file)) == known:
                break  # it would die at the same place
        self._end(name, "failed" if why else "done", why, time.time() - began)

    def _start(self, name: str, ends: float, log: Path) -> int | None:
        """The exit status of the part's process; None if it had to be stopped."""
        scratch = self.work / name
        scratch.mkdir(exist_ok=True)
        context = {
            "part": name,
            "parent": os.getpid(),
            "file": str(self.file),
            "deadline": ends,
            "dry": self.dry,
            "scratch": str(scratch),
            "since": self.began if self.again else 0.0,
            "call": self.began,
        }
        with log.open("a", encoding="utf-8") as output:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(context)],
                env={**environment(self.dry, self.path), **EXTRA.get(name, {})},
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return self._follow(child, ends)
            finally:
                kill_group(child)
                shutil.rmtree(scratch, ignore_errors=True)

    def _follow(self, child: subprocess.Popen[bytes], ends: float) -> int | None:
        """Wait for it, making the result anew when there are rows."""
        seen = 0
        while (status := child.poll()) is None:
            time.sleep(0.2)
            size = self.file.stat().st_size if self.file.exists() else 0
            if size > seen:
                seen = size
                self.write()
            if time.time() > ends:
                return None
        return status

    def _end(self, name: str, status: str, why: str | None, took_s: float) -> None:
        row = {"part": name, "name": END, "status": status, "took_s": round(took_s, 2)}
        rows.append(self.file, {**row, **({"why": why} if why else {})})
        self.write()
        own = [r for r in self.rows if r["part"] == name and r["name"] not in (END, rows.ABOUT)]
        print(
            f"{name}: {took_s:.0f} s, {counted(own)}{f'; {why[:300]}' if why else ''}", flush=True
        )

    def write(self) -> Path:
        """The result anew, so that it is whole whenever this ends; the rows are safe without it."""
        path = self.file.with_suffix(".json")
        known = self.rows
        if any(row["name"] == rows.ABOUT for row in known):
            try:
                text = json.dumps(result_of(known), indent=1, ensure_ascii=False) + "\n"
                draft = path.with_suffix(".tmp")
                draft.write_text(text, "utf-8")
                draft.replace(path)
            except Exception as error:  # parts go on whatever a table cannot show
                print(f"{path} could not be made: {error!r}", file=sys.stderr, flush=True)
        return path

    def close(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def counted(own: Sequence[Row]) -> str:
    statuses = [row["status"] for row in own]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    if failed := sum(row.get("passed") is False for row in own):
        counts["out of bounds"] = failed
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "no row"


def all_ran(known: Sequence[Row], wanted: Sequence[str]) -> bool:
    """Whether each of these parts came to its end with every row measured that can be."""
    return all(rows.is_done(known, name) for name in wanted)


def wanted_parts(arguments: argparse.Namespace) -> dict[int, list[str]]:
    """The parts to run by section, in the plan's order."""
    chosen: dict[int, list[str]] = {}
    for name, number in plan.PARTS.items():
        if arguments.only:
            takes = name in arguments.only
        else:
            takes = number in (arguments.section or [1, 2, 3, 4])
        if takes:
            chosen.setdefault(number, []).append(name)
    return chosen


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure on one GPU.")
    numbers = list(plan.SECTIONS)
    add = parser.add_argument
    add("--section", action="append", type=int, choices=numbers, help="1 to 4 unless given")
    add("--only", action="append", choices=[*plan.PARTS], help="these parts only")
    add("--again", action="store_true", help="also what was measured before")
    add("--minutes", type=float, default=plan.SECTION_S / 60, help="for each section")
    add("--out", type=Path, help="directory of the results")
    add("--machine", help="name in the results' file names")
    add("--dry-run", action="store_true", help="every part on the CPU, tiny sizes")
    add("--check", action="store_true", help="say what is missing here, and measure nothing")
    add("--wheels", type=Path, help="folder of wheels that were carried here")
    add("--fetch-wheels", type=Path, metavar="DIR", help="fill that folder from a package index")
    add("--python", action="append", help="fetch for this Python, such as 3.12; may be repeated")
    add("--platform", default="", help="fetch for this machine: x86_64 or aarch64")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    try:
        if arguments.fetch_wheels:
            return fetch(arguments)
        path = unpacked(arguments.wheels) if arguments.wheels else None
    except (wheels.WheelError, OSError) as error:
        print(error, file=sys.stderr)
        return NOTHING_RAN
    dry = arguments.dry_run
    found = needs.facts(environment(dry, path), Path(tempfile.gettempdir()))
    if not report_gaps(found, dry=dry):
        return NOTHING_RAN
    if arguments.check:
        return 0
    return measure(arguments, found, path)


def measure(arguments: argparse.Namespace, found: Mapping[str, Any], path: Path | None) -> int:
    dry = arguments.dry_run
    out = arguments.out or (Path(tempfile.mkdtemp(prefix="gpu-")) if dry else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"gpu-{machine_name(arguments.machine, found, dry=dry)}.jsonl"
    file.touch()
    with file.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"{file}: another call writes it", file=sys.stderr)
            return NOTHING_RAN
        conductor = Conductor(file, dry, again=arguments.again, path=path)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the part under way along
        sections = wanted_parts(arguments)
        try:
            for number, parts in sections.items():
                print(f"section {number}: {plan.SECTIONS[number].answers}", flush=True)
                # A dry run waits for whatever else the machine does, to see each part end.
                seconds = 60 * arguments.minutes * (20 if dry else 1)
                conductor.run_section(number, parts, time.time() + seconds)
        finally:
            conductor.close()
        result = conductor.write()
    if result.exists():
        print(table(json.loads(result.read_text("utf-8"))), f"\n{result}", sep="\n")
    if not dry and arguments.out is None:
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    wanted = [name for parts in sections.values() for name in parts]
    return 0 if all_ran(rows.read(file), wanted) else INCOMPLETE


def fetch(arguments: argparse.Namespace) -> int:
    pythons = arguments.python or [f"{sys.version_info[0]}.{sys.version_info[1]}"]
    size = wheels.fetch(arguments.fetch_wheels, pythons, arguments.platform)
    print(f"{arguments.fetch_wheels}: {size / 2**20:.1f} MiB for Python {', '.join(pythons)}")
    return 0


def unpacked(folder: Path) -> Path:
    """The directory for PYTHONPATH, filled from the folder; beside it where that can be written."""
    folder = folder.resolve()
    place = wheels.place(folder)
    if not os.access(folder, os.W_OK):
        place = Path(tempfile.gettempdir()) / f"fsdpkit-gpu-{os.getuid()}" / place.name
    names = wheels.carried(folder, place)
    print(f"carried: {', '.join(names)}", flush=True)
    return place


def report_gaps(found: Mapping[str, Any], *, dry: bool) -> bool:
    """Say what is missing, in one list; whether there is enough to go on."""
    missing = needs.gaps(found, dry=dry)
    print(needs.describe(found), flush=True)
    for gap in missing:
        print(f"  {'MISSING' if gap.stops else 'without'}: {gap.what}: {gap.cost}", flush=True)
    if not missing:
        print("  nothing is missing", flush=True)
    return not any(gap.stops for gap in missing)


def machine_name(given: str | None, found: Mapping[str, Any], *, dry: bool) -> str:
    """Fit for a file's name: what was given, or the GPU's."""
    name = given or ("dry-run" if dry else found["gpu"]["name"])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
