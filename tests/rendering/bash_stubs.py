"""A batch shell without Slurm: stand-ins on PATH that write down what they were given."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fsdpkit.rendering.script import PythonEnvironment
from tests.programs import Completed, ended

RenderScript = Callable[..., str]
NODES = ("node1", "node2")
ROOT = Path(__file__).resolve().parents[2]
LATER = ("timeout",)
TOOLS = "awk od sed sort cat mkdir rm touch chmod bash env printenv".split()  # noqa: SIM905

STUBS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "stubs").glob("*.sh"))
}
"""What stands for each command: `srun` runs the here-document for each node, and the record says
what each task saw; `python` notes what torchrun was started with on each node."""
IP = STUBS["ip"]


@dataclass
class Bash:
    """A directory of stand-ins and the environment of a job's batch shell."""

    root: Path
    render: RenderScript
    stubs: dict[str, str] = field(default_factory=lambda: dict(STUBS))
    environment: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = NODES

    @property
    def python(self) -> PythonEnvironment:
        return PythonEnvironment("prefix", str(self.root / "bin"))

    @property
    def record(self) -> Path:
        return self.root / "record"

    def script(self, **plan: Any) -> str:
        """As `render_script` makes it, for the Python among the stand-ins."""
        return self.render(**{"python": self.python, **plan})

    def start(
        self, script: str, stdout: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        bin_dir = self.root / "bin"
        for directory in (bin_dir, self.record):
            directory.mkdir(exist_ok=True)
        names = " ".join(self.nodes)
        for name, body in self.stubs.items():
            (bin_dir / name).write_text(f"#!/bin/bash -p\nset -u\nNODES=({names})\n{body}\n")
            (bin_dir / name).chmod(0o755)
        path = self.root / "job.sbatch"
        path.write_text(script)
        # Nothing but bash's own companions besides the stand-ins, so that a missing one is missing.
        tools = self.root / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in (*TOOLS, *LATER):
                (tools / tool).symlink_to(f"/usr/bin/{tool}")
        environment = {
            "PATH": f"{bin_dir}:{tools}",
            "HOME": str(self.root),
            "RECORD": str(self.record),
            "REAL_PYTHON": sys.executable,
            "CHECKOUT": str(ROOT),
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": str(len(self.nodes)),
            "SLURM_CPUS_PER_TASK": "16",
            "SLURM_JOB_PARTITION": "main",
            "SLURMD_NODENAME": "node1",
            "SLURM_EXPORT_ENV": "NONE",
            **self.environment,
        }
        return subprocess.Popen(
            ["/bin/bash", str(path)],
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE if stdout == subprocess.PIPE else subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, status: int | None = None) -> Completed:
        """status: that it must end with; None: any."""
        process = self.start(script)
        out, err = process.communicate(timeout=180)
        return ended(Completed(process.args, process.returncode, out, err), status)

    def ran(self, *, status: int | None = None, **plan: Any) -> Completed:
        return self.run(self.script(**plan), status)

    def verdict(self, **trouble: object) -> None:
        """The agents leave this, `cause`, `status`, `message` and the rest, before srun ends."""
        left = json.dumps({"trouble": trouble or None, "why": ""})
        write = f'printf %s {shlex.quote(left)} >"$FSDPKIT_ATTEMPT_DIR/verdict.json"\n'
        self.stubs["srun"] = write + self.stubs["srun"]

    def arguments(self, node: int) -> list[str]:
        return (self.record / f"args.{node}").read_text().splitlines()

    def seen(self, node: int) -> dict[str, str]:
        lines = (self.record / f"env.{node}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def option(self, node: int, name: str) -> str:
        return next(a.split("=", 1)[1] for a in self.arguments(node) if a.startswith(f"{name}="))
