"""Optuna's samplers, asked for a batch of trials at a time.

Its study lives for the length of one call: what it is to know is told from the trials' own files,
so no database is kept and no server waits. The first batch is drawn without results; each
`fsdpkit sweep extend` draws from all that are there by then. Trials that are still open count as
mediocre ones (`constant_liar`), so that a batch does not gather in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsdpkit.errors import ConfigError
from fsdpkit.sweeps.space import Settings, SweptParameter


def ask(
    name: str,
    space: Sequence[SweptParameter],
    trials: range,
    seed: int,
    done: Sequence[tuple[Settings, float]],
    *,
    highest: bool,
) -> list[Settings]:
    """Settings for these trials, after what came out of those that are `done`. Raises ConfigError
    without Optuna, or what the sampler needs beside it."""
    sampler = _sampler(name, seed + trials.start)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {one.key: _distribution(one) for one in space}
    study = optuna.create_study(direction="maximize" if highest else "minimize", sampler=sampler)
    for settings, value in done:
        study.add_trial(
            optuna.trial.create_trial(params=settings, distributions=distributions, value=value)
        )
    try:
        asked = [study.ask(distributions).params for _ in trials]
    except ImportError as error:
        raise _missing(name, error) from error
    return [{one.key: one.nearest(params[one.key]) for one in space} for params in asked]


def _sampler(name: str, seed: int) -> Any:
    try:
        import optuna

        if name == "tpe":
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        if name == "qmc":
            return optuna.samplers.QMCSampler(seed=seed, scramble=True)
        return optuna.samplers.CmaEsSampler(seed=seed)
    except ImportError as error:
        raise _missing(name, error) from error


def _missing(name: str, error: ImportError) -> ConfigError:
    module = (error.name or "optuna").partition(".")[0]
    needed = "'fsdpkit[sweeps]'" if module == "optuna" else module
    return ConfigError(
        f'sampler = "{name}" needs {module}, which is not installed here: pip install {needed}, or '
        'take sampler = "random"'
    )


def _distribution(one: SweptParameter) -> Any:
    import optuna

    if one.values:
        return optuna.distributions.CategoricalDistribution(one.values)
    if one.kind in ("int", "log_int"):
        return optuna.distributions.IntDistribution(
            int(one.low), int(one.high), log=one.is_logarithmic
        )
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.is_logarithmic)
