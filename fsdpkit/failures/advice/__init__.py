"""What to do about a failure: by cause, scope, phase and words (table.py), in a file a family."""
