"""An agent's torch without what only computing needs.

Torch's import registers, for each operator, how to tell the shape of a result without computing it:
a quarter of the import, for the compiler and for tensors on `meta`. A process that starts ranks and
waits for them has none of either. Ranks are not of it: those that are forked come from a process
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
    """In the module's place; a release of torch whose import takes something from it gets it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def without_shapes() -> Iterator[None]:
    """Torch, if it is first imported within the block, leaves that module out.

    Nothing is left in its place: who imports it afterwards gets it.
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
