"""Submitting through submitit, asking Slurm what became of a job, and the local cluster."""
