"""A link in a document leads somewhere: the file is there, and the heading in it."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import anchors, documents, links, read
from tests.packaging.installation import ROOT


def broken(document: str) -> list[str]:
    return [link for link in links(document) if not leads_somewhere(link, document)]


def leads_somewhere(link: str, document: str) -> bool:
    address, hash_, anchor = link.partition("#")
    target = (ROOT / document).parent / address if address else ROOT / document
    target = target.resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    in_page = hash_ and target.suffix == ".md"
    return not in_page or anchor in anchors(target.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("document", documents())
def test_every_link_and_anchor_leads_somewhere(document: str) -> None:
    assert broken(document) == []


def test_every_page_is_in_the_navigation() -> None:
    """`make docs` would build it, and nobody would find it."""
    named = set(re.findall(r"[\w/.-]+\.md", read("mkdocs.yml")))
    pages = {name.removeprefix("docs/") for name in documents() if name.startswith("docs/")}
    one_a_cause = {name for name in pages if re.fullmatch(r"failures/(?!index).*", name)}
    assert pages - one_a_cause - named == set(), "add them to nav in mkdocs.yml"


def test_the_page_of_every_cause_is_linked_from_the_first() -> None:
    pages = {n.rpartition("/")[2] for n in documents() if n.startswith("docs/failures/")}
    assert pages - {"index.md"} - set(links("docs/failures/index.md")) == set()
