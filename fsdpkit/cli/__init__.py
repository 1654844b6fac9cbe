"""What a person types and reads. One module a command, imported when it is called."""

import atexit
import gc

# Importing makes many objects that all stay: looking through them for garbage takes a tenth of a
# short command's time. A command that follows a run for days still collects.
gc.set_threshold(100_000)
# Python looks once more at its end, when all of it is given back anyway.
atexit.register(gc.freeze)
