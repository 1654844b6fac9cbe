"""The table of releases in the documents is that of the newest results."""

from __future__ import annotations

from tests.release_table import PAGE
from tests.slurm import releases as matrix


def test_the_table_of_releases_is_that_of_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert matrix.TABLE.within(page) == page, "run make test-releases"
