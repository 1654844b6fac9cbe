"""What `[stage]` spares a file server, and a run that starts: `benchmarks/stage.py`.

As root, on a real Slurm cluster of eight nodes that are namespaces of this machine, in about half
an hour. Each node has a link of 1 GB/s (tc) and a file system in memory for a disk. What is shared
comes from stage_parts/file_server.py, which reads 100 MB/s for all nodes together, answers each
open in 2 ms and counts both; each node has its own cache of it.

- copies: 1 GB, a large file and a thousand small ones, to 1, 2, 4 and 8 nodes: by `[stage]`, by
  `cp -r` on each node at once, by `sbcast` (the large file alone); and one read on one node;
- calls: on paths of the shared file system, by strace: those of `import torch`, and of all that
  Slurm starts on a node for a T5 run of two ranks, from a shared environment and from a copy;
- first-step: from `fsdpkit submit` on four nodes to the first training step.

Writes results/stage.json and the table in README.md. `--only copies` measures one part and keeps
the others' rows; `--quick` copies little to two nodes and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.installed import Installed, install_fsdpkit  # noqa: E402
from benchmarks.markdown import markdown, seconds  # noqa: E402
from benchmarks.measured import measured, slurm_version  # noqa: E402
from benchmarks.overhead import as_result, with_earlier_parts  # noqa: E402
from benchmarks.report import Figure, finish, ratio  # noqa: E402
from benchmarks.stage_parts.file_server import FileServer  # noqa: E402
from fsdpkit.runs.events import read_json_lines  # noqa: E402
from tests.slurm.conftest import write_profile  # noqa: E402
from tests.slurm_cluster import SlurmCluster  # noqa: E402
from tests.slurm_cluster.machines import SWITCH, run_checked  # noqa: E402

RESULTS = HERE / "results" / "stage.json"
SERVED_BYTES_PER_S, OPEN_S = 100e6, 0.002
LINK = "tbf rate 8gbit burst 4mb latency 50ms"
SHORT_TRAINING = (
    "training.steps=2",
    "training.metrics.every_steps=1",
    "training.checkpoint.every_steps=0",
    "training.checkpoint.at_end=false",
    "training.evaluation.batches=0",
    "parameters.omp_threads=1",
)
STAGED = ("stage.environment=true",)
WAYS = {
    "stage": "`[stage]`",
    "again": "`[stage]`, the next run on the same nodes",
    "cp": "`cp -r` on each node",
    "sbcast": "`sbcast` of the large file",
    "read": "one read on one node",
}


@dataclass(frozen=True)
class Counts:
    """Bytes of the large file, small files, to how many nodes, and how often to the most."""

    large: int = 984_000_000
    small: int = 1000
    nodes: tuple[int, ...] = (1, 2, 4, 8)
    rounds: int = 1


QUICK = Counts(100_000_000, 100, (1, 2), 1)


@dataclass
class Bench:
    """The cluster, and what its nodes see: `shared` from the server, `disk` each its own."""

    cluster: SlurmCluster
    server: FileServer
    ours: Installed
    disk: Path
    scratch: Path
    counts: Counts

    def fresh(self, *, disks: bool = True) -> None:
        """Empty caches of what is shared on all nodes, and empty disks."""
        self.server.unmount_all()
        for name in self.cluster.options.node_names:
            enter = self.cluster.network.machine(name).enter()
            self.server.mount(self.server.source, enter)
            if disks:
                umount = [*enter, "umount", "--lazy", str(self.disk)]
                subprocess.run(umount, capture_output=True, check=False)
                run_checked([*enter, "mount", "-t", "tmpfs", "disk", str(self.disk)])

    def limit_links(self) -> None:
        """In both directions: what a node sends, and what the switch sends it."""
        switch = self.cluster.network.machine(SWITCH).enter(only_network=True)
        for name in self.cluster.options.node_names:
            node = self.cluster.network.machine(name).enter(only_network=True)
            for enter, device in ((node, "eth0"), (switch, name)):
                run_checked([*enter, "tc", "qdisc", "add", "dev", device, "root", *LINK.split()])

    def copies(self) -> dict[str, Any]:
        data, most = self.server.source / "data", self.counts.nodes[-1]
        (data / "small").mkdir(parents=True)
        for number in range(self.counts.small):
            (data / "small" / f"{number}.bin").write_bytes(os.urandom(16 << 10))
        with open(data / "large.bin", "wb") as file:
            for _ in range(self.counts.large // 1_000_000):
                file.write(os.urandom(1_000_000))
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
        for count in self.counts.nodes:
            ways: dict[str, Callable[[], float]] = {
                "stage": partial(self._stage, count, data),
                "again": partial(self._stage, count, data),
                "cp": partial(self._on_each, count, f"cp -r {data} {self.disk}/data"),
                "sbcast": partial(self._sbcast, count, data / "large.bin"),
                "read": partial(self._on_each, 1, f"find {data} -type f | xargs cat >/dev/null"),
            }
            for _ in range(self.counts.rounds if count == most else 1):
                for name, way in ways.items():
                    if name == "sbcast" and count != most:
                        continue
                    self.fresh(disks=name != "again")
                    idle_s, began_s = _idle_s(), time.monotonic()
                    found = {"nodes": 1 if name == "read" else count, "wall_s": way()}
                    busy = 1 - (_idle_s() - idle_s) / (time.monotonic() - began_s)
                    samples[name].append({**found, "busy": busy, **self.server.counts("data")})
                    print(f"  {name}: {samples[name][-1]}", file=sys.stderr)
        figures = copy_figures(samples, most)
        return _part(figures, samples, table_of_copies(samples))

    def _stage(self, nodes: int, data: Path) -> float:
        """As the head records it: from its start until all nodes have all."""
        (self.scratch / "nothing.py").write_text("")
        sets = (f"stage.data={json.dumps([str(data)])}", "launch.warm=off")
        run = self._run(nodes, 1, str(self.scratch / "nothing.py"), sets=sets)
        told = json.loads((run / "attempt-0" / "stage.json").read_text())
        return float(told["ended_s"] - told["began_s"])

    def _on_each(self, nodes: int, command: str) -> float:
        names = self.cluster.options.node_names[:nodes]
        argvs = [[*self.cluster.network.machine(n).enter(), "sh", "-c", command] for n in names]
        began_s = time.perf_counter()
        if any(process.wait() for process in [subprocess.Popen(argv) for argv in argvs]):
            raise RuntimeError(f"failed: {command}")
        return time.perf_counter() - began_s

    def _sbcast(self, nodes: int, file: Path) -> float:
        said = Path(tempfile.mkdtemp(dir=self.scratch)) / "said"
        line = f"date +%s.%N; sbcast {file} {self.disk}/large.bin && date +%s.%N"
        words = ["--account=pas1234", f"--nodes={nodes}", f"--output={said}", f"--wrap={line}"]
        self.cluster.run(["sbatch", "--wait", *words], check=True)
        began_s, ended_s = map(float, said.read_text().split())
        self.cluster.wait_idle()
        return ended_s - began_s

    def _run(self, nodes: int, ranks: int, *words: str, sets: Sequence[str]) -> Path:
        """A run's directory, when it has ended well."""
        shape = ["--nodes", str(nodes), "--gpus", str(ranks), "--account", "pas1234"]
        given = [word for each in sets for word in ("--set", each)]
        argv = ["fsdpkit", "submit", *words, *shape, "--time", "15", *given, "--json"]
        answer = json.loads(self.ours.run(argv, self.scratch).stdout)
        state = self.cluster.wait_job(answer["job_id"], timeout_s=900)["JobState"]
        directory = Path(answer["dir"])
        if state != "COMPLETED":
            logs = [*directory.glob("slurm-*"), *directory.glob("attempt-*/rank-*")]
            raise RuntimeError("\n".join([state, *(p.read_text()[-3000:] for p in logs)]))
        self.cluster.wait_idle()
        return directory

    def calls(self) -> dict[str, Any]:
        """What one node asks of the shared file system; of a copy's run, copying included."""
        samples: dict[str, dict[str, int]] = {}
        for name, sets in (("shared", ()), ("staged", STAGED)):
            training = (*SHORT_TRAINING, "resources.nodelist=node1", *sets)
            self.fresh()
            samples[f"t5-{name}"] = self._calls(
                "-p $(pidof slurmd)", partial(self._run, 1, 2, sets=training)
            )
            python = f"{self.ours.prefix}/bin/python"
            if name == "staged":
                python = f"$(ls {self.disk}/*/trees/*/prefix/bin/python)"
            self.fresh(disks=False)
            samples[f"import-{name}"] = self._calls(f"{python} -I -c 'import torch'")
            print(f"  {name}: {samples}", file=sys.stderr)
        figures = [
            _of_calls("t5", "calls on the shared file system by a node of a T5 run", samples),
            _of_calls("import", "the same by `import torch` in one process", samples),
        ]
        return _part(figures, samples)

    def _calls(self, words: str, during: Callable[[], Any] | None = None) -> dict[str, int]:
        """By strace, on the first node: of a command, or of a process and its children."""
        trace = Path(tempfile.mkdtemp(dir=self.scratch)) / "trace"
        enter = self.cluster.network.machine("node1").enter()
        line = f"echo $$ >{trace}.pid; exec strace -f -y -qq -e trace=%file -o {trace} {words}"
        tracing = subprocess.Popen([*enter, "sh", "-c", line])
        if during is not None:
            time.sleep(2.0)  # until it has attached
            during()
            run_checked([*enter, "sh", "-c", f"kill -INT $(cat {trace}.pid)"])
        tracing.wait()
        with open(trace, errors="replace") as file:
            found = [each for each in file if f"{self.server.source}/" in each]
        opens = sum(bool(re.match(r"\d+ +open", each)) for each in found)
        return {"calls": len(found), "opens": opens, "reached": self.server.counts()["opens"]}

    def first_step(self) -> dict[str, Any]:
        nodes = max(self.counts.nodes) // 2
        samples: dict[str, list[float]] = {"shared": [], "copied": [], "kept": []}
        for _ in range(self.counts.rounds):
            for name, found in samples.items():
                self.fresh(disks=name != "kept")
                sets = (*SHORT_TRAINING, *(() if name == "shared" else STAGED))
                began_s = time.time()
                run = self._run(nodes, 1, sets=sets)
                found.append(next(iter(read_json_lines(run / "metrics.jsonl")))["time_s"] - began_s)
                print(f"  {name}: {found[-1]:.1f} s", file=sys.stderr)
        what = f"`fsdpkit submit` on {nodes} nodes to the first step, from"
        against = "from the shared environment"
        figures = [
            ratio(name, f"{what} {how}", against, "≤", 1.0, (samples[name], samples["shared"]), "s")
            for name, how in (("copied", "a copy that it makes"), ("kept", "a copy that is there"))
        ]
        return _part(figures, samples)


