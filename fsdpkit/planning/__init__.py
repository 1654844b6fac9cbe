"""Know a job's memory and speed before it queues: `fsdpkit plan`, on a login node without a GPU.

The real training step runs once on tensors without values (`pretend`), and what it makes, frees,
computes and sends is written down (`recorder`, to a `tape`). The tape is replayed through a model
of CUDA's caching allocator (`allocator`, `replay`); what that allocator never sees comes from a
calibration record (`outside`). Importing this package imports no torch.
"""
