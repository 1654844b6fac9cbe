"""The words that run a job's tasks in its container: in front of a command, or as srun's options.

Apptainer is a command in front of the agent, and the shell around it stays on the node. Pyxis is a
plugin of srun: all of the task is in the container. Its options are those of its `srun --help`
(github.com/NVIDIA/pyxis, wiki page Usage, November 2025).
"""

from __future__ import annotations

import os
from pathlib import Path

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.errors import ConfigError, UsageError

PLUGIN = "pyxis"
_MOUNTS, _NAMES = "--container-mounts=", "--container-env="


def is_by_plugin(job: LoadedJob, profile: SiteProfile) -> bool:
    """Whether srun itself is to start the job's container."""
    return job.spec.environment.container is not None and profile.container.engine == PLUGIN


def command_words(job: LoadedJob, profile: SiteProfile, run_dir: Path) -> list[str]:
    """What stands in front of a command; none without a container, or with a plugin's."""
    image, engine = job.spec.environment.container, _engine(job, profile)
    if image is None or engine is None or is_by_plugin(job, profile):
        return []
    binds = [f"--bind={path}" for path in _mounts(job, engine, run_dir)]
    return [engine, "exec", *profile.container.arguments, *binds, image]


def srun_words(job: LoadedJob, profile: SiteProfile, run_dir: Path, work_dir: Path) -> list[str]:
    """srun's options where a plugin runs containers; else none."""
    image = job.spec.environment.container
    if image is None or not is_by_plugin(job, profile):
        return []
    if job.steps.get("each_node"):
        raise UsageError(
            "steps.each_node runs on the node itself, and pyxis puts all of a task into the "
            "container: use steps.before, or put its work into the image"
        )
    given = profile.container.arguments
    # pyxis mounts nothing of the node by itself but what the centre has configured.
    own = [_pair(path) for path in _mounts(job, PLUGIN, run_dir, work_dir)]
    mounts = [*(w.removeprefix(_MOUNTS) for w in given if w.startswith(_MOUNTS)), *own]
    environment = job.spec.environment
    # Where both set a variable, pyxis takes the image's, unless it is named.
    names = [*(w.removeprefix(_NAMES) for w in given if w.startswith(_NAMES))]
    names += sorted({*environment.variables, *environment.passed})
    return [
        f"--container-image={_image(image, work_dir)}",
        _MOUNTS + ",".join(mounts),
        f"--container-workdir={work_dir}",
        *([_NAMES + ",".join(names)] if names else []),
        *(word for word in given if not word.startswith((_MOUNTS, _NAMES))),
    ]


def _engine(job: LoadedJob, profile: SiteProfile) -> str | None:
    """Raises ConfigError for a container that the site has no engine for."""
    if profile.container.engine is None and job.spec.environment.container is not None:
        raise ConfigError(
            f"job {job.spec.name}: environment.container is set, but the profile of "
            f"{profile.title} names no container engine ([container] engine)"
        )
    return profile.container.engine


def _mounts(job: LoadedJob, engine: str, run_dir: Path, *others: Path) -> list[str]:
    """Directories that the container sees, the job's own as it spells them. Raises UsageError."""
    file = job.accelerate_config
    paths = [run_dir, *others, *filter(None, (job.entry.root, file and file.parent))]
    own = list(dict.fromkeys(map(str, paths)))
    for path in own:
        if "," in path or ":" in path:
            raise UsageError(f"{engine} cannot bind a directory with ',' or ':' in it: {path}")
    return [*own, *job.spec.environment.mounted]


def _pair(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"


def _image(image: str, work_dir: Path) -> str:
    """An image's file by its whole path: without a slash pyxis takes a name for a registry's."""
    named = os.path.expanduser(image)
    if named.endswith((".sqsh", ".squashfs")) and "://" not in named:
        return str(work_dir / named)
    return named
