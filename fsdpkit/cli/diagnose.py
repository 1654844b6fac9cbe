"""`fsdpkit diagnose`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run
from fsdpkit.cli.terminal import wrap
from fsdpkit.config import assets
from fsdpkit.errors import NotFoundError

if TYPE_CHECKING:
    from fsdpkit.reporting.diagnosis.diagnose import Diagnosis
    from fsdpkit.scheduling.run import Run

_WIDTH = 80
_LABEL = 11
_MOST = 5
"""Failures of other ranks, of those that followed and of those that did not."""
_LONGEST = 240
"""Characters of a quoted line."""
_AGAIN = "To go on: "


@answer(None)
def _diagnosis(found: Diagnosis) -> None:
    """Why a run ended as it did."""


@click.command("diagnose")
@on_run()
@click.option("--attempt", type=click.IntRange(min=0), help="Attempt number (default: the newest).")
@click.option("--task", type=click.IntRange(min=0), help="Array task.")
@click.option("--page", is_flag=True, help="Also print the page on the cause.")
@json_option(_diagnosis)
def command(run: Run, attempt: int | None, task: int | None, page: bool, as_json: bool) -> int:
    """Say why RUN (its id or a part of it, path, job number; default: your newest) ended as it did,
    and what to do.

    \b
      fsdpkit diagnose fsdp-t5-20261121-101500-3f2a
      fsdpkit diagnose 3f2a --attempt 0
      fsdpkit diagnose 3f2a --page

    Names the first failure, its rank and its node; follow-on errors of other ranks are listed
    separately. For an array it explains the first task that failed. Exit status: 0 whenever
    there is an answer, even if the run failed or the cause is unknown; 66 if there is no such
    run, task or attempt.
    """
    if page and as_json:
        raise click.UsageError("--page and --json: choose one; the answer's `page` names the file.")
    from fsdpkit.reporting.diagnosis.diagnose import diagnose
    from fsdpkit.reporting.diagnosis.evidence import MustRead, gather

    found = diagnose(gather(run, MustRead(task, attempt)), attempt)
    if as_json:
        _diagnosis(found)
    else:
        click.echo("\n".join(lines_of(found, run.dir)))
        if page and found.page is not None:
            click.echo(f"\n{_text_of(found.page)}", nl=False)
    return 0


def _text_of(page: str) -> str:
    """A packaged page, without its comments. Raises NotFoundError."""
    path = assets.packaged_dir() / page
    try:
        return re.sub(r"<!--.*?-->\n+", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    except OSError as error:
        raise NotFoundError(f"there is no page {path}: {error.strerror}") from error


def lines_of(found: Diagnosis, directory: Path) -> Iterator[str]:
    """For a person, within 80 columns: the sentence, what to do, then what it rests on."""
    yield from wrap(found.sentence, _WIDTH)
    if found.sharing is not None and found.task is not None:
        yield from wrap(_of_array(found), _WIDTH)
    advice, _, again = (found.action or "").partition(_AGAIN)
    yield from _labelled("what to do", [advice.strip()])
    yield from _labelled("to go on", [again])
    would_help = f"would a restart help? {found.again}" if found.again else ""
    yield from _labelled("again", [would_help])
    yield from _labelled("where", [_place_of(found)])
    for place, quote in enumerate(found.evidence):
        text = textwrap.shorten(quote.text, _LONGEST, placeholder=" …")
        yield from _labelled("" if place else "seen in", [quote.place(directory), text])
    yield from _labelled("also", _first_of(found.also))
    yield from _labelled("followed", _first_of(found.follow_on))
    yield from _labelled("before", found.earlier)
    yield from _labelled("looked at" if found.cause == "unknown" else "not read", found.looked_at)
    yield from _labelled("more", [f"{found.page} (--page prints it)" if found.page else ""])


def _first_of(failures: Sequence[str]) -> list[str]:
    more = len(failures) - _MOST
    return [*failures[:_MOST], *([f"and {more} more"] if more > 0 else [])]


def _of_array(found: Diagnosis) -> str:
    one = found.sharing == 1
    same = "it is the only one" if one else f"{found.sharing} are"
    more = f"; {found.unread_tasks} were not read" if found.unread_tasks else ""
    return f"This is task {found.task} of the array; of the tasks read, {same} in this state{more}."


def _place_of(found: Diagnosis) -> str:
    parts = [f"attempt {found.attempt}"] if found.attempt is not None else []
    parts += [f"rank {found.rank}"] if found.rank is not None else []
    parts += [found.node] if found.node else []
    return ", ".join(parts)


def _labelled(label: str, texts: Sequence[str]) -> Iterator[str]:
    """Each text behind the label or below it, folded; nothing if there is none."""
    for text in filter(None, texts):
        yield from wrap(text, _WIDTH, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
        label = ""
