"""`submit --here`: a job's script run in an allocation that exists, instead of queued.

The script runs as a step on the first node, whatever shell it was submitted from. Nothing is ever
done to the allocation itself: it is known by its number, its cluster and when it was submitted, and
only the run's own steps are ended.

    allocation.py  what the surrounding allocation has
    commands.py    what Slurm is asked about it, and told about its steps
    client.py      starts the step, in place of sbatch
    step.py        runs on the first node: the batch script, its limits, its state
    state.py       how the run stands, from that state and the allocation's
"""
