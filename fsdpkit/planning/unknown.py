"""Stand-ins for values that do not exist on the tape, and for kernels that cannot be followed.

Tensors on the tape have shapes and no values. Where a program reads one, or a size depends on one,
the tape goes on with an answer that is as large as possible, or as small; the two tapes bound the
sizes. A kernel without a fake version is taken to return what its first tensor looks like; nothing
bounds that, so the plan is then a lower bound. Each place is named by its line.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch._library import simple_registry as registry
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

import fsdpkit
from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.tape import Trust

Side = Literal["most", "least"]
"""most: a number that is read is 1, a condition holds, a size is the largest possible; least: 0,
False and none."""
NOT_THE_PROGRAM = (
    str(Path(torch.__file__).parent),
    str(Path(fsdpkit.__file__).parent),
    str(Path(torch.__file__).parents[1] / "triton"),
)
"""Where files are that launch what a person wrote, and are not it."""
_CALLS_THE_STEP = str(Path(__file__).with_name("taping.py"))
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
_OWN_TRAINING = str(Path(fsdpkit.__file__).parent / "training")
MOST_READS = 4096
"""Of one line in one plan: beyond, it is a loop that a value is to end."""
_OWN_KERNELS = ("aten", "prims", "c10d", "_c10d_functional", "fsdp", "rngprims", "higher_order")

_aten = torch.ops.aten


class Unknown:
    """Answers for one tape, on one side; `assumed` and `lacking` say what was answered and where.
    assumed: what a value decides, so that the other side is worth a tape of its own. lacking: what
    could not be followed, so that a plan of it is a lower bound."""

    def __init__(self, side: Side, trust: Trust = "kernels") -> None:
        self._side, self._trust, self._reads = side, trust, Counter[str]()
        self.assumed: list[str] = []
        self.lacking: list[str] = []

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation. Raises FsdpkitError for a loop that never ends, and for
        types that its kernel refuses and its fake version does not."""
        if func in _OF_ONE_TYPE:
            _check_types(func, args)
        if answer := _ANSWERS.get(func):
            if isinstance(args[0], FakeTensor):
                return answer(self, func, args, kwargs)
        elif func in _INDEXING and any(map(_is_mask, tree_iter(args[1]))):
            if isinstance(args[0], FakeTensor):
                return self._indexed(func, args, kwargs)
        elif func.namespace not in _OWN_KERNELS:
            return self._foreign(func, args, kwargs)
        elif not func._schema.returns and func._schema.is_mutable:
            # It makes nothing, whether or not it has a fake version: torch's fused SGD has none.
            with suppress(NotImplementedError):
                func(*args, **kwargs)
            return None
        return func(*args, **kwargs)

    # What a value decides

    def _value(self, func: Any, args: Any, kwargs: Any) -> Any:
        dtype = args[0].dtype
        if args[0].device.type == "cpu" and _asked_by_an_optimizer():
            return 1.0 if dtype.is_floating_point else 1  # its count of steps
        self._note(f"a {str(dtype).removeprefix('torch.')} is read")
        number = 1 if self._side == "most" else 0
        if func is _aten.equal.default or dtype is torch.bool:
            return bool(number)
        return float(number) if dtype.is_floating_point else number

    def _rows(self, most: int, what: str) -> int:
        self._note(f"{what} gives from 0 to {most:,} elements")
        return most if self._side == "most" else 0

    def _nonzero(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        found: Tensor = args[0]
        rows = self._rows(found.numel(), "nonzero")
        return found.new_empty((rows, found.ndim), dtype=torch.int64)

    def _selected(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        found, mask = args[0], args[1]
        most = (found.new_empty(()).bool().expand(found.shape) | mask.bool()).numel()
        result: Tensor = found.new_empty((self._rows(most, "masked_select"),))
        return result

    def _unique(self, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        found: Tensor = args[0]
        rows = self._rows(found.numel(), "unique")
        return found.new_empty((rows,)), _numbers(found, *found.shape), _numbers(found, rows)

    def _unique_slices(self, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        found, dim = args[0], args[1]
        rows = self._rows(found.shape[dim], "unique")
        shape = [*found.shape]
        shape[dim] = rows
        return found.new_empty(shape), _numbers(found, found.shape[dim]), _numbers(found, rows)

    def _counts(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """As many as are asked for: a larger number among them would make more."""
        found: Tensor = args[0]
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        if not least:
            self._note("bincount without a minlength is taken to give one element")
        like = found if weights is None else weights
        return like.new_empty((max(1, least),), dtype=None if weights is not None else torch.int64)

    def _indexed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A mask as what it stands for: a list of places for each of its dimensions."""
        places: list[Any] = []
        for index in args[1]:
            if _is_mask(index):
                rows = self._rows(index.numel(), "a mask")
                places += [index.new_empty((rows,), dtype=torch.int64)] * index.ndim
            else:
                places.append(index)
        return func(args[0], places, *args[2:], **kwargs)

    def _reduced(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """A loss of one number. Its kernel first writes each sample's in the same storage, which
        keeps that size (ATen/native/Loss.cpp)."""
        loss: Tensor = func(*args, **kwargs)
        if loss.ndim:
            return loss
        return loss.new_empty((args[0].numel(),)).as_strided((), ())

    # What nobody can follow

    def _foreign(self, func: Any, args: Any, kwargs: Any) -> Any:
        first = next((t for t in tree_iter((args, kwargs)) if isinstance(t, FakeTensor)), None)
        returns = [str(each.type) for each in func._schema.returns]
        guessed = first is not None and all(kind == "Tensor" for kind in returns)
        reason = ""
        if not guessed or self._trust == "kernels" or _declares_a_fake_version(func):
            try:
                return func(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if not guessed:
                    raise
                reason = str(error)
        note = (
            f"{func.namespace}::{func.overloadpacket.__name__} in {caller()} has no fake "
            "version: its result is taken to be like its first tensor, and what it allocates "
            "inside is not seen"
        )
        if reason and "fake" not in reason.lower():
            note += f" ({reason:.80})"
        if note not in self.lacking:
            self.lacking.append(note)
        made = [torch.empty_like(first) for _ in returns]  # type: ignore[arg-type]
        return made[0] if len(made) == 1 else tuple(made) or None

    def read_address(self, tensor: Tensor, usual: Callable[[Tensor], int]) -> int:
        """`tensor.data_ptr()`: torch asks it of fakes to compare them; who else does would read."""
        asker = sys._getframe(2).f_code.co_filename
        if isinstance(tensor, FakeTensor) and not asker.startswith(NOT_THE_PROGRAM):
            raise FsdpkitError("a kernel asks for the address of a tensor, which has none here")
        return usual(tensor)

    def _note(self, what: str) -> None:
        where = caller()
        self._reads[where] += 1
        if self._reads[where] > MOST_READS:
            raise FsdpkitError(f"{where}: a loop that only a value would end ({what})")
        note = f"{what} in {where}"
        if note not in self.assumed:
            self.assumed.append(note)


def _declares_a_fake_version(func: Any) -> bool:
    """One of its own, and not its kernel for all devices, which may read what is not there."""
    name = func.name()
    fake = registry.singleton.find(name.partition(".")[0]).fake_impl
    return bool(fake.kernel) or torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")


def _numbers(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.int64)


def _is_mask(index: Any) -> bool:
    return isinstance(index, FakeTensor) and index.dtype in (torch.bool, torch.uint8)


_ANSWERS: dict[Any, Callable[[Unknown, Any, Any, Any], Any]] = {
    _aten._local_scalar_dense.default: Unknown._value,
    _aten.equal.default: Unknown._value,
    _aten.bincount.default: Unknown._counts,
    _aten.nonzero.default: Unknown._nonzero,
    _aten.masked_select.default: Unknown._selected,
    _aten._unique2.default: Unknown._unique,
    _aten.unique_consecutive.default: Unknown._unique,
    _aten.unique_dim.default: Unknown._unique_slices,
    _aten.mse_loss.default: Unknown._reduced,
    _aten.smooth_l1_loss.default: Unknown._reduced,
    _aten.soft_margin_loss.default: Unknown._reduced,
    _aten.binary_cross_entropy.default: Unknown._reduced,
}
_INDEXING = (_aten.index.Tensor, _aten._index_put_impl_.default, _aten.index_put_.default,
             _aten.index_put.default)  # fmt: skip
_OF_ONE_TYPE = frozenset({
    _aten.mm.default, _aten.addmm.default, _aten.mv.default, _aten.addmv.default,
    _aten.index_add.default, _aten.index_add_.default, _aten.index_copy.default,
    _aten.index_copy_.default, _aten.index_put.default, _aten.index_put_.default,
})  # fmt: skip


def _check_types(func: Any, args: Any) -> None:
    tensors = (each for each in tree_iter(args) if isinstance(each, Tensor))
    names = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()}
    if len(names) > 1:
        what = func.overloadpacket.__name__
        raise FsdpkitError(f"{what} of {' and '.join(sorted(names))}, which torch refuses")


def _asked_by_an_optimizer() -> bool:
    """torch's own or this package's, which keep their counts of steps on the host."""
    frame = sys._getframe(2)
    while frame := frame.f_back:  # type: ignore[assignment]
        name = frame.f_code.co_filename
        if name.startswith((_OPTIMIZERS, _OWN_TRAINING)):
            return True
        if not name.startswith(NOT_THE_PROGRAM):
            return False
    return False


def caller() -> str:
    """The line of the program, outside torch and this package, that is running."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename == _CALLS_THE_STEP:
            break
        if not frame.filename.startswith(NOT_THE_PROGRAM):
            return f"{frame.filename}:{frame.lineno}"
    return "a backward pass"


def place_of(error: BaseException) -> str:
    """` at FILE:LINE` of the program in an error's traceback; empty if it is not there."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in reversed(frames)])


def place_in(dump: str) -> str:
    """The same, of what `faulthandler` wrote when a process ended."""
    return _innermost([(file, int(line)) for file, line in _FRAME.findall(dump)])


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


def _innermost(places: Sequence[tuple[str, int]]) -> str:
    inside = takewhile(lambda place: place[0] != _CALLS_THE_STEP, places)
    own = (f" at {file}:{line}" for file, line in inside if not file.startswith(NOT_THE_PROGRAM))
    return next(own, "")
