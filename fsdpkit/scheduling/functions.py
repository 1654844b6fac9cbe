"""A function as a job: `submit_function` makes the run.

returned.py reads what its ranks left; fsdpkit.run waits between the two and shows how far it is
(fsdpkit/interactive).
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from fsdpkit.config import assets
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import UsageError, storage_errors
from fsdpkit.runs import calls
from fsdpkit.runs.layout import RunPaths, write_atomically

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run

_OWN = ("job", "nodes", "gpus", "sets", "args", "array", "snapshot")
"""Of a submission's options, those that a function has no use for or that are named below."""
# Nothing is saved on the way, so what was cut short would only begin anew.
_OWN_RETRY = ("retry.on_crash=stop", "retry.on_time_limit=stop")
MOST_MB = 100
"""Of the function and its arguments: data belongs into files."""


def submit_function(
    function: Callable[..., Any],
    /,
    *args: Any,
    nodes: int | None = 1,
    gpus: int | None = 1,
    sets: Sequence[str] = (),
    result_mb: int = 1000,
    **options: Any,
) -> Run:
    """Submit a job whose ranks each call `function(*args)`, and return without waiting for it.

    A rank that raises ends the job, and so does the time limit, unless `sets` has another
    `retry.on_crash` or `retry.on_time_limit`.

    Args:
        function: Called on each rank, with torchrun's variables (`RANK`, `WORLD_SIZE`, …) set. It
            is pickled (cloudpickle) with the variables it uses; with its arguments 100 MB at most.
        *args: Its arguments. For keyword arguments use `functools.partial`.
        nodes: Nodes, standby nodes not counted; None: with `on`, those that are free.
        gpus: GPUs per node; each gets one rank. None: with `on`, what the hold has.
        sets: `KEY=VALUE` each, for any key of a job file.
        result_mb: The most that one rank may return, in MB (10⁶ bytes), pickled.
        **options: Of `submit`: cluster, account, partition, time, after, runs, spare, by_plan,
            here, on.

    Returns:
        The run; its `returned()` waits for what the ranks return.

    Raises:
        UsageError: The function cannot be pickled, is too large, or an option is unknown.
        FsdpkitError: What else `submit` raises.

    Examples:
        A mistyped option is not taken for an argument of the function:

        >>> import fsdpkit
        >>> fsdpkit.submit_function(print, "hello", times="30")
        Traceback (most recent call last):
        fsdpkit.errors.UsageError: times= is not an option of a submission. Did you mean ...
    """
    from fsdpkit.config.trust import Consent
    from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan

    _refuse_unknown(options)
    call = pickled(function, args)
    entry = assets.package_dir() / "launching" / "entries" / calls.ENTRY
    request = SubmitRequest(
        job=str(entry),
        nodes=nodes,
        gpus=gpus,
        sets=[*_OWN_RETRY, f"name={_job_name(function)}", *sets],
        **options,
        args=("--digest", calls.digest_of(call), "--result-mb", str(result_mb)),
    )
    consent = Consent()
    decided, _ = plan(request, consent)
    return submit_plan(decided, request.runs, consent, prepare=lambda paths: _write(paths, call))


def _refuse_unknown(options: dict[str, Any]) -> None:
    """Raises UsageError: the function's own keywords would otherwise be lost among them."""
    from fsdpkit.scheduling.submission import SubmitRequest

    known = [one.name for one in fields(SubmitRequest) if one.name not in _OWN]
    for name in options.keys() - set(known):
        raise UsageError(
            f"{name}= is not an option of a submission.{nearest(name, known)} Pass "
            f"keyword arguments of the function through functools.partial"
        )


def _write(paths: RunPaths, call: bytes) -> None:
    with storage_errors(paths.call, "written"):
        write_atomically(paths.call, call, private=True)


def pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A `Call`. Raises UsageError for what no other process could call."""
    import cloudpickle

    if not callable(function):
        raise UsageError(
            f"{function!r} cannot be called: give the function itself, then its arguments"
        )
    name = _name_of(function)
    try:
        content = cloudpickle.dumps((function, args))
    except Exception as error:
        raise UsageError(
            f"{name} and its arguments cannot be pickled ({type(error).__name__}: {error}): "
            f"create inside the function what cannot leave this process, such as a lock or an "
            f"open file"
        ) from error
    if len(content) > MOST_MB * 1_000_000:
        raise UsageError(
            f"{name} and its arguments have {len(content) / 1e6:,.0f} MB, more than the {MOST_MB} "
            "that fit into a run: pass a path, and let the function read the file"
        )
    call = calls.Call(function=content, path=_own_path(), source=_source_of(function))
    return msgspec.msgpack.encode(call)


def _own_path() -> list[str]:
    """Where this process finds modules that are not installed: a job may have another place."""
    installed = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    places = dict.fromkeys(os.path.abspath(place) for place in sys.path)
    return [p for p in places if not any(p == top or p.startswith(f"{top}/") for top in installed)]


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _job_name(function: Callable[..., Any]) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "", _name_of(function))[:40].lstrip("_") or "function"


def _source_of(function: Callable[..., Any]) -> tuple[str, list[str]] | None:
    """Where a notebook's cell is the file: nobody else has it."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or os.path.exists(code.co_filename):
        return None
    lines = linecache.getlines(code.co_filename)
    return (code.co_filename, lines) if lines else None
