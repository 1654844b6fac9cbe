"""Which settings mattered, by ranks."""

from __future__ import annotations

import numpy as np
import pytest

from fsdpkit.sweeps.page import LEAST, importances, ranks


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([30.0, 10.0, 20.0, 10.0]).tolist() == [4.0, 1.5, 3.0, 1.5]


def test_what_rises_or_falls_throughout_is_certain_whatever_its_scale() -> None:
    trials = [({"args.lr": 10.0**-k, "args.n": k}, float(np.exp(3 * k))) for k in range(8)]
    lr, n = importances(trials)
    assert (lr.key, lr.strength, lr.rises) == ("args.lr", pytest.approx(1), False)
    assert (n.key, n.strength, n.rises) == ("args.n", pytest.approx(1), True)


def test_spearmans_own_figure() -> None:
    """The example of many text books: IQ and hours of television, rho = -29/165."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    trials = [({"args.iq": q}, float(h)) for q, h in zip(iq, hours, strict=True)]
    (one,) = importances(trials)
    assert one.strength == pytest.approx(29 / 165)
    assert one.rises is False


def test_a_choice_has_a_strength_and_no_direction() -> None:
    trials = [({"args.c": "ab"[k % 2], "args.z": "xy"[k // 4]}, float(k % 2)) for k in range(8)]
    (sure, chance) = importances(trials)
    assert (sure.key, sure.strength, sure.rises) == ("args.c", pytest.approx(1), None)
    assert (chance.key, chance.strength) == ("args.z", pytest.approx(0))


def test_of_few_trials_or_of_what_never_changed_nothing_is_said() -> None:
    assert importances([({"args.x": k}, float(k)) for k in range(LEAST - 1)]) == []
    assert importances([({"args.x": 1}, float(k)) for k in range(9)]) == []
    assert importances([({"args.x": k}, 1.0) for k in range(9)]) == []
