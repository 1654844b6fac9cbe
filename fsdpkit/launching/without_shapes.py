"""torch for an agent, without what only computation needs.

On import, torch registers for each operator how to infer the shape of a result without computing
it. That is a quarter of the import, and serves the compiler and tensors on `meta`. A process that
starts ranks and waits for them uses neither. Ranks are unaffected: forked ranks come from a process
that has imported all of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_NAME = "_meta_registrations"


class _Absent(ModuleType):
    """Replaces the module; a release of torch whose import needs something from it gets it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def without_shapes() -> Iterator[None]:
    """Torch, if it is first imported within the block, leaves that module out.

    Nothing stays in its place: importing it afterwards works.
    """
    if "torch" in sys.modules:
        yield
        return
    name = f"torch.{_NAME}"
    empty = sys.modules[name] = _Absent(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is empty:
            del sys.modules[name]
        torch = sys.modules.get("torch")
        if torch is not None and vars(torch).get(_NAME) is empty:
            delattr(torch, _NAME)
