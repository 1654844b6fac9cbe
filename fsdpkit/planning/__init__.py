"""Known before a job queues: what a training step holds, computes and sends, and how long it takes.

One step of a rank is followed on a pretended GPU; only that imports torch. What it leaves, a tape,
is replayed through the allocator's rules, and read as work for the model of speed.
"""