def _part(figures: Sequence[Figure], samples: Any, *notes: str) -> dict[str, Any]:
    return {"figures": [*map(asdict, figures)], "notes": notes, "samples": samples}


def _idle_s() -> float:
    """Of all cores, as a share of the machine."""
    idle = int(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")
    return idle / (os.cpu_count() or 1)


def _of(samples: Sequence[dict[str, float]], nodes: int, what: str = "wall_s") -> list[float]:
    return [each[what] for each in samples if each["nodes"] == nodes]


def copy_figures(samples: dict[str, list[dict[str, float]]], most: int) -> list[Figure]:
    ours, again = _of(samples["stage"], most), _of(samples["again"], most)
    middle = statistics.median(again)
    what = f"`[stage]` of 1 GB to {most} nodes"
    rows = [
        ratio(name, what, WAYS[name], "≤", limit, (ours, _of(samples[name], nodes)), "s")
        for name, limit, nodes in (("read", 1.2, 1), ("cp", 0.25, most), ("sbcast", 1.0, most))
    ]
    again_row = Figure(
        *("again", f"{what}, the next run there", "the first", "seconds", "≤", 2.0),
        *(middle, statistics.median(ours), middle),
        samples={"ours": again, "theirs": ours},
    )
    flat = [
        ratio(
            *(what, f"{what} that reach the file server, {most} nodes", "one node", "≤", limit),
            (_of(samples["stage"], most, what), _of(samples["stage"], 1, what)),
            what,
        )
        for what, limit in (("bytes", 1.01), ("opens", 1.01))
    ]
    return [*rows, again_row, *flat]


def table_of_copies(samples: dict[str, list[dict[str, float]]]) -> str:
    rows = []
    for name, shown in WAYS.items():
        for nodes in sorted({int(each["nodes"]) for each in samples[name]}):
            found = {
                what: statistics.median(_of(samples[name], nodes, what))
                for what in ("wall_s", "bytes", "opens", "busy")
            }
            told = (seconds(found["wall_s"]), f"{found['bytes'] / 1e6:,.0f} MB")
            rows.append(
                (shown, str(nodes), *told, f"{found['opens']:,.0f}", f"{found['busy']:.0%}")
            )
    columns = ("Copying", "Nodes", "Time", "Read from the server", "Opens", "Machine busy")
    return markdown(columns, rows)


def _of_calls(name: str, what: str, samples: dict[str, dict[str, int]]) -> Figure:
    staged, shared = (samples[f"{name}-{how}"]["calls"] for how in ("staged", "shared"))
    against = "from the shared environment"
    return ratio(name, f"{what}, from a copy", against, "≤", 0.01, ([staged], [shared]), "calls")


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "copies": Bench.copies,
    "calls": Bench.calls,
    "first-step": Bench.first_step,
}


