"""What a job would need and do, found without a GPU: its memory, its speed, its best settings.

One step of the real training loop is recorded on fake tensors (the tape); its allocations are
replayed through a model of CUDA's allocator, and its operations (`work.py`) through a model of the
machine (`speed.py`). `tune.py` asks both about many settings. Nothing on the path of a submission
imports the modules here that import torch.
"""
