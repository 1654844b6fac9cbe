"""Failures that nobody here has seen, rebuilt from what real programs print.

A case (case.py) is what ranks, Slurm and nodes left, with what a careful expert says of it.
build.py makes a run directory of it, and lets fsdpkit's own functions decide what its agents would
have decided (agents.py). score.py counts how many `diagnose` names right:
`python -m tests.reporting.unseen.score --show`. The cases are text files, one a case, in the sets
in which they were written: cases/SET/NAME.txt, read by files.py.
"""
