"""`fsdpkit track` with the real MLflow, Weights & Biases and TensorBoard, none of which has a
network here: each point once, one run over all requeues, and nothing of the training touched."""

from __future__ import annotations

import http.server
import json
import math
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.track import Track, Tracker
from fsdpkit.errors import ConfigError, TrackerError
from fsdpkit.scheduling.run import Run
from fsdpkit.tracking.points import lines_of
from fsdpkit.tracking.sending import send, sending_of
from fsdpkit.tracking.trackers import SentLines
from tests.conftest import answer_of
from tests.programs import Fsdpkit
from tests.refusing_server import refusing_server
from tests.reporting.made_run import T0, made_run, starts, trains, write_lines

NAME = "t-20261121-101500-3f20"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Nine steps, of which 5 and 6 were done twice; NaN, words, and a line not yet whole."""
    made = made_run(tmp_path / "runs" / NAME, job={"name": "t", "args": ["--api-key", "hidden"]})
    task = made.paths.task()
    starts(task, 0, T0)
    trains(task, 1, 6, T0 + 10)
    trains(task, 5, 8, T0 + 90)
    odd = {"not_finite": {"loss": "nan"}, "my odd/name!": 2.5, "note": "a word", "flag": True}
    write_lines(task.metrics, {"time_s": T0 + 99, "step": 9, **odd}, '{"time_s": 1, "st')
    return made


def sent_to(run: Run, to: Tracker, task: int | None = None, **asked: Any) -> SentLines:
    return send(sending_of(run, task, Track(to=[to], **asked)), to)


def grow(run: Run) -> None:
    """The rest of the line that was being written, and a step more."""
    metrics = run.paths.task().metrics
    metrics.write_bytes(metrics.read_bytes().rpartition(b"\n")[0] + b"\n")
    trains(run.paths.task(), 10, 10, T0 + 110)


def test_of_steps_done_again_the_later_count(run: Run) -> None:
    lines = lines_of(run.paths.task().metrics)
    assert [line.step for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [line.index for line in lines] == [0, 1, 2, 3, 6, 7, 8, 9, 10]
    assert math.isnan(lines[-1].values.pop("loss"))
    assert lines[-1].values == {"my odd/name!": 2.5}
    assert lines_of(run.dir / "none") == []


# ---- MLflow


def in_mlflow(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    names = client.get_run(run_id).data.metrics
    return {
        name: [(one.step, one.value) for one in client.get_metric_history(run_id, name)]
        for name in names
    }


def test_mlflow_has_each_point_once_in_one_run(run: Run) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{run.dir.parent / 'mlflow.db'}"
    first = sent_to(run, "mlflow")
    assert (first.lines, sent_to(run, "mlflow").lines) == (9, 0)
    grow(run)
    run.paths.task().track.unlink()  # a copy of the run that was never sent: MLflow is asked
    again = sent_to(run, "mlflow")
    assert (again.lines, again.mark.id) == (1, first.mark.id)
    found = in_mlflow(uri, first.mark.id)
    assert [step for step, _ in found["loss"]] == list(range(1, 11))
    assert math.isnan(found["loss"][8][1])
    assert found["my odd/name_"] == [(9, 2.5)]
    told = MlflowClient(uri).get_run(first.mark.id)
    assert (told.info.status, told.info.run_name) == ("FINISHED", NAME)
    assert "hidden" not in str(told.data.params)
    assert told.data.params["name"] == "t"
    assert stat.S_IMODE((run.dir.parent / "mlflow.db").stat().st_mode) == 0o600


def test_tasks_of_an_array_are_runs_of_their_own(tmp_path: Path) -> None:
    made = made_run(tmp_path / "runs" / NAME, array=[3, 5])
    for task in (3, 5):
        trains(made.paths.task(task), 1, 2, T0)
    ids = {sent_to(made, "mlflow", task, uri=str(tmp_path / "files")).mark.id for task in (3, 5)}
    assert len(ids) == 2


# ---- Weights & Biases


def records_of(log: bytes) -> Iterator[bytes]:
    """W&B's file is LevelDB's log after seven bytes: blocks of 32 KiB, in which a record's parts
    have a checksum (4 bytes), a length (2) and a kind (1: whole, 2: first, 3: middle, 4: last)."""
    at, parts = 7, []
    while at + 7 <= len(log):
        if (left := (1 << 15) - at % (1 << 15)) < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", log, at + 4)
        parts.append(log[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def offline_runs(run: Run) -> list[tuple[str, list[dict[str, Any]]]]:
    """Of each directory that `wandb sync` would send, the run's id and what was logged."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for file in sorted((run.dir / "wandb").glob("offline-run-*/*.wandb")):
        rows, who = [], ""
        for data in records_of(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            who = record.run.run_id or who
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items}
                )
        found.append((who, rows))
    return found


