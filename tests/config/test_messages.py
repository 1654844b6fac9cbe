"""Every wrong value is answered with the file, the key, what is allowed, and the nearest word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.site import load_site
from fsdpkit.errors import ConfigError

JobFile = Callable[[str], str]
Write = Callable[[str, str], Path]

SETS = {
    "resources.nodes=0": "must be at least 1, not '0' (Nodes)",
    "resources.nodes=8193": "must be at most 8192",
    "resources.gpus=65": "must be at most 64",
    "resources.nodes=two": "must be a whole number, not 'two'",
    "resources.nodes=1.5": "must be a whole number",
    "resources.nodez=2": "there is no key 'nodez' in [resources]. Did you mean 'nodes'?",
    "ressources.nodes=2": "there is no key 'ressources'. Did you mean 'resources'?",
    "resources.nodes.x=2": "'resources.nodes' is a single value, it has no keys",
    "resources=2": "is a table; set one of its keys: resources.nodes,",
    "resources.exclusive=maybe": "must be true or false, not 'maybe'",
    "training.model.preset=t5smal": "Did you mean 't5-small'?",
    "training.model.preset=x": "must be one of tiny-byt5, t5-small,",
    "training.sharding.strategy=FULL_SHARD": "must be one of full_shard, shard_grad_op, hybrid_",
    "training.sharding.engine=fsdp_native": "must be one of fsdp2, fsdp1, not 'fsdp_native'",
    "training.precision.param=16-mixed": "must be one of auto, float32, bfloat16, float16",
    "training.optimizer.name=adadelta": "must be one of adamw, adamw-scaled, adafactor,",
    "training.optimizer.lr=nan": "must be more than 0",
    "training.optimizer.lr=-1": "must be more than 0, not '-1' (Peak learning rate)",
    "args=hello": """write the value as in TOML, such as ["a", "b"], not 'hello'""",
    "environment.variables=5": "must be a table",
    "environment.modules=[1]": "environment.modules[0]",
    "name=../up": "must match ^[A-Za-z0-9]",
    "name=": "must match",
    "resources.time=UNLIMITED": "not scheduled before a maintenance window",
    "resources.time=0": "time limit of zero",
    "resources.memory=lots": "is not a memory size; write a whole number and K, M, G or T",
    "resources.nodelist=/etc/hosts": "makes Slurm read a file of that name",
    "environment.variables.1A=x": "environment.variables.1A (--set): this name must match",
    "environment.variables.FSDPKIT_NODES=1": "this name must match",
    "environment.variables.UID=1": "this name must match",
    "nodes": "write --set KEY=VALUE",
    "=3": "write --set KEY=VALUE",
    "description=a\nb": r"holds the control character '\n'",
    "description=a\x1b[2Jb": r"holds the control character '\x1b'",
    "description=a\u2028b": r"holds the control character '\u2028'",
    "description=" + "x" * 10_000: "10000 characters; at most 4096 are allowed",
    'args=["a"]\nname = "x"': "holds the control character",
    "training.steps=" + "9" * 5000: "out of range",
}


@pytest.mark.parametrize(("assignment", "message"), SETS.items(), ids=[k[:40] for k in SETS])
def test_set_says_what_is_allowed(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        load_job(sets=[assignment])
    assert "--set" in str(refused.value)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", str(refused.value))


FILES = {
    "[training.model]\npresett = 'x'": (
        "training.model.presett (mine.toml)",
        "there is no key 'presett' in [training.model]. Did you mean 'preset'?",
    ),
    "[training.model]\npreset = 3": ("training.model.preset (mine.toml)", "must be one of tiny-"),
    "[training]\nsteps = 'many'": (
        "training.steps (mine.toml)",
        "must be a whole number, not 'many' "
        "(Maximum number of optimizer steps; 0: as many as `epochs` needs, else 100)",
    ),
    "[training]\ngrad_clip = nan": ("training.grad_clip (mine.toml)", "nan is not a number"),
    "[environment]\nconda = 'a'\nvenv = 'b'": (
        "environment.venv (mine.toml)",
        "conda is set as well; keep the one that has torch",
    ),
    "[environment]\nconda = ''": ("environment.conda (mine.toml)", "must not be empty"),
    "[environment]\nmodules = ['a', 3]": (
        "environment.modules[1] (mine.toml)",
        "must be text, not 3",
    ),
    "[environment.variables]\nA = 3": ("environment.variables.A (mine.toml)", "must be text"),
    "[environment.variables]\n'A B' = '3'": ("environment.variables.A B", "this name must match"),
    '"na\\nme" = 1': ("resources (mine.toml)", "control character"),
    "[[args]]\nx = 1": ("args[0] (mine.toml)", "must be text, not a table"),
}


@pytest.mark.parametrize(("text", "wanted"), FILES.items(), ids=[repr(k[:30]) for k in FILES])
def test_a_file_is_named_with_its_key(
    text: str, wanted: tuple[str, str], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(job_file(text)).parent)
    with pytest.raises(ConfigError) as refused:
        load_job("mine.toml")
    where, why = wanted
    assert str(refused.value).startswith("job mine.toml: ")
    assert where in str(refused.value)
    assert why in str(refused.value)


BROKEN = {
    "x = ": "is not valid TOML: Invalid value (at",
    "x = 1\nx = 2": "is not valid TOML: Cannot overwrite a value",
    "x = " + "9" * 5000: "is not valid TOML",
    "x = " + "[" * 5000: "too deep to read",
    ".".join("a" * 30) + " = 1": "tables in tables",
    "#" * 1_000_001: "more than 1000000 bytes",
}


@pytest.mark.parametrize(("text", "why"), BROKEN.items(), ids=[k[:20] for k in BROKEN])
def test_a_broken_file_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        load_job(str(path))
    assert str(path) in str(refused.value)


PROFILES = {
    "[partitions.big]\nmax_nodez = 3": "partitions.big.max_nodez",
    "[partitions.ok]\n[partitions.big]\nmax_nodes = 0": "partitions.big.max_nodes (",
    "[partitions.big]\nmax_time = '3 days'": "partitions.big.max_time (",
    "[partitions.big]\nnode_type = 'quadd'\n[node_types.quad]": "Did you mean 'quad'?",
    "[partitions.big.select]\ngpus = '4'": "gpus is not a partition's to decide",
    "[partitions.big.select]\ngres = 'x,gpu:4'": "GPUs are asked for by [gpu_request]",
    "[partitions.big.select]\n'Bad Name' = 'x'": "partitions.big.select.Bad Name",
    "[account]\npattern = '['": "account.pattern (user mine.toml): it is no regular expression",
    "[identify]\nhostname = '('": "identify.hostname (user mine.toml): it is no regular expression",
    "[gpu_request]\nform = 'gpus-per-task'": "must be one of gpus-per-node, gres, none",
    "[rendezvous]\nport_base = 60000": "goes beyond port 65535",
    "[rendezvous]\nsuffix = 'i'": 'only a name has one; set address = "hostname"',
    "[rendezvous]\ninterface = 'eth0; rm'": "rendezvous.interface",
    "[environment]\nunset = ['A B']": "environment.unset[0]",
}


@pytest.mark.parametrize(("text", "why"), PROFILES.items(), ids=[repr(k[:40]) for k in PROFILES])
def test_a_profile_is_checked_as_a_whole(text: str, why: str, user_file: Write) -> None:
    top = 'schema = "fsdpkit.site/1"\ntitle = "Mine"\n'
    user_file("site/profiles/mine.toml", top + text)
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_site("mine")
