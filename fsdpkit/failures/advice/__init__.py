"""What to do about a failure: a table by cause, scope and phase (table.py), one file a family."""
