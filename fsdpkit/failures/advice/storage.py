"""What to do about files and file systems: data, caches, checkpoints."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

_MISSING = ("data-missing", "exception", "checkpoint-unreadable", "storage")
_SHM = (
    "[trainer] /dev/shm of the node is full: fewer loader workers "
    "(training.data.workers) keep fewer batches there.",
    "[script] /dev/shm of the node is full, where loader workers, NCCL and UCX keep what "
    "they hand over: fewer workers, smaller batches in flight (prefetch_factor).",
    "[container] A container may have a small one of its own: give it more (--shm-size), "
    "or the node's (--bind /dev/shm).",
    "[host] See what other jobs left there: df -h /dev/shm.",
)

ENTRIES = (
    Advice(
        "A mapped file changed under a process",
        (
            "A file that is mapped became shorter, or its file system failed, while it was read: "
            "see whether something writes it anew, and copy it to the node's own disk.",
        ),
        ("sigbus…memmap", "sigbus…mmap.py", "sigbus…safetensors"),
    ),
    Advice(
        "`/dev/shm` is full",
        _SHM,
        (
            *("/dev/shm", "bus error", "sigbus", "out of shared memory", "posix_fallocate"),
            *("insufficient shared memory", "shared memory segment"),
        ),
        causes=("disk-full", "exception", "unknown", "host-out-of-memory", "storage"),
    ),
    Advice(
        "Shared memory cannot be mapped",
        _SHM,
        ("shared memory", "shmget", "unable to mmap"),
        causes=("disk-full",),
    ),
    Advice(
        "A directory of Triton's belongs to another user",
        (
            "{directory} may be of another user of that node. Give the job a directory of its own "
            "({set:environment.variables.TRITON_CACHE_DIR=DIRECTORY}).",
            "[else] {directory} may be of another user of that node: choose another.",
        ),
        ("permission denied: '/tmp/triton", "permission denied: '/var/tmp/triton"),
    ),
    Advice(
        "A directory of torch.compile's belongs to another user",
        (
            "{directory} may be of another user of that node. Give the job a directory of its own "
            "({set:environment.variables.TORCHINDUCTOR_CACHE_DIR=DIRECTORY}).",
            "[else] {directory} may be of another user of that node: choose another.",
        ),
        ("permission denied: '/tmp/torchinductor",),
    ),
    Advice(
        "What compilers keep was removed or written by two at once",
        (
            "Ranks of several jobs or nodes wrote the same cache, or it was cleaned while they "
            "ran. Remove it, and give each node its own, as on local disk "
            "(TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR).",
        ),
        (
            *("no such file…triton", "no such file…torchinductor", "no such file…/inductor"),
            *("stale file handle…triton", ".hsaco'", ".cubin'", "directory not empty…triton"),
        ),
        causes=_MISSING,
    ),
    Advice(
        "Two processes built the same cache of a data set",
        (
            "Several ranks built the same cache at once. Build it once before the ranks do, in a "
            "step before the training (steps.before) or on rank 0 with a barrier behind it, and "
            "remove what is incomplete.",
        ),
        (".incomplete", "datasetgenerationerror…no such file"),
        causes=(*_MISSING, "no-internet"),
    ),
    Advice(
        "A lock file that nobody gives back",
        (
            "The ranks waited for a lock of a process that may long be gone, and more time does "
            "not help. If no other job works there, remove {lock} (of torch's extensions the "
            "files named `lock` below it), and fill that cache once before the ranks start.",
            "[else] The ranks waited for a lock of a process that may long be gone, and more time "
            "does not help: remove the lock file of that cache, and fill it once before.",
        ),
        (
            *("waiting to acquire lock", "waiting for lock", "as pytorch extensions root"),
            *("blocked on lock", "attempting to acquire lock", "/filelock/", "filebaton"),
        ),
        causes=("time-limit", "hang", "cancelled"),
        around=True,
    ),
    Advice(
        "A file cannot be locked",
        (
            "The file system has no locks, or another process has the file open for writing: set "
            "HDF5_USE_FILE_LOCKING=FALSE "
            "({set:environment.variables.HDF5_USE_FILE_LOCKING=FALSE}) if all only read it, and "
            "open it with mode 'r'.",
            "[else] Another process has the file open for writing: open it with mode 'r' in all.",
        ),
        ("unable to lock file", "unable to unlock file", "flock() failed"),
    ),
    Advice(
        "All places of LMDB's readers are taken",
        (
            "Each process and worker takes a place in LMDB's table of readers: open the "
            "environment with lock=False if all only read, or with a larger max_readers; and "
            "once in each worker, not before it is forked.",
        ),
        ("mdb_readers_full", "maxreaders"),
    ),
    Advice(
        "A file system asks for a ticket",
        (
            "The ticket or key for this file system is missing or has run out in the job: renew "
            "it (kinit, aklog), and ask the centre how jobs longer than a ticket keep one.",
        ),
        (
            *("key has expired", "required key not available", "key has been revoked"),
            *("[errno 126]", "[errno 127]", "[errno 128]", "[errno 129]"),
        ),
        causes=("storage", "exception"),
    ),
    Advice(
        "A checkpoint was saved by another number of ranks",
        (
            "Optimizer, loader and random states are saved for each rank. With another number of "
            "ranks than it was saved with, resume with as many, or load it in a way that reshards "
            "(torch.distributed.checkpoint; DeepSpeed's universal checkpoint); with as many, that "
            "checkpoint is not complete: take an older one.",
        ),
        (
            *("dp_rank_", "model_world_size", "world_size_", "random_states_", "rng_state_"),
            *("different world size", "different number of", "dp world size", "mp_rank_"),
            *("zero_pp_rank_", "missing key in checkpoint state_dict: dataloader", "_optim_states"),
            *("world size…checkpoint", "checkpoint…world size"),
        ),
        causes=_MISSING,
    ),
    Advice(
        "A checkpoint is not complete",
        (
            "The checkpoint is not complete: the job ended while it was saved, or this is not the "
            "directory of one. Resume from an older one.",
            "[trainer] Which are whole: fsdpkit checkpoint verify {run}",
        ),
        (
            *("trainer_state.json", "assert metadata is not none", "/.metadata'"),
            *("latest_checkpointed_iteration", "incomplete checkpoint", "no checkpoint is whole"),
        ),
        causes=("checkpoint-unreadable", "data-missing"),
        around=True,
    ),
    Advice(
        "Keys of a checkpoint and of the model differ",
        (
            "The model is not the one that was saved: compare its settings (sizes, vocabulary, "
            "adapters). A prefix in all names (module., _orig_mod., _fsdp_wrapped_module.) comes "
            "of saving the wrapped model: save and load that of the inner one.",
        ),
        ("missing key(s) in state_dict", "unexpected key(s) in state_dict", "size mismatch for "),
    ),
    Advice(
        "A pickle holds more than tensors",
        (
            "The file holds more than tensors, and torch.load reads only tensors unless it is "
            "told otherwise (since 2.6): if you trust the file, weights_only=False or "
            "torch.serialization.add_safe_globals; or a release of the library that does so.",
        ),
        ("weights only load failed",),
    ),
    Advice(
        "A file is the pointer of Git LFS",
        ("That file is a pointer of Git LFS, not the file itself: git lfs pull.",),
        ("invalid load key, 'v'", "git-lfs.github.com"),
    ),
    Advice(
        "A download left a page of HTML",
        ("That file is a page of HTML, which a download left in its place: fetch it again.",),
        ("invalid load key, '<'",),
    ),
    Advice(
        "A file is cut short",
        (
            "That file is cut short or damaged: compare its size or checksum with its source and "
            "copy it again; the last lines before the traceback may name it.",
        ),
        (
            *("unexpected end of data", "compressed file ended before", "no data left in file"),
            *("bad magic number", "truncated file", "not a gzip file", "badzipfile", "crc check"),
            *("image file is truncated", "cannot identify image file", "parquet magic bytes"),
            *("incompletebodyerror", "eoferror: ran out of input", "reshape array of size 0"),
        ),
    ),
    Advice(
        "What is to be made is there already",
        (
            "{path} is there already: an earlier run left it, or several ranks made it at once. "
            "Let rank 0 make it with a barrier behind it, or os.makedirs(…, exist_ok=True).",
        ),
        ("fileexistserror",),
    ),
    Advice(
        "Access is denied",
        (
            "See who may use {path}, on a node of the job too: ls -ld of it and of the "
            "directories above, and id for your groups. Its owner gives you access, or choose "
            "another path.",
        ),
        (
            *("permission denied", "operation not permitted", "[errno 13]", "[errno 1]"),
            "access is denied",
        ),
        causes=("exception", "storage", "data-missing"),
    ),
    Advice(
        "The disk on which Slurm itself works is full",
        (
            "The node's own disk is full, on which Slurm works: tell the centre.",
            "[one] Until then leave the node out ({exclude}).",
        ),
        ("/var/spool/",),
        causes=("disk-full",),
    ),
    Advice(
        "No directory for temporary files",
        (
            "The node's own disk is full: set TMPDIR to a place with room.",
            "[one] Or leave the node out ({exclude}).",
        ),
        (" '/tmp", "/var/tmp", "tmpdir", "temporary directory"),
        causes=("disk-full",),
    ),
    Advice(
        "A quota is used up",
        (
            "See what uses it (quota -s, lfs quota, du), remove what is not needed, or choose "
            "another place: --runs, HF_HOME, XDG_CACHE_HOME.",
        ),
        ("quota",),
        causes=("disk-full",),
    ),
    Advice(
        "Not all bytes of a checkpoint arrived",
        (
            "The file could not be written to its end: most often the disk, one of the file "
            "system's targets (lfs df), or your quota is full. Make room (df -h, quota -s, du), "
            "keep fewer checkpoints, or choose another place with --runs.",
        ),
        ("unexpected pos", "pytorchstreamwriter failed", "iostream error", "file write failed"),
        causes=("storage", "disk-full", "exception"),
    ),
    Advice(
        "A disk is full",
        (
            "[trainer] Make room (df -h, quota -s, du), keep fewer checkpoints "
            "(training.checkpoint.keep_last), or choose another place with --runs.",
            "[script] Make room where {path} lies (df -h, on Lustre lfs df -h, quota -s, du), or "
            "choose another place.",
            "[else] Make room where it writes (df -h, on Lustre lfs df -h, quota -s, du), or "
            "choose another place.",
        ),
        causes=("disk-full",),
    ),
    Advice(
        "A file system failed one node",
        (
            "Check whether {path} is readable on {node} now; if not, leave the node out "
            "({exclude}) and report it to the centre.",
            "[alike] Check whether the file system can be read now; if not, report it to the "
            "centre.",
        ),
        causes=("storage",),
    ),
    Advice(
        "A checkpoint of fsdpkit's trainer cannot be read",
        (
            "[trainer] Find a whole checkpoint: fsdpkit checkpoint verify {run}; resume from an "
            "older one, or start from its weights: training.checkpoint.start",
            "[script] Resume from an older one; this one may have been cut off while it was "
            "saved, or belong to another release of the library.",
        ),
        causes=("checkpoint-unreadable",),
    ),
    Advice(
        "A file is missing on some nodes",
        (
            "[apart] {node} does not see {path}, or not yet: other nodes did not fail at it. Put "
            "it on a file system that every node shares; what rank 0 makes (an index, a cache) "
            "belongs there, too.",
        ),
        causes=("data-missing",),
        scopes=("node",),
    ),
    Advice(
        "A file is missing",
        (
            "Check how {path} is spelt, and that the job's nodes see it (ls on one of them): it "
            "must lie on a file system that every node shares, and what rank 0 makes (an index, a "
            "cache) belongs there, too.",
            "[container] The container sees only what is mounted into it.",
        ),
        causes=("data-missing",),
    ),
    Advice(
        "A file of the run or the script is not seen by a node",
        (
            "Check how the path is spelt, and put the script and the runs (--runs) on a file "
            "system that all nodes share.",
            "[container] The container sees only what is mounted into it.",
        ),
        causes=("script-not-visible",),
    ),
)
