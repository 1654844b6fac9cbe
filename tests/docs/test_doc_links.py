"""A link in a document leads somewhere: the file is there, and the heading in it."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import anchors, documents, links, read
from tests.packaging.installation import ROOT


def broken(document: str) -> list[str]:
    here = (ROOT / document).parent
    wrong = []
    for link in links(document):
        address, hash_, anchor = link.partition("#")
        target = (here / address).resolve() if address else ROOT / document
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(link)
        elif hash_ and target.suffix == ".md":
            if anchor not in anchors(target.relative_to(ROOT).as_posix()):
                wrong.append(link)
    return wrong


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
