"""`make test-pythons` leaves out what needs an extra, and nothing else."""

from __future__ import annotations

import pytest

from tests.packaging import without_extras


def test_only_an_extra_that_is_not_installed_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_extras, "EXTRAS", {"an_absent_extra", "json"})
    for name in ("json", "no_module_of_anybody", "json.an_absent_extra"):
        without_extras.Absent().find_spec(name)
    with pytest.raises(pytest.skip.Exception, match="an_absent_extra is not installed"):
        without_extras.Absent().find_spec("an_absent_extra")
