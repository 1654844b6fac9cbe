"""`launch.accelerate_config`: what `accelerate launch` would have given, or a refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit import Run
from fsdpkit.config.accelerate_file import unused_of
from fsdpkit.config.job import Resources
from fsdpkit.config.job_loading import load_job
from fsdpkit.errors import ConfigError
from tests.conftest import COLD, Completed, answer_of

FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP  # sharded
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_state_dict_type: SHARDED_STATE_DICT
mixed_precision: bf16
dynamo_backend: 'NO'
num_machines: 1
num_processes: 2
"""
ONE_PROCESS = "distributed_type: 'NO'\nmixed_precision: fp16\nnum_processes: 1\nuse_cpu: true\n"
SHOWS = """
    import json, os
    known = ("ACCELERATE_", "FSDP_")
    found = {k: v for k, v in os.environ.items() if k.startswith(known)}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))
"""


@pytest.fixture
def given(
    fsdpkit: Callable[..., Completed], write_script: Callable[..., Path]
) -> Callable[..., Run]:
    """A finished run on two nodes whose script prints its environment."""

    def run(config: Path) -> Run:
        words = ["--cluster", "local", *COLD, "--nodes", "2", "--gpus", "1", "--json"]
        script = str(write_script("shows.py", SHOWS))
        key = f"launch.accelerate_config={config}"
        ran = Run.open(answer_of(fsdpkit("submit", script, *words, "--set", key))["dir"])
        ran.wait(poll_s=0.1)
        return ran

    return run


@pytest.mark.local
def test_the_script_finds_what_accelerate_launch_gives(
    given: Callable[..., Run], write_script: Callable[..., Path], tmp_path: Path
) -> None:
    config = tmp_path / "fsdp.yaml"
    config.write_text(FSDP)
    run = given(config)
    assert run.wait().succeeded
    launch = ["accelerate.commands.accelerate_cli", "launch", "--main_process_port", "0"]
    call = [sys.executable, "-m", *launch, "--config_file", str(config)]
    done = subprocess.run(
        [*call, str(write_script("shows.py", SHOWS))], capture_output=True, text=True, check=True
    )
    found = json.loads(run.rank_log(0).read_text())
    assert found == json.loads(done.stdout)
    assert (found["ACCELERATE_USE_FSDP"], found["FSDP_VERSION"]) == ("true", "2")
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.local
def test_a_file_for_one_process_serves_many(given: Callable[..., Run], tmp_path: Path) -> None:
    config = tmp_path / "one.yaml"
    config.write_text(ONE_PROCESS)
    run = given(config)
    assert run.wait().succeeded
    found = json.loads(run.rank_log(0).read_text())
    assert (found["ACCELERATE_MIXED_PRECISION"], found["ACCELERATE_USE_CPU"]) == ("fp16", "True")


@pytest.mark.local
def test_what_accelerate_refuses_ends_the_job_with_its_words(
    given: Callable[..., Run], tmp_path: Path
) -> None:
    config = tmp_path / "typo.yaml"
    config.write_text(f"{FSDP}mixed_precison: bf16\n")
    run = given(config)
    assert run.wait().exit_status == 78
    failure = run.first_failure()
    assert failure is not None
    assert "launch.accelerate_config: " in failure
    assert "unknown keys (['mixed_precison'])" in failure


REFUSED = {
    "distributed_type: MEGATRON_LM": "MEGATRON_LM lays out ranks",
    "distributed_type: 'XLA'  # pods": "XLA is for TPUs",
    "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO": "Amazon",
    "{distributed_type: FSDP}": "has no distributed_type",
    "": "has no distributed_type",
}


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_slurm_does_not_run_is_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"launch\.accelerate_config: .*{why}"):
        load_job("t5", sets=[f"launch.accelerate_config={tmp_path}/c.yaml"])


def test_the_jobs_own_numbers_count(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FSDP.replace("num_processes: 2", "num_processes: 2\x1b[2J"))
    asked = Resources(nodes=2, gpus=4, time="10")
    (note,) = unused_of(tmp_path / "c.yaml", asked, "job")
    assert note == "c.yaml has num_machines = 1; the job's own number counts, 2"
