"""Many trainings of one job: sweeps over its settings, and studies of how it scales."""
