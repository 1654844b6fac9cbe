"""The local cluster: runs a rendered script on this machine, each "node" a loopback address.

A way to try things without Slurm, not a scheduler: a job starts at once, array tasks run one after
another, nothing is requeued.

    client.py      what `fsdpkit submit --cluster local` talks to
    supervisor.py  one detached process a job: limits, signals, the job's state
    commands.py    srun, scontrol and scancel as the script finds them on PATH
    store.py       a job's directory, and its state in it
"""