def measure(parts: Sequence[str], counts: Counts, work: Path) -> dict[str, Any]:
    disk, scratch, shared = (work / name for name in ("disk", "scratch", "shared"))
    for directory in (disk, scratch, shared):
        directory.mkdir()
    profile = work / "centre" / "site" / "profiles" / "testbed.toml"
    site = write_profile(work)
    text = profile.read_text().replace("max_nodes = 3", f"max_nodes = {max(counts.nodes)}")
    profile.write_text(f'{text}\n[storage]\nlocal = "{disk}"\nlocal_kept_h = 1.0\n')
    server = FileServer(shared, bytes_per_s=SERVED_BYTES_PER_S, open_s=OPEN_S)
    ours = install_fsdpkit(shared, os.environ)
    with server, SlurmCluster(work / "slurm", nodes=max(counts.nodes)) as cluster:
        homes = {"XDG_CACHE_HOME": f"{shared}/cache", "FSDPKIT_STATE_DIR": f"{work}/state"}
        environ = {**ours.environ, **site, **homes, "SLURM_CONF": str(cluster.conf)}
        bench = Bench(cluster, server, Installed(ours.prefix, environ), disk, scratch, counts)
        bench.limit_links()
        found = {}
        for name in parts:
            load = round(os.getloadavg()[0], 2)
            found[name] = {**PARTS[name](bench), "load_before": load}
        versions = {name: ours.version(name) for name in ("torch", "fsdpkit")}
        about = measured(**versions, slurm=slurm_version(cluster))
        return {"measured": about, "parts": found}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure copies on the nodes' own disks.")
    parser.add_argument("--quick", action="store_true", help="little to copy; write no results")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    counts = QUICK if arguments.quick else Counts()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as work:
        found = measure(arguments.only or list(PARTS), counts, Path(work))
    result = as_result(found if arguments.quick else with_earlier_parts(found, RESULTS), PARTS)
    return finish(result, None if arguments.quick else RESULTS)


if __name__ == "__main__":
    sys.exit(main())
