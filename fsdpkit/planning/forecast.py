"""The speed of a planned job: its recorded step, on its GPUs as published figures and runs tell
them. On other numbers of nodes the step is resized (`speed_tape.on_nodes`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.config.assets import packaged_dir
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.launching.torch_release import installed_torch
from fsdpkit.planning.apart import tape_apart
from fsdpkit.planning.asked import AskedStep, on_card
from fsdpkit.planning.cards import Card
from fsdpkit.planning.efficiency import NETWORK_SHARE, UNKNOWN_NETWORK, UNPUBLISHED
from fsdpkit.planning.speed import Scaled, Speed, SpeedCalibration, nearest, predict, scaling
from fsdpkit.planning.speed_learned import (
    Basis,
    MeasuredMachine,
    basis_of,
    keep_work,
    kept_work,
    name_of_step,
    step_of,
)
from fsdpkit.planning.speed_measured import T5_TRAINER, MeasuredSpeed, learn
from fsdpkit.planning.speed_tape import on_nodes, work_of
from fsdpkit.planning.work import StepWork

if TYPE_CHECKING:
    from fsdpkit.planning.tape import Tape

MOST_DOUBLINGS = 3
TRAINER = Path("examples") / "T5-fsdp" / T5_TRAINER


@dataclass(frozen=True)
class By:
    """What a speed rests on: runs, unless `learned` is False, else data sheets."""

    learned: bool = True
    runs: Path | None = None
    """The directory of runs to learn from."""
    site: str | None = None
    network_gb_s: float | None = None
    """Between nodes, as the site's profile has it."""

    def records(self) -> Sequence[MeasuredSpeed]:
        return learn(self.runs) if self.learned and self.runs is not None else ()

    def basis(self, card: Card) -> Basis:
        """Raises FsdpkitError for a GPU of which nothing is known."""
        machine = self.machine(card)
        basis = basis_of(self.records(), machine, lambda run: work_of_run(run, card))
        calibration = basis.calibration
        if calibration.machine.values["peak_flops"].source == UNPUBLISHED and not basis.used:
            raise UsageError(
                f"no rates of {card.name} are published: one finished run on it calibrates"
            )
        return basis

    def machine(self, card: Card) -> MeasuredMachine:
        links_gb_s = (card.network_gbit_s or 0) / 8 * NETWORK_SHARE or None
        network_gb_s = self.network_gb_s or links_gb_s
        return MeasuredMachine(card.name, self.site, installed_torch(), network_gb_s)


@dataclass(frozen=True)
class Forecast:
    """speed: None where nothing can be said, and `why`."""

    speed: Speed | None
    scaled: tuple[Scaled, ...] = ()
    """On one node, two, four … up to eight times as many as were asked for."""
    why: str = ""
    rests_on: str = ""
    network: str = ""
    """Of several nodes whose network nobody has measured: what it might be."""
    left_out: tuple[str, ...] = field(default=())
    """Of what was measured, a sentence each."""
    work: StepWork | None = None
    """The recorded step."""


def work_on_tape(asked: AskedStep, tape: Tape) -> StepWork:
    """Raises UsageError for a model whose step is not recorded, or not whole."""
    if not tape.samples:
        raise UsageError("its step was not recorded")
    if tape.lacking:
        raise UsageError("not all of its step could be followed")
    settings = on_card(asked)
    sharding = settings.sharding
    limited = sharding.engine == "fsdp2" or sharding.limit_all_gathers
    # Of a script of one's own only what its settings say is known.
    compiled = asked.settings.compile is True if asked.model else bool(settings.compile)
    return work_of(
        tape,
        ranks=asked.ranks,
        ranks_per_node=asked.gpus,
        gathers_ahead=2 if limited else None,
        compiled=compiled and not settings.deterministic,
        offloads=sharding.cpu_offload,
    )


def work_of_run(run: MeasuredSpeed, card: Card) -> StepWork:
    """The step that a run did: kept, or of the T5 trainer recorded now. Raises FsdpkitError."""
    name = step_of(run)
    if (kept := kept_work(name)) is not None:
        return kept
    if run.training is None:
        raise UsageError("the plan of its job is no longer kept")
    entry = Consent().to_script(packaged_dir() / TRAINER)
    asked = AskedStep(run.training, run.nodes, run.gpus, card, entry)
    work = work_on_tape(asked, tape_apart(asked)[0])
    keep_work(name, work)
    return work


def keep_planned(asked: AskedStep, plan: str, work: StepWork) -> None:
    """Keep the recorded step of a plan under the name by which a run of its job has it."""
    of_t5 = asked.model is None and asked.entry.path.name == T5_TRAINER
    keep_work(name_of_step(asked.settings, asked.nodes, asked.gpus) if of_t5 else plan, work)


def forecast(asked: AskedStep, by: By, tape: Tape) -> Forecast:
    try:
        basis = by.basis(asked.card)
        work = work_on_tape(asked, tape)
        speed = predict(work, basis.calibration)
    except FsdpkitError as error:
        return Forecast(None, why=str(error))
    calibration = basis.calibration
    return Forecast(
        speed,
        tuple(scaling(lambda nodes: on_nodes(work, nodes), calibration, _counts(asked))),
        rests_on=rests_on(work, basis),
        network=unknown_network(calibration),
        left_out=basis.left_out,
        work=work,
    )


def rests_on(work: StepWork, basis: Basis) -> str:
    """What the job's speed is computed from, the run that is nearest to it first."""
    _, run = nearest(work, basis.calibration)
    if run is None:
        return basis.words
    day = time.strftime(" of %A, %d %B", time.localtime(run.made_s)) if run.made_s else ""
    return f"your run {run.source}{day}: measured; {basis.words}"[:300]


def unknown_network(calibration: SpeedCalibration) -> str:
    """What the links between nodes might be; empty if something says it."""
    source = calibration.machine.values["node_bytes"].source
    return UNKNOWN_NETWORK if source == UNKNOWN_NETWORK else ""


def _counts(asked: AskedStep) -> list[int]:
    """Numbers of nodes; of one rank alone no message was recorded that could grow."""
    if asked.ranks == 1:
        return [1]
    counts = {1, asked.nodes, *(asked.nodes << n for n in range(1, MOST_DOUBLINGS + 1))}
    return sorted(counts | {1 << n for n in range(asked.nodes.bit_length())})
