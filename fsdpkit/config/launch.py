"""`[launch]` of a job: how its ranks come to be."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import RENDERED_ONCE, Text, doc, once

Warm = Literal["auto", "on", "off"]
ModuleName = Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How ranks are started on each node."""

    warm: Annotated[
        Warm,
        doc(
            "Fork ranks from a process that has imported torch: `auto` where that is "
            "safe, `on` fails if it is not safe, `off` starts each rank anew."
        ),
    ] = "auto"
    ranks_per_node: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        doc(
            "Ranks per node; unset: one for each GPU. With 1, a script that starts its "
            "own workers (mp.spawn, deepspeed, accelerate launch) sees all GPUs of the node."
        ),
        RENDERED_ONCE,
    ] = None
    world: Annotated[
        Literal["checked", "any"],
        doc(
            "`checked`: the default process group must have the job's ranks, all of "
            "them, or the job ends; `any`: it may have others."
        ),
    ] = "checked"
    check: Annotated[
        bool,
        doc(
            "Before submitting, check that the script compiles and that its "
            "environment has what it imports, as far as both can be known here."
        ),
        once("it is done once, before the array is submitted: use --set {key}=VALUE for all"),
    ] = True
    preload: Annotated[
        list[ModuleName],
        doc(
            "Modules that the fork server also imports, such as transformers: once per "
            "node, before the script runs, with the job's environment."
        ),
    ] = []
    accelerate_config: Annotated[
        Text | None,
        doc(
            "File of `accelerate config`: the script gets the environment variables "
            "that `accelerate launch --config_file` would give it."
        ),
        RENDERED_ONCE,
    ] = None
    accelerate_args: Annotated[
        list[Text],
        doc(
            "Options of `accelerate launch`, such as --use_fsdp: the script gets the "
            "environment variables that they stand for; the number of processes is the job's."
        ),
        RENDERED_ONCE,
    ] = []
