"""`launch.accelerate_config`: what `accelerate launch` would have given, or a refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit import Run
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Write

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
SHOWS = """
    import json, os
    known = ("ACCELERATE_", "FSDP_")
    found = {k: v for k, v in os.environ.items() if k.startswith(known)}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))
"""


@pytest.fixture
def given(fsdpkit: Fsdpkit, write_script: Write) -> Callable[..., Run]:
    """A finished run of two ranks whose script prints its environment."""

    def run(config: Path | None, *options: str) -> Run:
        words = ["--cluster", "local", *COLD, "--nodes", "1", "--gpus", "2", "--json"]
        script = str(write_script("shows.py", SHOWS))
        words += ["--set", f"launch.accelerate_config={config or ''}"]
        words += ["--set", f"launch.accelerate_args={json.dumps(options)}"]
        ran = Run.open(answer_of(fsdpkit("submit", script, *words))["dir"])
        ran.wait(poll_s=0.1)
        return ran

    return run


@pytest.mark.local
@pytest.mark.parametrize("options", [(), ("--fsdp_sharding_strategy", "2")])
def test_the_script_finds_what_accelerate_launch_gives(
    given: Callable[..., Run], write_script: Write, tmp_path: Path, options: tuple[str, ...]
) -> None:
    config = tmp_path / "fsdp.yaml"
    config.write_text(FSDP)
    run = given(config, *options)
    assert run.wait().succeeded
    launch = ["accelerate.commands.accelerate_cli", "launch", "--main_process_port", "0"]
    call = [sys.executable, "-m", *launch, "--config_file", str(config), *options]
    done = subprocess.run(
        [*call, str(write_script("shows.py", SHOWS))], capture_output=True, text=True, check=True
    )
    found = json.loads(run.rank_log(0).read_text())
    assert found == json.loads(done.stdout)
    assert (found["ACCELERATE_USE_FSDP"], found["FSDP_VERSION"]) == ("true", "2")
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"


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


@pytest.mark.local
def test_options_alone_say_it_too_and_one_that_accelerate_lacks_is_named(
    given: Callable[..., Run],
) -> None:
    run = given(None, "--use_fsdp", "--fsdp_sharding_strategy", "1")
    assert json.loads(run.rank_log(0).read_text())["FSDP_SHARDING_STRATEGY"] == "1"
    refused = given(None, "--use_fsdpp").first_failure()
    assert refused is not None
    assert "launch.accelerate_args: " in refused
    assert "unrecognized arguments: --use_fsdpp" in refused
