"""Disks that are full and file systems that do not answer."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    FUTURE,
    LOADER,
    LOADER_DEL,
    NOT_DESTROYED,
    PROGRESS,
    QUIET,
    STEPS,
    TOP,
    WANDB_END,
    WORKER,
    aborted,
    on_record,
    raised,
)

_SAVE = TOP.replace(
    "loss = train_step(model, batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^",
    "save(model, optimizer, step)",
)

CASES = [
    Case(
        name="torch-save-unexpected-pos",
        source="https://github.com/pytorch/pytorch/issues/121833",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 964, in save
    _save(
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1268, in _save
    zip_file.write_record(name, storage, num_bytes)
RuntimeError: [enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/176: file write failed

During handling of the above exception, another exception occurred:

"""
                + _SAVE
                + """  File "/home/ada/t5/train.py", line 61, in save
    torch.save(state, path)
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 798, in __exit__
    self.file_like.write_end_of_file()
RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 190007680 vs 190007572
""",
                after=NOT_DESTROYED.format(rank=0) + WANDB_END,
                out=STEPS,
            )
        },
        others=QUIET,
        want=wanted("disk-full", "storage", rank=0, node="node1", forbid="memory"),
    ),
    Case(
        name="quota-of-home-through-cache",
        source="https://github.com/Medical-Event-Data-Standard/MEDS-DEV/issues/266",
        nodes=2,
        gpus=2,
        ranks={
            2: raised(
                2,
                _SAVE
                + "  File \"/opt/venv/lib/python3.11/site-packages/triton/runtime/cache.py\", line 129, in put\n    with open(temp_path, mode) as f:\n         ^^^^^^^^^^^^^^^^^^^^^\nOSError: [Errno 122] Disk quota exceeded: '/home/ada/.triton/cache/X7Q/tmp.pid_4100'\n",
            )
        },
        others=QUIET,
        want=wanted("disk-full", rank=2, node="node2", retry="storage"),
    ),
    Case(
        name="tmp-of-one-node-full",
        source="strerror(3)",
        nodes=4,
        gpus=2,
        ranks={
            6: raised(
                6,
                TOP
                + "  File \"/opt/venv/lib/python3.11/tempfile.py\", line 357, in mkdtemp\n    _os.mkdir(file, 0o700)\nOSError: [Errno 28] No space left on device: '/tmp/torchinductor_ada/tmpx1a0'\n",
                record="OSError: [Errno 28] No space left on device: '/tmp/torchinductor_ada/tmpx1a0'",
            ),
            0: aborted(0, "10.99.7.4<42222>"),
        },
        others=QUIET,
        want=wanted("disk-full", rank=6, node="node4", retry="storage"),
    ),
    Case(
        name="lustre-eviction",
        source="strerror(3) ESHUTDOWN; https://doc.lustre.org/lustre_manual.xhtml (evictions)",
        nodes=8,
        gpus=8,
        ranks={
            37: raised(
                37,
                TOP
                + LOADER
                + "OSError: Caught OSError in DataLoader worker process 5.\n"
                + WORKER
                + '  File "/home/ada/t5/corpus.py", line 29, in __getitem__\n    return self.file.read(length)\n           ^^^^^^^^^^^^^^^^^^^^^^\nOSError: [Errno 108] Cannot send after transport endpoint shutdown\n',
                after=LOADER_DEL,
            ),
            **{rank: aborted(rank, "10.99.7.5<40044>", 2.0) for rank in range(16, 24)},
        },
        others=QUIET,
        want=wanted("storage", rank=37, node="node5", forbid="free space|quota"),
    ),
    Case(
        name="stale-nfs-handle-at-checkpoint",
        source="strerror(3) ESTALE",
        nodes=1,
        gpus=8,
        ranks={
            0: raised(
                0,
                _SAVE
                + '  File "/home/ada/t5/train.py", line 58, in save\n    os.makedirs(directory, exist_ok=True)\n  File "<frozen os>", line 225, in makedirs\nOSError: [Errno 116] Stale file handle: \'/scratch/ada/t5/ckpt\'\n',
                out=STEPS,
            )
        },
        others=QUIET,
        want=wanted("storage", rank=0, node="node1", forbid="damaged"),
    ),
    Case(
        name="read-only-after-error",
        source="strerror(3) EROFS",
        nodes=2,
        gpus=4,
        ranks={
            4: raised(
                4,
                _SAVE
                + '  File "/home/ada/t5/train.py", line 63, in save\n    with open(path, "wb") as file:\n         ^^^^^^^^^^^^^^^^\nOSError: [Errno 30] Read-only file system: \'/local/ada/ckpt/rank4.pt\'\n',
                record="OSError: [Errno 30] Read-only file system: '/local/ada/ckpt/rank4.pt'",
            )
        },
        others=QUIET,
        want=wanted("storage", "disk-full", rank=4, node="node2", forbid="free space|quota"),
    ),
    Case(
        name="input-output-error-of-mmap-bus",
        source="mmap(2) SIGBUS",
        nodes=2,
        gpus=2,
        ranks={
            3: Rank(
                err=ADDRESS
                + 'Fatal Python error: Bus error\n\nCurrent thread 0x00007f80d6ffd740 (most recent call first):\n  File "/opt/venv/lib/python3.11/site-packages/numpy/_core/memmap.py", line 358 in __getitem__\n  File "/home/ada/t5/corpus.py", line 52 in __getitem__\n  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 52 in fetch\n',
                status=135,
            )
        },
        others=QUIET,
        want=wanted(
            "exception", "storage", "data-missing", "unknown", "disk-full", rank=3, node="node2"
        ),
    ),
    Case(
        name="hdf5-lock",
        source="https://github.com/open-mpi/ompi/issues/6535",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                TOP
                + '  File "/opt/venv/lib/python3.11/site-packages/h5py/_hl/files.py", line 231, in make_fid\n    fid = h5f.open(name, flags, fapl=fapl)\n  File "h5py/h5f.pyx", line 106, in h5py.h5f.open\nBlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, error message = \'Resource temporarily unavailable\')\n',
            )
        },
        others=QUIET,
        want=wanted("exception", "storage", rank=2, node="node1", forbid="free space|damaged"),
    ),
    Case(
        name="fuse-mount-gone",
        source="strerror(3) ENOTCONN",
        nodes=2,
        gpus=8,
        ranks={
            8: raised(
                8,
                TOP
                + "  File \"<frozen genericpath>\", line 19, in exists\nOSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/c4/shard-00017.tar'\n",
                before=ADDRESS + FUTURE,
            )
        },
        others=QUIET,
        want=wanted("storage", rank=8, node="node2", forbid="peer"),
    ),
    Case(
        name="s3-endpoint-unreachable",
        source="https://github.com/boto/botocore/blob/develop/botocore/exceptions.py",
        nodes=2,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP
                + '  File "/opt/venv/lib/python3.11/site-packages/botocore/httpsession.py", line 493, in send\n    raise EndpointConnectionError(endpoint_url=request.url, error=e)\nbotocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://datasets.s3.us-east-1.amazonaws.com/c4/shard-00017.tar"\n',
            )
        },
        others=QUIET,
        want=wanted("no-internet", "storage", rank=1, node="node1"),
    ),
    Case(
        name="permission-denied-of-data",
        source="strerror(3) EACCES",
        nodes=1,
        gpus=2,
        others=raised(
            0,
            """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 125, in main
    meta = json.loads(Path(args.data, "meta.json").read_text())
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
PermissionError: [Errno 13] Permission denied: '/projects/pas9999/c4/meta.json'
""",
            prefixed=False,
        ),
        want=wanted("data-missing", "exception", "storage", rank="any", node="any"),
    ),
    Case(
        name="dataset-directory-missing-everywhere",
        source="https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
        nodes=4,
        gpus=2,
        others=raised(
            0,
            """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 126, in main
    dataset = load_from_disk("/scratch/ada/c4-tokenised")
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/datasets/load.py", line 1588, in load_from_disk
    raise FileNotFoundError(f"Directory {dataset_path} not found")
FileNotFoundError: Directory /scratch/ada/c4-tokenised not found
""",
            prefixed=False,
        ),
        want=wanted("data-missing", rank="any", node="any"),
    ),
    Case(
        name="no-space-handled-then-other-error",
        source="made: a handled ENOSPC of a cache with its traceback, then an error of the program",
        nodes=2,
        gpus=2,
        ranks={
            3: raised(
                3,
                TOP
                + '  File "/home/ada/t5/train.py", line 90, in train_step\n    return batch["labels"].long() @ weights\nRuntimeError: expected m1 and m2 to have the same dtype, but got: long int != c10::BFloat16\n',
                before=ADDRESS
                + 'token cache is off: /local/cache is full\nTraceback (most recent call last):\n  File "/home/ada/t5/cache.py", line 18, in put\n    self.file.write(block)\nOSError: [Errno 28] No space left on device\n'
                + PROGRESS,
            )
        },
        others=QUIET,
        want=wanted("exception", rank=3, node="node2", forbid="space|quota|full", retry="crash"),
    ),
    Case(
        name="sqlite-locked",
        source="https://www.sqlite.org/rescode.html#busy",
        nodes=1,
        gpus=4,
        ranks={
            1: raised(
                1,
                TOP
                + '  File "/home/ada/t5/registry.py", line 12, in add\n    db.execute("insert into runs values (?, ?)", row)\nsqlite3.OperationalError: database is locked\n',
            )
        },
        others=QUIET,
        want=wanted("exception", "storage", rank=1, node="node1"),
    ),
]

CASES = on_record(
    CASES,
    "torch-save-unexpected-pos",
    "lustre-eviction",
    "hdf5-lock",
    "s3-endpoint-unreachable",
    "no-space-handled-then-other-error",
)
