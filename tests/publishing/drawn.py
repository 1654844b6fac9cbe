"""Requests drawn at random, always the same: what somebody could ask of a form, and much that no
form would let pass."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.rendering.hostile_strings import PIECES

CLUSTERS = (
    *("osc-cardinal", "osc-ascend", "osc-pitzer", "generic", "zoo-heron", "zoo-hostile"),
    *("zoo-vast", "hrc-heron", "osc-cardinal", "zoo-heorn", "", "no/such.toml"),
)
JOBS = (
    "t5",
    "t5",
    "own",
    "own",
    "wide",
    "check",
    "generate",
    "train.py",
    "sub/it's.py",
    "t6",
    "pretrain",
    "-x",
)
TEMPLATES = (
    *("torchrun", "typed", "many", "torchrun@testing", "torchrun@3.3", "torchrunn", "../typed"),
    *("torchrun@3.3.1", "torchrun@9", "hostile", "typed@2"),
)
_ACCOUNTS = {"zoo-heron": "ab123", "hrc-heron": "hrc0042"}
_VALUES = {
    "--nodes": ("1", "2", "3", "5", "16", "64", "5000", "0", "-1", "10001", "two", "1e3", "01", ""),
    "--gpus": ("1", "2", "3", "4", "8", "16", "0", "65", "4.0", "\u0664"),
    "--time": (
        *("30", "90:00", "01:00:00", "12:00:00", "1-0", "2-00:00:00", "9-00:00:00", "00:01:00"),
        *("soon", "1:2:3:4", "-5", "99999999999", "01:00:00 "),
    ),
    "--account": ("PAS2136", "ab123", "AB123", "pas 1", "", "x" * 300),
    "--partition": ("gpu", "debug", "long", "wide", "old", "lnog", "<i>first</i>", "a b"),
    "--spare": ("0", "1", "60", "1001"),
    "--array": ("0-15", "1,3,5", "0-99%10", "0-15:5%2", "3-1", "1,1", "0-1000001", "a", "%"),
}
_SETS = (
    *("resources.memory=480G", "resources.memory=1.5T", "resources.memory=much", "memory=1"),
    *("resources.exclusive=true", "resources.exclusive=maybe", "resources.cpus_per_gpu=12"),
    *("resources.cpus_per_gpu=0", "resources.nodelist=a[1-3]", "resources.exclude=/etc/passwd"),
    *("resources.qos=high", "resources.constraint=h100&nvlink", "resources.nodes=3"),
    *("training.steps=500", "training.steps=-5", "training.stpes=5", "training.batch_size=6"),
    *("training.micro_batch=4", "training.micro_batch=auto", "training.model.preset=t5-v1.1-xxl"),
    *("training.model.preset=t5-huge", "training.precision.param=bfloat16", "training=5"),
    *("training.sharding.strategy=hybrid_shard", "training.optimizer.lr=1e-4", "name=other"),
    *("retry.on_crash=requeue", "retry.on_preemption=stop", "retry.requeues=99999999", "retry=1"),
    *('environment.modules=["a/1", "b/2"]', "environment.modules=a", "environment.conda=torch"),
    *("environment.venv=~/env", "environment.venv=env", "environment.container=image.sif"),
    *('environment.variables.X="it\'s $(id)"', "environment.variables.9=1", "launch.warm=off"),
    *("notify.mail=ann@example.org", "notify.mail=ann", "files.group=true", "launch.check=false"),
    *("parameters.tries=3", "parameters.tries=10", "parameters.verbose=true", "parameters.share=2"),
    *("parameters.mode=slow and sure", "parameters.mode=slow", "parameters.p7=7", "parameters.p=1"),
    *("parameters.wait_s=30", "parameters.omp_threads=8", "parameters.preflight=no", "a", "=", ""),
    *("args=[]", 'array_args.3=["x"]', "entry=missing.py", "a.b.c.d.e=1", "x\ny=1", "__class__=1"),
    *("environment.variables.WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",),
)
_TAME = (
    *(
        "resources.memory=200G",
        "resources.exclusive=true",
        "resources.qos=high",
        "files.group=true",
    ),
    *("training.steps=500", "training.batch_size=6", "training.sharding.strategy=hybrid_shard"),
    *("training.optimizer.lr=1e-4", "retry.on_crash=requeue", "retry.on_preemption=stop"),
    *('environment.modules=["a/1", "b/2"]', "environment.conda=torch", "environment.venv=~/env"),
    *("environment.venv=env", 'environment.variables.X="it\'s $(id)"', "resources.exclude=a[1-3]"),
    *("notify.mail=ann@example.org", "resources.constraint=h100&nvlink", "launch.warm=off"),
)
_TEXTS = ("parameters.label", "resources.reservation", "environment.variables.Y", "description")
DEFAULTS = (
    "",
    "[training]\nsteps = 3\n",
    '[resources]\naccount = "PAS2136"\n',
    '[resources]\ntime = "00:45:00"\n[environment]\nvenv = "~/it\'s"\n',
    "[resources\n",
)
PYTHONS = ("prefix", "venv", "conda")
RUNS = (*("results", "~/runs", "/scratch/a b") * 3, "/tmp/100%j", "back\\slash")


@dataclass(frozen=True)
class Drawn:
    """The words behind `fsdpkit submit`, and the shell that they are typed in."""

    words: Sequence[str]
    defaults: str
    python: str
    runs: str | None
    sbatch_account: str | None
    below: str
    """Directory below the home that is submitted from."""


def drawn(count: int, seed: int) -> Iterator[Drawn]:
    rng = random.Random(seed)
    for _ in range(count):
        yield Drawn(
            words=[*_words(rng)],
            defaults=rng.choice(DEFAULTS if rng.random() < 0.3 else DEFAULTS[:4]),
            python=rng.choice(PYTHONS),
            runs=rng.choice(RUNS) if rng.random() < 0.4 else None,
            sbatch_account=rng.choice(("PAS2136", "ab123")) if rng.random() < 0.4 else None,
            below=rng.choice(("project", "it's a project", "100%")),
        )


def _words(rng: random.Random) -> Iterator[str]:
    """Most could be meant, and so become scripts; the wild ones are refused in one of many ways."""
    wild = rng.random() < 0.45
    cluster = rng.choice(CLUSTERS if wild else CLUSTERS[:9])
    if rng.random() < 0.9:
        yield rng.choice(JOBS if wild else JOBS[:9])
    yield from ("--cluster", cluster)
    if not wild:
        yield from ("--account", _ACCOUNTS.get(cluster, "PAS2136"))
    for option, values in _VALUES.items():
        if option == "--account" and not wild:
            continue
        if option == "--partition" and not wild:
            continue
        if rng.random() < (0.35 if wild else 0.3):
            yield from (option, rng.choice(values if wild else values[:2]))
    if rng.random() < 0.4:
        yield from ("--set", f"template={rng.choice(TEMPLATES if wild else TEMPLATES[:5])}")
    for _ in range(rng.choice((0, 0, 1, 2))):
        yield from ("--set", rng.choice(_SETS if wild else _TAME))
    if rng.random() < 0.35:
        yield from ("--set", f"{rng.choice(_TEXTS if wild else _TEXTS[1:])}={_text(rng)}")
    if rng.random() < 0.25:
        yield from ("--", *(_text(rng) for _ in range(rng.randint(1, 3))))


def _text(rng: random.Random) -> str:
    if rng.random() < 0.03:
        return "x" * 10_000
    if rng.random() < 0.1:
        return rng.choice(("a\nb", "\x1b[31m", "a\tb", "--nodes", "{array_task}", '"quoted"', "1"))
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 12)))
