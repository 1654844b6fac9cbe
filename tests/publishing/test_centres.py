"""docs/centres.md says what the packaged profiles say."""

from __future__ import annotations

from fsdpkit.config import assets
from fsdpkit.publishing.centres import document, page


def test_the_table_of_centres_is_current() -> None:
    assert document().read_text(encoding="utf-8") == page(), (
        "a profile changed: run python -m fsdpkit.publishing.centres"
    )


def test_it_has_every_cluster_with_the_date_of_its_facts() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| [")]
    assert len(rows) == len(assets.available("site")) - 2  # generic and local are no centre's
    assert all(line.split(" | ")[4][:2] == "20" for line in rows)
