"""What any training script may call, ours or not: `fsdpkit.log`, `stop_requested`, `task_dir`.

Nothing here imports torch, reads a job's settings or raises: off a cluster, under plain torchrun,
in a notebook, the same calls do nothing. What knows a trainer of another make, Hugging Face's or
Lightning's, has a module of its own, imported by who uses it.
"""
