"""A run made from a function (`fsdpkit.run`): what is called, and what became of it.

The submitter writes `call.pkl` to the run's directory: the function, its arguments, and where its
modules were found. Its digest is in the job's arguments, which the script passes to the nodes, so a
rank loads no other. In the attempt's directory each rank leaves `result-<rank>.pkl`, or
`raised-<rank>.json`, which is text. A pickle is opened only if it belongs to the reader and nobody
else could have written it.

Ranks that stay (`KeptCalls`) are handed a secret in `call.pkl`, with which every later call is
signed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.errors import DamagedError
from fsdpkit.runs.layout import AttemptPaths, Named, write_atomically, write_new
from fsdpkit.runs.reading import open_own, record_in

ENTRY = "call_function.py"
"""The script of such a job, by which it is known."""
_SIGNATURE = hashlib.sha256().digest_size


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank calls."""

    function: bytes
    """Pickle of the function and its arguments."""
    path: list[str]
    """Directories in which the submitter found modules of their own."""
    source: tuple[str, list[str]] | None = None
    """File and lines of a function typed in a notebook, for its tracebacks."""


class CallFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank returned nothing."""

    kind: Literal["raised", "exit", "function", "result"]
    """It raised, called sys.exit, could not load the function, or its result could not be kept."""
    rank: Annotated[int, Meta(ge=0)]
    message: str
    traceback: str = ""
    time_ns: int = 0


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_call(path: Path, digest: str) -> Call:
    """Raises DamagedError if it is not the one submitted, OSError if it is missing, StorageError if
    somebody else could have written it."""
    with open_own(path) as file:
        content = file.read()
    if digest_of(content) != digest:
        raise DamagedError(
            f"{path} is not the function that was submitted: its digest differs, so it is not "
            f"loaded; submit again"
        )
    return msgspec.msgpack.decode(content, type=Call)


def forget(attempt: AttemptPaths, rank: int) -> None:
    """What the rank left when it was started before in this attempt. Raises OSError."""
    attempt.result(rank).unlink(missing_ok=True)
    attempt.raised(rank).unlink(missing_ok=True)


def write_raised(attempt: AttemptPaths, raised: CallFailure) -> None:
    """Raises OSError."""
    write_atomically(attempt.raised(raised.rank), msgspec.json.encode(raised))


def read_raised(attempt: AttemptPaths, ranks: int) -> list[CallFailure]:
    """What the ranks recorded, in the order of failure; unreadable ones are skipped."""
    told = (record_in(attempt.raised(rank), CallFailure) for rank in range(ranks))
    return sorted((one for one in told if one is not None), key=lambda raised: raised.time_ns)


def read_result(attempt: AttemptPaths, rank: int) -> Any:
    """Raises FileNotFoundError if the rank returned nothing, StorageError, OSError, and whatever
    the classes of a result raise when it is loaded."""
    with open_own(attempt.result(rank)) as file:
        return pickle.load(file)


@dataclass(frozen=True)
class KeptCalls:
    """Calls to ranks that stay, one after another: `<n>.pkl`, signed, and the answers in `<n>/`.

    The signature covers the number, so none is believed twice. Who writes a number first has it:
    the submitter a call, or its end, rank 0 the end for want of calls.
    """

    dir: Path
    secret: bytes = b""

    waiting = Named("waiting")
    """There while the ranks have nothing to do."""

    def answers(self, number: int) -> AttemptPaths:
        """Where ranks leave what they returned or raised."""
        return AttemptPaths(self.dir / str(number))

    def write(self, number: int, call: bytes) -> None:
        """Empty: ends the ranks. Raises FileExistsError if that number has another, OSError."""
        write_new(self._file(number), self._signature(number, call) + call)

    def is_there(self, number: int) -> bool:
        """Raises OSError."""
        # Opening a directory makes NFS ask its server; looking for one name would not.
        return self._file(number).name in os.listdir(self.dir)

    def answered(self, number: int) -> int:
        """How many ranks have left what they returned or raised. Raises OSError."""
        left = os.listdir(self.answers(number).dir)
        return sum(name.startswith(("result-", "raised-")) for name in left)

    def read(self, number: int) -> bytes:
        """Raises DamagedError if it is not the one that was submitted, StorageError, OSError."""
        with open_own(self._file(number)) as file:
            content = file.read()
        call = content[_SIGNATURE:]
        if not hmac.compare_digest(content[:_SIGNATURE], self._signature(number, call)):
            raise DamagedError(
                f"{self._file(number)} is not what was submitted: its signature is wrong, so it is "
                "not loaded"
            )
        return call

    def remove(self, number: int) -> None:
        """What ranks no longer need. Raises OSError."""
        shutil.rmtree(self.answers(number).dir)
        self._file(number).unlink()

    def _file(self, number: int) -> Path:
        return self.dir / f"{number}.pkl"

    def _signature(self, number: int, call: bytes) -> bytes:
        return hmac.new(self.secret, number.to_bytes(8, "big") + call, hashlib.sha256).digest()
