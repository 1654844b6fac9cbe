"""`python -m tests.docs.messages`: writes `docs/messages.md`, the messages that people meet first.

Each stands there as the program prints it: the commands are run, in a directory made for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fsdpkit.cli.terminal import wrap
from tests.packaging.installation import ROOT

COMMAND = "python -m tests.docs.messages"
PAGE = ROOT / "docs" / "messages.md"
_OWN = ".own"
_WIDTH = 100

_FILES = {
    "train.py": "import torch\n",
    "broken.py": "import torch\n\ndef train(:\n    pass\n",
    "needs.py": "import torch\nimport flash_attn_3\n",
    "train.toml": 'schema = "fsdpkit.job/1"\nname = "train"\nentry = "train.py"\n'
    '[resources]\nnode = 2\ngpus = 4\ntime = "1:00:00"\n',
}
_PITZER = "--cluster osc-pitzer"
_HERE = "--cluster generic"


class Message(NamedTuple):
    """One of them: what was typed, and what a person should know besides."""

    title: str
    typed: str
    more: str = ""


MESSAGES = (
    Message("There is no such command", "sumbit train.py"),
    Message("There is no such script", "submit tarin.py --nodes 1 --gpus 1"),
    Message("There is no such job", "submit t6", "`fsdpkit jobs` lists those that there are."),
    Message("There is no such run", "status 3f2a"),
    Message("There is no run yet", "diagnose"),
    Message(
        "The cluster cannot give that",
        f"submit --nodes 2 --gpus 4 {_PITZER} --account PAS2136",
        "Nothing was queued: the profile knows the cluster's nodes. The last line would fit.",
    ),
    Message("The account is missing", f"submit --nodes 2 --gpus 2 {_PITZER}"),
    Message("The account looks wrong", f"submit --nodes 2 --gpus 2 {_PITZER} --account my-project"),
    Message("A key is spelt wrong", f"submit {_HERE} --set training.stepz=500"),
    Message("A value is of the wrong kind", f"submit {_HERE} --set training.steps=many"),
    Message(
        "A value is none of those allowed", f"submit {_HERE} --set training.precision.param=bf16"
    ),
    Message("A key of a job file is spelt wrong", f"submit train.toml {_HERE}"),
    Message("A time is in no form that Slurm knows", f"submit {_HERE} --time 2h"),
    Message(
        "Settings do not go together",
        f"submit {_HERE} --set training.evaluation.rouge=true --set training.sharding.engine=fsdp1",
    ),
    Message("The script does not compile", f"submit broken.py {_HERE} --nodes 1 --gpus 1"),
    Message(
        "The environment lacks a module",
        f"submit needs.py {_HERE} --nodes 1 --gpus 1",
        "The module is looked for in the environment that the job will activate. "
        "`--set launch.check=false` submits without looking.",
    ),
    Message("Data is not there", f"submit {_HERE} --set 'files.needs=[\"/data/corpus\"]'"),
    Message(
        "A secret has no place in a job",
        f"submit {_HERE} --set environment.variables.HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345",
        "Name the variable instead: `environment.pass`.",
    ),
    Message("An array is written wrong", f"submit {_HERE} --array 0-"),
    Message("A GPU that plan does not know", "plan --gpu h1000"),
)


def said(typed: str) -> tuple[str, int]:
    """What the command prints, and its exit status, without a process of its own."""
    from fsdpkit.cli.main import main

    out, status = io.StringIO(), 0
    before = sys.argv
    sys.argv = ["fsdpkit", *shlex.split(typed)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                main()
            except SystemExit as ending:
                status = int(ending.code or 0)
    finally:
        sys.argv = before
    return out.getvalue(), status


@contextlib.contextmanager
def place() -> Iterator[str]:
    """In a directory with the files that the messages are about, of a person without settings."""
    before, cwd = dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory() as made:
        directory = str(Path(made).resolve())
        for name, text in _FILES.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        for name in list(os.environ):
            if name.startswith(("FSDPKIT_", "SLURM_", "SBATCH_")):
                del os.environ[name]
        for name in ("FSDPKIT_CONFIG_DIR", "FSDPKIT_STATE_DIR", "XDG_CACHE_HOME"):
            os.environ[name] = f"{directory}/{_OWN}"
        os.environ["COLUMNS"] = "80"
        os.chdir(directory)
        try:
            yield directory
        finally:
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(before)


def _of_anybody(text: str, directory: str) -> str:
    """Without the places and the version of the machine that it was printed on."""
    for here, there in (
        (f"{directory}/{_OWN}", "/home/alex/.config/fsdpkit"),
        (directory, "/home/alex/project"),
        (sys.prefix, "/home/alex/envs/torch"),
        (str(ROOT), "/home/alex/fsdpkit"),
        (f"Python {platform.python_version()}", "Python 3.11"),
    ):
        text = text.replace(here, there)
    return text


def _folded(text: str) -> Iterator[str]:
    """As a terminal would show it that breaks between words."""
    for line in text.splitlines():
        rest = "    " if line.startswith(" ") else ""
        yield from wrap(line, _WIDTH, rest=rest)


def files() -> dict[Path, str]:
    return {PAGE.relative_to(ROOT): page()}


def page() -> str:
    lines = [
        "# Messages that people meet first",
        "",
        f"<!-- made by {COMMAND}: do not edit -->",
        "",
        "Each says what was wrong, where, and what to do; nothing was queued. They are printed on",
        "standard error, with `--json` also as an object; long lines are folded here. What the",
        "statuses mean: [exit statuses](reference/exit-statuses.md). Why a run failed:",
        "[when it fails](failures/index.md).",
    ]
    with place() as directory:
        for message in MESSAGES:
            text, status = said(message.typed)
            assert status not in (0, 1), f"{message.typed}: {status}\n{text}"
            shown = _of_anybody(text, directory).rstrip()
            lines += ["", f"## {message.title}", "", "```text", f"$ fsdpkit {message.typed}"]
            behind = f"Exit status {status}. {message.more}".rstrip()
            lines += [*_folded(shown), "```", "", *textwrap.wrap(behind, _WIDTH)]
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
