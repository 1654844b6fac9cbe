"""A job's container by srun's plugin pyxis, run by bash with a stand-in for the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.errors import ConfigError
from tests.rendering.bash_stubs import Bash, RenderScript

PYXIS = r"""
if [[ $* == --help ]]; then echo "  --container-image=IMAGE"; exit; fi
words=()
for word; do
    case $word in
    --container-*=*) printf '%s\n' "$word" >>"$RECORD/pyxis.${SLURM_NODEID:-shell}" ;;
    *) words+=("$word") ;;
    esac
done
set -- "${words[@]}"
if [[ $* == *fsdpkit.launching.ending* ]]; then echo "$*" >"$RECORD/ending"; exit; fi
"""


def test_a_plugin_of_srun_gets_image_mounts_and_variables_of_the_job(
    shell: Bash, render_script: RenderScript, tmp_path: Path
) -> None:
    del shell.stubs["torchrun"]
    without = shell.stubs["srun"]
    shell.stubs["srun"] = PYXIS + without
    profile = {"container": {"engine": "pyxis", "arguments": ["--container-mounts=/scratch:/s"]}}
    options = {
        "environment.container": "my torch.sqsh",
        "environment.mounts": ["/data", "/a b:/mnt:ro"],
        "environment.variables": {"NCCL_DEBUG": "INFO"},
    }
    script = render_script(profile=profile, options=options)
    shell.run(script)
    mounts = (
        f"/scratch:/s,{tmp_path}/run:{tmp_path}/run,{tmp_path}:{tmp_path},/home/alex:/home/alex"
    )
    assert (shell.record / "pyxis.shell").read_text().splitlines()[:4] == [
        f"--container-image={tmp_path}/my torch.sqsh",
        f"--container-mounts={mounts},/data:/data,/a b:/mnt:ro",
        f"--container-workdir={tmp_path}",
        "--container-env=NCCL_DEBUG",
    ]
    assert "--overlap --nodes=1 --ntasks=1" in (shell.record / "ending").read_text()
    shell.stubs["srun"] = without
    assert "pyxis" in shell.run(script).stderr


@pytest.mark.parametrize("mount", ["data", "/a,/b", "/a:/b:ro:x", "--x"])
def test_a_mount_is_one_directory(mount: str, render_script: RenderScript) -> None:
    with pytest.raises(ConfigError, match="mounts"):
        render_script(options={"environment.mounts": [mount]})
