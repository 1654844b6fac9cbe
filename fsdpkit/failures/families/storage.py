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
        pattern(
            "No space left on device | Disk quota exceeded | DataLoader worker …Bus error | "
            "insufficient shared memory | No usable temporary directory found",
            "the kernel's ENOSPC and EDQUOT, whoever reports it; torch's DataLoader, for a worker "
            "that found no room in /dev/shm; Python's tempfile",
        ),
    ),
)

STORAGE = Cause(
    "storage",
    "A file system failed {who}: {words}",
    retry="storage",
    again="perhaps, once the file system has recovered",
    patterns=(
        pattern(
            "Stale file handle | Input/output error | Read-only file system | Remote I/O error | "
            "Transport endpoint is not connected | Cannot send after transport endpoint shutdown | "
            "disk I/O error | No locks available | PytorchStreamWriter failed writing | "
            ". unexpected pos ",
            "the kernel's ESTALE, EIO, EROFS, EREMOTEIO, ENOTCONN, ESHUTDOWN; SQLite; torch.save, "
            "whose bytes did not all arrive",
        ),
    ),
)

CHECKPOINT_UNREADABLE = Cause(
    "checkpoint-unreadable",
    "{who} could not read a checkpoint or another saved file: {words}",
    patterns=(
        pattern(
            "No checkpoint is whole | its index cannot be read | "
            "is not the index of a checkpoint | step-…cannot be read | "
            "holds no complete checkpoint | PytorchStreamReader failed | UnpicklingError | "
            "SafetensorError | Error while deserializing header | CheckpointException",
            "our trainer; torch.load and pickle, of a file that was cut short or is damaged; "
            "safetensors; torch.distributed.checkpoint",
        ),
    ),
)

DATA_MISSING = Cause(
    "data-missing",
    "{who} did not find a file that it needs: {words}",
    again="not until the file exists",
    patterns=(
        pattern(
            ": no such file | no file named …in directory | such file or directory (os error 2) | "
            "No such file or directory Error #2 | any data files | No files found in | "
            "Please use the NLTK Downloader",
            "our readers of data; transformers, tokenizers, sentencepiece, datasets; NLTK",
        ),
        pattern(
            "FileNotFoundError: ",
            "Python; a name without a directory is a program that was to be run",
            line=r"FileNotFoundError: (?!\[Errno 2\] No such file or directory: '[\w-]+'$)",
        ),
    ),
)
