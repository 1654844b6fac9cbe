"""Causes: file systems, and files that lie on them: data and checkpoints."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern

DISK_FULL = Cause(
    "disk-full",
    "{who} had no space left to write: {words}",
    retry="storage",
    again="not until there is space",
    patterns=(
        pattern("No space left on device", "the kernel's ENOSPC, whoever reports it"),
        pattern("Disk quota exceeded", "the kernel's EDQUOT"),
        pattern(
            "is killed by signal: ",
            "torch's DataLoader, for a worker that found no room in /dev/shm",
            line=r"DataLoader worker .*Bus error",
        ),
        pattern("insufficient shared memory", "the same in the worker's words"),
        pattern("No usable temporary directory found", "Python's tempfile"),
    ),
)

STORAGE = Cause(
    "storage",
    "A file system failed {who}: {words}",
    retry="storage",
    again="perhaps, once the file system has recovered",
    patterns=(
        pattern(
            (
                *("Stale file handle", "Input/output error", "Read-only file system"),
                *("Remote I/O error", "Transport endpoint is not connected"),
                *("Cannot send after transport endpoint shutdown", "disk I/O error"),
                *("No locks available", "PytorchStreamWriter failed writing"),
                ". unexpected pos ",
            ),
            "the kernel's ESTALE, EIO, EROFS, EREMOTEIO, ENOTCONN, ESHUTDOWN; SQLite; torch.save, "
            "whose bytes did not all arrive",
        ),
    ),
)

CHECKPOINT_UNREADABLE = Cause(
    "checkpoint-unreadable",
    "{who} could not read a checkpoint or another saved file: {words}",
    patterns=(
        pattern("No checkpoint is whole", "our trainer, listing what is wrong with each"),
        pattern(("its index cannot be read", "is not the index of a checkpoint"), "our trainer"),
        pattern("cannot be read", "our trainer", line=r"step-\d+\S* cannot be read"),
        pattern("holds no complete checkpoint", "our trainer, of training.checkpoint.start"),
        pattern("PytorchStreamReader failed", "torch.load, of a file that was cut short"),
        pattern("UnpicklingError", "pickle, of a file that is damaged"),
        pattern(("SafetensorError", "Error while deserializing header"), "safetensors"),
        pattern("CheckpointException", "torch.distributed.checkpoint"),
    ),
)

DATA_MISSING = Cause(
    "data-missing",
    "{who} did not find a file that it needs: {words}",
    again="not until the file exists",
    patterns=(
        pattern(": no such file", "our readers of data and tokenizers"),
        pattern("Please use the NLTK Downloader", "NLTK"),
        pattern(
            "FileNotFoundError: ",
            "Python; a name without a directory is a program that was to be run",
            line=r"FileNotFoundError: (?!\[Errno 2\] No such file or directory: '[\w-]+'$)",
        ),
    ),
)
