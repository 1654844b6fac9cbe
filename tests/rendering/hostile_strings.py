"""Strings made to break out of quotes, through both quoters, and back out of real programs: bash,
and the sbatch of a real Slurm, in scripts laid out as every template's are.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice

from tests.rendering.hostile_templates import rendered
from tests.slurm_cluster import SlurmCluster

BETWEEN = "\u241e"
"""Between values that share one comment; in none of them."""
PIECES = (
    *"\\\"'#$`:;=|&()<>*?[]{}!~%,@^-+ ",
    *("''", '"\'"', "\\'", "\\\\", "$(id)", "`id`", "${IFS}", "$((", "))", "<<E", "<(id)", ">x"),
    *("#SBATCH", "--wrap=id", "hetjob", " #", "%j", "{{", "}}", "{%", "&&id", "||id", ";id;"),
    *("a", "Z", "0", "é", "日", "𝕏", "\u00a0", "\u200b", "\ufeff", "e\u0301"),
)
LAYOUT = """#!/bin/bash
# {{ first | note }}
#SBATCH --comment={{ together | sb }}
# {{ together | note }}
X={{ first | sh }}
Z=({{ words | sh }})
Z+=({{ first | sh_arg }})
printf '%s\\0' "$X" "${Z[@]}"
"""
"""The places at which a template's values may stand."""


def strings(seed: int) -> Iterator[str]:
    """Without end; a seed gives the same ones each time."""
    dice = random.Random(seed)
    while True:
        yield "".join(dice.choices(PIECES, k=dice.randint(1, 12)))


def script(words: Sequence[str]) -> str:
    """One that prints the words, and has them in a directive."""
    values = {"first": words[0], "words": list(words), "together": BETWEEN.join(words)}
    return rendered(LAYOUT, values)


def through_bash(words: Sequence[str]) -> list[str]:
    """As bash reads them in a script."""
    done = subprocess.run(["bash", "-s"], input=script(words).encode(), capture_output=True)
    first, *found = done.stdout.decode().split("\0")[:-1]
    last = found.pop()
    return found if (first, last) == (words[0], words[0]) and not done.stderr else []


def through_sbatch(words: Sequence[str], cluster: SlurmCluster) -> list[str]:
    """As Slurm keeps them of a job."""
    sbatch = ["sbatch", "--parsable", "--hold", "--chdir=/"]
    job = cluster.run(sbatch, input=script(words)).stdout.strip()
    comment = cluster.run(["squeue", "--noheader", "-j", job, "-o", "%k"]).stdout
    cluster.run(["scancel", job])
    return comment.removesuffix("\n").split(BETWEEN)


def changed(words: Sequence[str], found: Sequence[str]) -> int:
    """How many came out as something else."""
    if len(words) != len(found):
        return len(words)
    return sum(one != other for one, other in zip(words, found, strict=True))


def count(through: int, cluster: SlurmCluster | None) -> int:
    """How many of so many come out as something else, of bash, or of sbatch with a cluster."""
    source, wrong = strings(1 if cluster is None else 2), 0
    at_once = 1000 if cluster is None else 40  # a comment has a limit
    for _ in range(0, through, at_once):
        words = list(islice(source, at_once))
        found = through_bash(words) if cluster is None else through_sbatch(words, cluster)
        wrong += changed(words, found)
    return wrong
