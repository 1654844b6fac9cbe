"""The state of runs, once and continuously: `status` and `watch`."""
