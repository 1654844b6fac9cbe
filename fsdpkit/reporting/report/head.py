"""The head of a report: whether it goes well, how far it is, how fast, and what it used.

What is not known is left out. All of it is as of the moment at which the page is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdpkit.listing import first_of, spans
from fsdpkit.reporting.pending import PendingEvidence, why
from fsdpkit.reporting.predictions import WORDS, Prediction, What
from fsdpkit.reporting.status.progress import progress_of
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.training import Training
from fsdpkit.reporting.words import duration, number
from fsdpkit.runs.uses import Uses
from fsdpkit.scheduling.states import JobState

_QUIET_S = 60.0
"""Without a step, where ten steps take no longer."""
Number = tuple[str, str]
"""(what, value)."""


@dataclass(frozen=True)
class Headline:
    """How the run stands: a few words, whether that is good, and what else matters at once."""

    words: str
    tone: str
    """good, bad, open."""
    numbers: tuple[Number, ...]


def state_in_words(one: Training) -> tuple[str, str]:
    """(words, tone) of one training."""
    state, attempts = one.state, one.history.attempts
    ending = attempts[-1].ending if attempts else None
    if state is None:
        if ending is not None and ending.cause == "done":
            return "finished", "good"
        if ending is not None:
            return f"ended: {ending.cause}", "bad"
        return "state not known: the scheduler does not say", "open"
    if state.phase == "running":
        return "running", "open"
    if state.phase == "pending":
        return ("queued again" if attempts else "waiting in the queue"), "open"
    if state.succeeded:
        return "finished", "good"
    if state.phase == "ended":
        return state.describe(), "bad" if state.outcome is None else "open"
    return f"in a state that fsdpkit does not know: {state.state}", "open"


def headline(
    trainings: Sequence[Training],
    now_s: float,
    spent: Uses | None = None,
    predicted: Sequence[Prediction] = (),
    printed: Printed | None = None,
) -> Headline:
    """predicted, printed: what `plan` and the output of a single run say."""
    if len(trainings) != 1:
        return _of_array(trainings, spent)
    (one,) = trainings
    words, tone = state_in_words(one)
    if not one.history.attempts:
        words += "; it has not started" if tone == "open" else "; it never started"
    if words == "running":
        words, tone = _running(one, now_s)
    if loss_is := _loss_is(one):
        words, tone = f"{words}; its loss is {loss_is}", "bad"
    words = "; ".join(filter(None, [words[:1].upper() + words[1:], _started_again(one)]))
    numbers = [*_progress(one, now_s), *_losses(one), *_speed(one, predicted), *_used(spent)]
    if printed is not None and printed.words and one.metrics.last("step") is None:
        numbers.insert(0, (printed.source, printed.words))
    return Headline(words, tone, tuple(numbers))


def _running(one: Training, now_s: float) -> tuple[str, str]:
    times, step_s = one.metrics.steps["time_s"], one.metrics.last("step_time_s")
    if not len(times):
        return "running", "open"
    ago_s = max(0.0, now_s - float(times[-1]))
    words = f"newest step {duration(ago_s)} before this page was made"
    fine = ago_s <= max(_QUIET_S, 10 * (step_s or 0.0))
    return f"running; {words}", "good" if fine else "open"


def _loss_is(one: Training) -> str | None:
    """What the newest loss is, if it is no number."""
    found = one.metrics.not_finite.get("loss")
    return found[-1][1] if found and found[-1][0] == one.metrics.last("step") else None


def _started_again(one: Training) -> str:
    """How often, in words; empty if never."""
    attempts = one.history.attempts
    resumed = len({attempt.job_id for attempt in attempts}) - 1
    counts = {
        "its ranks were started again": sum(max(0, len(a.launches) - 1) for a in attempts),
        "it was queued again": len(attempts) - 1 - resumed,
        "it was resumed": resumed,
    }
    return ", ".join(f"{what} {_times(count)}" for what, count in counts.items() if count > 0)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _progress(one: Training, now_s: float) -> Iterator[Number]:
    """Of the steps that are to be done, how many are, and what time is left or was taken."""
    step, planned, state = one.metrics.last("step"), one.planned_steps, one.state
    if step is not None:
        yield "steps", f"{step:,.0f}" + (f" of {planned:,.0f}" if planned else "")
    times = one.metrics.steps["time_s"]
    if state is not None and state.phase == "ended" and len(times):
        took_s = float(times[-1]) - one.run.record.created_s
        yield "from submission to the last step", duration(took_s)
    if state is not None and state.phase == "pending":
        yield from _start(state, now_s)
    if state is None or state.phase != "running":
        return
    progress = progress_of(one.history, one.job)
    left_s = (progress.eta_s or 0.0) - max(0.0, now_s - (progress.updated_s or now_s))
    limit_s = max(0.0, state.end_s - now_s) if state.end_s else None
    if limit_s is not None and left_s > limit_s:
        yield f"to the time limit; its steps need {duration(left_s)}", duration(limit_s)
    elif left_s > 0:
        yield "left", duration(left_s)
    elif limit_s is not None:
        yield "to the time limit", duration(limit_s)


def _start(state: JobState, now_s: float) -> Iterator[Number]:
    in_s = (state.start_s or 0.0) - now_s
    if in_s > 0 and not why(PendingEvidence(reason=state.reason)).never:
        yield "until Slurm expects to start it", duration(in_s)


def _losses(one: Training) -> list[Number]:
    losses = {"training loss": one.metrics.last("loss"), "evaluation loss": one.eval_loss}
    return [(name, number(loss, 4)) for name, loss in losses.items() if loss is not None]


_SPEEDS: tuple[What, ...] = ("tokens_per_s", "step_time_s")


def _speed(one: Training, predicted: Sequence[Prediction]) -> list[Number]:
    """The median, beside what was planned for its newest job, and MFU."""
    newest = predicted[-1] if predicted else None
    for what in _SPEEDS:
        planned = newest.figure(what) if newest is not None else None
        measured = planned.measured if planned is not None else None
        measured = one.metrics.typical(what) if measured is None else measured
        if measured is None:
            continue
        words = [f"{WORDS[what]}, median"]
        if planned is not None:
            off = "" if planned.error is None else f" ({planned.error:+.0%})"
            words.append(f"planned {number(planned.predicted)}{off}")
        if (mfu := one.metrics.typical("mfu")) is not None:
            words.append(f"MFU {mfu:.1%}")
        return [("; ".join(words), number(measured))]
    return []


def _used(spent: Uses | None) -> list[Number]:
    if spent is None or not spent.granted_h:
        return []
    granted, computed = spent.shown(spent.granted_h), spent.share("training")
    if computed is None:
        return [(f"{spent.shown_unit} granted", granted)]
    lost = spent.share("lost", "repeated") or 0.0
    words = f", {lost:.0%} lost or repeated after failures" if lost >= 0.005 else ""
    return [(f"of {granted} {spent.shown_unit} computed{words}", f"{computed:.0%}")]


def _of_array(trainings: Sequence[Training], spent: Uses | None) -> Headline:
    tasks: dict[tuple[str, str], list[int]] = {}
    for one in trainings:
        tasks.setdefault(state_in_words(one), []).append(one.task or 0)
    parts = []
    for (words, tone), of in sorted(tasks.items(), key=lambda item: -len(item[1])):
        which = first_of(spans(of).split(","), 4)
        named = f" (task{'s' * (len(of) > 1)} {which})" if tone != "good" else ""
        parts.append(f"{len(of):,} {words}{named}")
    tones = {tone for _, tone in tasks}
    tone = "bad" if "bad" in tones else "open" if "open" in tones else "good"
    words = f"Array of {len(trainings):,} tasks: {', '.join(parts)}"
    return Headline(words, tone, (*_lowest(trainings), *_used(spent)))


def _lowest(trainings: Sequence[Training]) -> Iterator[Number]:
    """The task with the lowest loss: of evaluations, where there are any."""
    evaluated = {one.task: one.eval_loss for one in trainings}
    trained = {one.task: one.metrics.last("loss") for one in trainings}
    for name, losses in (("evaluation", evaluated), ("training", trained)):
        known = {task: loss for task, loss in losses.items() if loss is not None}
        if len(known) > 1:
            task = min(known, key=lambda one: known[one])
            yield f"lowest {name} loss, of task {task}", number(known[task], 4)
            return
