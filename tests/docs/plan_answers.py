"""`python -m tests.docs.plan_answers`: puts the answer of each question's plan into
docs/planning.md, as it is printed, without the lines that are about something else."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from fsdpkit.cli.main import fsdpkit
from fsdpkit.planning.apart import one_child
from tests.packaging.installation import ROOT

COMMAND = "python -m tests.docs.plan_answers"
BEGIN = f"<!-- made by {COMMAND}: do not edit -->"
END = f"<!-- end of what {COMMAND} made -->"
PAGE = ROOT / "docs" / "planning.md"
BASE = "fsdpkit plan --gpu h100-80 --nodes 2 --gpus 4"
LARGE = (
    "--set training.model.preset=t5-v1.1-large --set training.batch_size=64 "
    "--set training.data.source_length=512 --set training.precision.param=bfloat16"
)
"""Of the smallest models the host decides the speed, which is not predicted."""
TRY, KEPT = "--try training.", r"allocated  |^training\."
SHARDING = f"{TRY}sharding"


class PlanQuery(NamedTuple):
    asks: str
    options: str
    shown: str
    """A regular expression of the lines that answer it."""


QUESTIONS = (
    PlanQuery("Does it fit, and what is the peak?", "", "^fits|^per GPU|^total|^limit"),
    PlanQuery("Another wrapping?", f"{SHARDING}.blocks_per_unit=1,4", KEPT),
    PlanQuery("How many nodes?", "--try resources.nodes=1,2,8", r"allocated  |^resources\."),
    PlanQuery("What does offloading save?", f"{SHARDING}.cpu_offload=false,true", KEPT),
    PlanQuery(
        "Which activation checkpointing?",
        f"{SHARDING}.activation_checkpointing=none,selective,full",
        KEPT,
    ),
    PlanQuery(
        "How much of it, or another policy for other blocks?",
        f"--set training.sharding.activation_checkpointing=full {SHARDING}.checkpoint_every=1,2,4",
        KEPT,
    ),
    PlanQuery("Gradients summed in float32?", f"{TRY}precision.reduce=float32,bfloat16", KEPT),
    PlanQuery("Other mixed precision?", f"{TRY}precision.param=bfloat16,float32", KEPT),
    PlanQuery("Is a hybrid worth it?", f"{SHARDING}.strategy=full_shard,hybrid_shard", KEPT),
    PlanQuery("Reshard to fewer ranks?", f"{SHARDING}.reshard_to=2,4", KEPT),
    PlanQuery("Keep weights after forward?", f"{SHARDING}.strategy=full_shard,shard_grad_op", KEPT),
    PlanQuery("Which layers hold the activations?", "", "^kept for backward"),
    PlanQuery("Which units hold unsharded memory?", "", "^gathered weights"),
    PlanQuery(
        "Does a checkpointed layer keep something?",
        "--set training.sharding.activation_checkpointing=full",
        "checkpointed layers|not released",
    ),
    PlanQuery("How fast, and what bounds it?", LARGE, "^speed, all|^tokens|^one step|^bound by"),
    PlanQuery("How does it scale?", LARGE, "^efficiency"),
    PlanQuery(
        "Does it finish in its time limit, and how large is a checkpoint?",
        f"{LARGE} --set training.steps=50000 --time 08:00:00",
        "finish|^  (?!rates|=)",
    ),
    PlanQuery(
        "What does it cost?", f"{LARGE} --set training.steps=50000 --time 08:00:00", "^costs|^  ="
    ),
)


def answer(question: PlanQuery) -> str:
    """Its command, and the lines that answer it."""
    words = f"{BASE} {question.options}".split()
    done = CliRunner().invoke(fsdpkit, words[1:], catch_exceptions=False)
    lines = [line for line in _of_plan(done.output) if re.search(question.shown, line)]
    assert lines, f"{shlex.join(words)}: {done.output}"
    return "\n".join([f"$ {BASE}{_continued(question.options)}", *lines])


def _of_plan(output: str) -> Iterator[str]:
    """Its lines, without those that are indented in the table of memory, which are about kinds."""
    memory = True
    for line in output.splitlines():
        memory = memory and not line.startswith("speed")
        if not (memory and re.match(r"  +\w+ .*(?:%|MiB|KiB)", line)):
            yield line.rstrip()


def _continued(options: str) -> str:
    return f" \\\n    {options}" if options else ""


@contextmanager
def alone() -> Iterator[None]:
    """Without the plans, runs and settings of whoever asks."""
    with tempfile.TemporaryDirectory() as home, one_child():
        own = {"XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home, "FSDPKIT_RUNS": f"{home}/runs"}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def shown(page: Path = PAGE) -> dict[str, str]:
    """By question, what the page has."""
    block = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return dict(re.findall(r"^\*\*(.*?)\*\*\n\n```console\n(.*?)\n```$", block, re.M | re.S))


def main() -> None:
    with alone():
        parts = [f"**{each.asks}**\n\n```console\n{answer(each)}\n```" for each in QUESTIONS]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    made = "\n\n".join([BEGIN, *parts, END])
    PAGE.write_text(f"{before}{made}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
