"""Inside a rank: process group, sharding, data order, checkpoints, metrics, stopping.

A small library, not a framework: each module is a room with one or two functions that a plain
training loop calls. `examples/T5-fsdp/fsdp_t5.py` uses all of them on one page. Nothing is imported
here, because what a rank imports is most of its start-up time.
"""
