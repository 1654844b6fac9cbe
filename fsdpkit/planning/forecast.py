"""The speed of a planned T5 job: its work by closed form, on its GPUs by published figures.

A finished run or `fsdpkit check --nodes` says more than figures do; a calibration made of them
(`speed_records.py`) takes the figures' place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import Asked, on_card
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.speed import Goal, Scaled, Speed, predict, scaling
from fsdpkit.planning.speed_calibration import Calibration, uncalibrated
from fsdpkit.planning.speed_records import load
from fsdpkit.planning.speed_settings import work_of_settings

MOST_DOUBLINGS = 3


@dataclass(frozen=True)
class Forecast:
    """speed: None where nothing can be said, and `why`."""

    speed: Speed | None
    scaled: tuple[Scaled, ...] = ()
    """On one node, two, four … up to eight times as many as were asked for."""
    why: str = ""


def calibration_for(asked: Asked, file: Path | None) -> Calibration:
    """What the site has measured, or else published figures. Raises FsdpkitError for a GPU without
    any, or a file that is no calibration."""
    return load(file) if file is not None else uncalibrated(machine_for(asked.card.name))


def goal_of(asked: Asked) -> Goal | None:
    """None where epochs end the run, whose length is only known from its data."""
    settings = asked.settings
    if settings.most_steps:
        return Goal(steps=settings.most_steps)
    return Goal(tokens=settings.tokens) if settings.tokens else None


def forecast(asked: Asked, file: Path | None = None) -> Forecast:
    """Raises FsdpkitError for a calibration `file` that cannot be used."""
    if asked.model:
        return Forecast(None, why="of a model that is not fsdpkit's T5 only memory is planned")
    if file is None:
        try:
            calibration = calibration_for(asked, None)
        except FsdpkitError as error:
            return Forecast(None, why=str(error))
    else:
        calibration = calibration_for(asked, file)
    settings = on_card(asked)
    speed = predict(
        work_of_settings(settings, asked.nodes, asked.gpus), calibration, goal_of(asked)
    )
    counts = {1, asked.nodes, *(asked.nodes << n for n in range(1, MOST_DOUBLINGS + 1))}
    counts |= {1 << n for n in range(asked.nodes.bit_length())}
    scaled = scaling(
        lambda nodes: work_of_settings(settings, nodes, asked.gpus), calibration, sorted(counts)
    )
    return Forecast(speed, tuple(scaled))