def test_wandb_offline_has_each_line_once_under_one_id(run: Run) -> None:
    first = sent_to(run, "wandb", offline=True)
    assert (first.lines, sent_to(run, "wandb", offline=True).lines) == (9, 0)
    grow(run)
    again = sent_to(run, "wandb", offline=True)
    assert (again.lines, again.mark.id) == (1, first.mark.id)
    runs = offline_runs(run)
    assert {who for who, _ in runs} == {first.mark.id}
    rows = [row for _, found in runs for row in found]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert rows[3]["loss"] == pytest.approx(5.0 / 4)
    assert rows[3]["_timestamp"] == pytest.approx(T0 + 14)


# ---- TensorBoard


def test_tensorboard_reads_the_numbers_at_their_steps(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert sent_to(run, "tensorboard").lines == 9
    grow(run)
    assert sent_to(run, "tensorboard").lines == 1
    (file,) = run.paths.task().tensorboard.iterdir()
    events = EventAccumulator(str(file.parent))
    events.Reload()
    scalars = events.Scalars("loss")
    assert [one.step for one in scalars] == list(range(1, 11))
    assert scalars[3].wall_time == T0 + 14
    assert scalars[3].value == pytest.approx(5.0 / 4)
    (file.parent / "events.out.tfevents.1.of-the-trainer").write_bytes(b"")
    file.unlink()
    assert sent_to(run, "tensorboard").lines == 0


# ---- Whose word says where it goes


@dataclass
class Hearing:
    """A stranger's server, and the keys that it was sent."""

    url: str
    keys: list[str]


@pytest.fixture
def hearing() -> Iterator[Hearing]:
    found: list[str] = []

    class Hears(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            found.append(self.headers.get("authorization") or "none")
            self.send_response(401)
            self.end_headers()

        do_GET = do_PUT = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hears) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Hearing(f"http://127.0.0.1:{server.server_port}", found)
        server.shutdown()


@pytest.fixture
def sams(run: Run) -> Callable[..., Run]:
    """A run that another user made, whose job names trackers."""

    def make(**track: Any) -> Run:
        run.paths.job.write_text(json.dumps({"name": "t", "track": track}))
        owned_by(12002, run)
        return run

    if os.geteuid() != 0:
        pytest.skip("only root makes a run of somebody else")
    return make


def owned_by(user: int, run: Run) -> None:
    os.chown(run.dir, user, user)
    os.chown(run.paths.job, user, user)


def test_credentials_never_go_to_a_server_that_another_s_run_names(
    sams: Callable[..., Run], fsdpkit: Fsdpkit, hearing: Hearing
) -> None:
    theirs = sams(to=["mlflow"], uri=hearing.url)
    keys = {"MLFLOW_TRACKING_TOKEN": "alex-s", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = fsdpkit("track", str(theirs.dir), env=keys)
    assert (done.returncode, hearing.keys) == (65, [])
    assert f"names {hearing.url}, but others than you can change {theirs.dir}" in done.stderr
    assert "set MLFLOW_TRACKING_URI" in done.stderr


def test_what_goes_with_another_s_run_is_in_the_viewer_s_directories(
    sams: Callable[..., Run], fsdpkit: Fsdpkit, tmp_path: Path, isolated_user: Path
) -> None:
    bad, own = f"sqlite:///{tmp_path}/theirs.db", f"sqlite:///{tmp_path}/mine.db"
    theirs = sams(to=["mlflow", "tensorboard", "wandb"], uri=bad, entity="sams", offline=True)
    before = set(theirs.dir.iterdir())
    done = fsdpkit("track", str(theirs.dir), env={"MLFLOW_TRACKING_URI": own}, status=0)
    assert f"names {bad}, sams, but others" in done.stderr
    assert not (tmp_path / "theirs.db").exists()
    assert set(theirs.dir.iterdir()) == before
    (place,) = (isolated_user / "state" / "tracked").iterdir()
    assert {path.name for path in place.iterdir()} == {"track.json", "tensorboard", "wandb"}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert sent_to(theirs, "mlflow", uri=own).lines == 0
    marks = json.loads((place / "track.json").read_text())["trackers"]
    owned_by(0, theirs)  # as if the viewer had a run of the same name: it is another in the tracker
    assert sent_to(theirs, "mlflow", uri=own).mark.id != marks["mlflow"]["id"]


def test_own_defaults_say_where_another_s_run_goes(
    sams: Callable[..., Run], isolated_user: Path
) -> None:
    theirs = sams(uri="http://sams", entity="sams")
    defaults = isolated_user / "config" / "defaults.toml"
    defaults.parent.mkdir(exist_ok=True)
    defaults.write_text('[track]\nuri = "http://mine"\nentity = "us"\n')
    found = sending_of(theirs, None, Track()).destination
    assert (found.uri, found.entity) == ("http://mine", "us")
    defaults.chmod(0o666)
    found = sending_of(theirs, None, Track()).destination
    assert found.entity is None
    with pytest.raises(ConfigError, match="names http://sams, sams"):
        _ = found.uri


@pytest.mark.parametrize("mode", [0o666, 0o644])
def test_a_job_file_that_others_can_write_names_no_server(run: Run, mode: int) -> None:
    run.paths.job.write_text('{"track": {"uri": "http://named"}}')
    run.paths.job.chmod(mode)
    found = sending_of(run, None, Track()).destination
    if mode == 0o644:
        assert found.uri == "http://named"
    else:
        with pytest.raises(ConfigError, match=r"names http://named, .*job\.json"):
            _ = found.uri
    assert sending_of(run, None, Track(uri="http://asked")).destination.uri == "http://asked"


def test_a_database_that_others_could_have_made_is_not_the_one_beside_the_runs(run: Run) -> None:
    assert sending_of(run, None, Track()).destination.uri == f"sqlite:///{run.dir.parent}/mlflow.db"
    run.dir.parent.chmod(0o1777)
    assert str(run.dir.parent) not in sending_of(run, None, Track()).destination.uri


def test_wandb_reads_no_settings_of_the_run_or_of_where_one_stands(
    run: Run, fsdpkit: Fsdpkit, hearing: Hearing, refusing: str
) -> None:
    """A file of the user's own names another server, so that nothing leaves this machine."""
    (run.dir / "wandb").mkdir()
    (run.dir / "wandb" / "settings").write_text(f"[default]\nbase_url = {hearing.url}\n")
    (run.dir / "own").mkdir()
    (run.dir / "own" / "settings").write_text(f"[default]\nbase_url = {refusing}\n")
    env = {"WANDB_API_KEY": "a" * 40, "WANDB_CONFIG_DIR": str(run.dir / "own")}
    done = fsdpkit("track", str(run.dir), "--to", "wandb", env=env, cwd=run.dir)
    assert "401" in done.stderr
    assert hearing.keys == []


# ---- What can go wrong


@pytest.fixture
def refusing() -> Iterator[str]:
    with refusing_server() as address:
        yield address


def untouched(run: Run) -> dict[str, bytes]:
    """What the training wrote."""
    return {str(p): p.read_bytes() for p in run.dir.rglob("*.json*") if "wandb" not in p.parts}


def test_a_wrong_key_is_said_in_the_tracker_s_words(
    fsdpkit: Fsdpkit, run: Run, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = untouched(run)
    with pytest.raises(TrackerError, match="wrong key"):
        sent_to(run, "mlflow", uri=refusing)
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of this process, which knows the run
    env = {"WANDB_BASE_URL": refusing, "WANDB_API_KEY": "a" * 40}
    done = fsdpkit("track", str(run.dir), "--to", "wandb", env=env, status=69)
    (said,) = done.stderr.splitlines()
    assert "401" in said
    assert "wandb login" in said
    assert untouched(run) == before


def test_without_a_network_it_is_said_once_and_nothing_is_lost(fsdpkit: Fsdpkit, run: Run) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        done = fsdpkit("track", str(run.dir), "--to", "mlflow", "--uri", uri, env=env, status=69)
    (said,) = done.stderr.splitlines()
    assert uri in said
    done = fsdpkit("track", str(run.dir), "--to", "mlflow", "--json")
    assert answer_of(done)["sent"][0]["lines"] == 9


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"fsdpkit\[wandb\]"):
        sent_to(run, "wandb")


def test_a_torn_mark_sends_nothing_twice(run: Run) -> None:
    first = sent_to(run, "mlflow")
    for torn in ("", "{", '{"trackers": 3}', "[" * 9999):
        run.paths.task().track.write_text(torn)
        again = sent_to(run, "mlflow")
        assert (again.mark.id, again.lines) == (first.mark.id, 0)


def test_nobody_is_asked_when_no_tracker_is_named(fsdpkit: Fsdpkit, run: Run) -> None:
    done = fsdpkit("track", str(run.dir), status=2)
    assert "track.to" in done.stderr
