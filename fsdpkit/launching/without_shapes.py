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
from types import ModuleType

_NAME = "_meta_registrations"


@contextmanager
def without_shapes() -> Iterator[None]:
    """Torch, if it is first imported within the block, leaves that module out.

    Nothing is left in its place: who imports it afterwards gets it.
    """
    if "torch" in sys.modules:
        yield
        return
    name = f"torch.{_NAME}"
    empty = sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is empty:
            del sys.modules[name]
        torch = sys.modules.get("torch")
        if torch is not None and vars(torch).get(_NAME) is empty:
            delattr(torch, _NAME)
