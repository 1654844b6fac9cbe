"""What a person types and reads. One module a command, imported when it is called."""

import gc

# Importing makes many objects that all stay: looking through them for garbage takes a tenth of a
# short command's time. A command that follows a run for days still collects.
gc.set_threshold(100_000)
