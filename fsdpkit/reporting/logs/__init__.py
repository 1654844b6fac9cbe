"""The lines of a run: `logs`."""
