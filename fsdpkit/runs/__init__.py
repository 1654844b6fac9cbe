"""The run directory: the one record of a submission and all its attempts."""
