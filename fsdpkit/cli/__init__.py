"""What a person types and reads. One module a command, imported when it is called."""

import atexit
import gc
import sys

# Importing makes many objects that all stay: looking through them for garbage takes a tenth of a
# short command's time. A command that follows a run for days still collects.
gc.set_threshold(100_000)


@atexit.register
def _spare_the_last_look() -> None:
    """Python looks once more at its end, when all of it is given back anyway.

    Not with torch, whose Triton would report as leaks what is not collected.
    """
    if "torch" not in sys.modules:
        gc.freeze()
