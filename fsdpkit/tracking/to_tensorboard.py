"""A training as TensorBoard's event file, made anew from metrics.jsonl each time, at once."""

from __future__ import annotations

import io
from typing import Any

from fsdpkit.errors import storage_errors
from fsdpkit.runs.layout import make_directory, write_atomically
from fsdpkit.tracking.trackers import Sending, SentLines, TrackerMark


def send_to_tensorboard(sending: Sending, before: TrackerMark | None) -> SentLines:
    """Raises StorageError if the file cannot be written."""
    directory = sending.files.tensorboard
    name = f"events.out.tfevents.{int(sending.created_s)}.fsdpkit"
    path = directory / name
    others = [one for one in directory.glob("events.out.tfevents.*") if one.name != name]
    if others:
        mark = TrackerMark(id=name, where=str(directory), lines=len(sending.lines))
        return SentLines(mark, 0, f"{directory}, which the training writes itself")
    with storage_errors(path, "written"):
        make_directory(directory)
        write_atomically(path, _events(sending))
    done = before.lines if before else 0
    new = sum(line.index >= done for line in sending.lines)
    mark = TrackerMark(id=name, where=str(directory), lines=sending.end)
    return SentLines(mark, new, str(directory))


def _events(sending: Sending) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    made = io.BytesIO()
    writer: Any = RecordWriter(made)
    writer.write(
        Event(wall_time=sending.created_s, file_version="brain.Event:2").SerializeToString()
    )
    for line in sending.lines:
        values = [Summary.Value(tag=k, simple_value=v) for k, v in line.values.items()]
        event = Event(wall_time=line.time_s, step=line.step, summary=Summary(value=values))
        writer.write(event.SerializeToString())
    return made.getvalue()
