"""Data loaders and their workers: killed, out of shared memory, out of files, unpicklable, and merely unlucky."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"


def worker(kind: str, number: int, inner: str, *, script: str = "train.py") -> str:
    """What the main process prints of an exception of its loader's worker."""
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/vit/{script}", line 88, in <module>\n    for step, batch in enumerate(loader):\n'
        f'  File "{SITE}/torch/utils/data/dataloader.py", line 734, in __next__\n    data = self._next_data()\n  File "{SITE}/torch/utils/data/dataloader.py", line 1506, in _process_data\n    data.reraise()\n  File "{SITE}/torch/_utils.py", line 750, in reraise\n    raise exception\n'
        f'{kind}: Caught {kind} in DataLoader worker process {number}.\nOriginal Traceback (most recent call last):\n  File "{SITE}/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]\n'
        f'  File "{SITE}/torch/utils/data/_utils/fetch.py", line 52, in fetch\n    data = [self.dataset[idx] for idx in possibly_batched_index]\n{inner}\n'
    )


def died(pid: int, how: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "{SITE}/torch/utils/data/dataloader.py", line 1285, in _try_get_data\n    data = self._data_queue.get(timeout=timeout)\n  File "/usr/lib/python3.11/queue.py", line 180, in get\n    self.not_empty.wait(remaining)\n'
        f'  File "{SITE}/torch/utils/data/_utils/signal_handling.py", line 73, in handler\n    _error_if_any_worker_fails()\nRuntimeError: DataLoader worker (pid {pid}) {how}\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        f'Traceback (most recent call last):\n  File "/home/ada/vit/train.py", line 88, in <module>\n    for step, batch in enumerate(loader):\n  File "{SITE}/torch/utils/data/dataloader.py", line 1297, in _try_get_data\n    raise RuntimeError(\n'
        f"RuntimeError: DataLoader worker (pid(s) {pid}) exited unexpectedly\n"
    )


CASES = [
    Case(
        name="worker-killed",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        nodes=4,
        gpus=2,
        step=230,
        ranks={5: Rank(err=died(88121, "is killed by signal: Killed. "), status=1)},
        memory_share={3: 0.98},
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank=5,
            node="node3",
            forbid=r"micro.?batch|activation checkpoint|/dev/shm",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="worker-bus-error",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        nodes=1,
        gpus=8,
        ranks={
            2: Rank(
                err="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                + died(
                    40021,
                    "is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
                ),
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=2,
            node="node1",
            forbid=r"quota|old checkpoints",
        ),
    ),
    Case(
        name="worker-segfault",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(
                err="ERROR: Unexpected segmentation fault encountered in worker.\n"
                + died(40021, "is killed by signal: Segmentation fault. "),
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=6,
            node="node2",
            forbid=r"out of memory|/dev/shm|--mem\b",
            retry="crash",
        ),
    ),
    Case(
        name="worker-misses-a-file",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_utils.py",
        nodes=2,
        gpus=4,
        step=3,
        ranks={
            3: Rank(
                err=worker(
                    "FileNotFoundError",
                    3,
                    '  File "/home/ada/vit/data.py", line 41, in __getitem__\n    with open(path, "rb") as handle:\nFileNotFoundError: [Errno 2] No such file or directory: \'/data/imagenet/train/n01440764/n01440764_10026.JPEG\'',
                ),
                status=1,
            )
        },
        want=Want(frozenset({"data-missing"}), "data-missing", rank=3, node="node1"),
    ),
    Case(
        name="worker-cannot-read-an-image",
        source="https://github.com/python-pillow/Pillow/blob/main/src/PIL/Image.py",
        nodes=8,
        gpus=8,
        step=5120,
        ranks={
            20: Rank(
                err="/opt/venv/lib/python3.11/site-packages/PIL/TiffImagePlugin.py:949: UserWarning: Corrupt EXIF data.  Expecting to read 4 bytes but only got 0. \n  warnings.warn(str(msg))\n"
                + worker(
                    "PIL.UnidentifiedImageError",
                    7,
                    f'  File "/home/ada/vit/data.py", line 41, in __getitem__\n    image = Image.open(io.BytesIO(blob)).convert("RGB")\n  File "{SITE}/PIL/Image.py", line 3498, in open\n    raise UnidentifiedImageError(msg)\nPIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f9a84bc4620>',
                ),
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "data-missing"}),
            "exception",
            rank=20,
            node="node3",
            forbid=r"checkpoint is|half-written",
            retry="any",
        ),
    ),
    Case(
        name="worker-reads-from-a-broken-disk",
        source="strerror(3)",
        nodes=4,
        gpus=2,
        step=612,
        ranks={
            r: Rank(
                err=worker(
                    "OSError",
                    1,
                    '  File "/home/ada/vit/data.py", line 33, in __getitem__\n    return self.h5["images"][i]\n  File "h5py/_proxy.pyx", line 114, in h5py._proxy.H5PY_H5Dread\n'
                    "OSError: Can't synchronously read data (file read failed: time = Mon Nov 17 09:41:20 2025\n, filename = '/lustre/ada/images.h5', file descriptor = 31, errno = 5, error message = 'Input/output error', buf = 0x7f1c, total read size = 150528, bytes this sub-read = 150528, offset = 88120400)",
                ),
                status=1,
                after_s=0.5 * (r - 6),
            )
            for r in (6, 7)
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank="any",
            node="node4",
            forbid=r"disk is full|quota",
            retry="storage",
        ),
    ),
    Case(
        name="ancillary-data",
        source="https://github.com/python/cpython/blob/main/Lib/multiprocessing/reduction.py",
        nodes=1,
        gpus=8,
        ranks={
            1: Rank(
                err=f'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/queues.py", line 122, in get\n    return _ForkingPickler.loads(res)\n  File "{SITE}/torch/multiprocessing/reductions.py", line 541, in rebuild_storage_fd\n    fd = df.detach()\n  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 164, in recvfds\n    raise RuntimeError(\'received %d items of ancdata\' %\nRuntimeError: received 0 items of ancdata\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=1,
            node="node1",
            forbid=r"out of memory|check the network|firewall",
            retry="any",
        ),
    ),
    Case(
        name="too-many-open-files",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=1900,
        ranks={
            4: Rank(
                err=worker(
                    "OSError",
                    0,
                    '  File "/home/ada/vit/data.py", line 20, in __getitem__\n    self.maps[shard] = np.load(shard, mmap_mode="r")\nOSError: [Errno 24] Too many open files: \'/data/shards/00931.npy\'',
                ),
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "storage"}),
            "exception",
            rank=4,
            node="node2",
            forbid=r"disk is full|out of memory|data.*missing",
        ),
    ),
    Case(
        name="lambda-that-cannot-be-pickled",
        source="https://docs.python.org/3/library/pickle.html",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/vit/train.py", line 88, in <module>\n    for step, batch in enumerate(loader):\n  File "{SITE}/torch/utils/data/dataloader.py", line 1170, in __init__\n    w.start()\n  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 60, in dump\n    ForkingPickler(file, protocol).dump(obj)\n'
                'AttributeError: Can\'t pickle local object \'build_transforms.<locals>.<lambda>\'\nTraceback (most recent call last):\n  File "<string>", line 1, in <module>\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main\n    self = reduction.pickle.load(from_parent)\nEOFError: Ran out of input\n',
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"another checkpoint|checkpoint is|\btruncated\b|half-written",
            retry="any",
        ),
    ),
    Case(
        name="loader-waits-in-vain",
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py",
        nodes=2,
        gpus=4,
        step=88,
        ranks={
            7: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/vit/train.py", line 88, in <module>\n    for step, batch in enumerate(loader):\n  File "{SITE}/torch/utils/data/dataloader.py", line 1316, in _get_data\n    raise RuntimeError(\nRuntimeError: DataLoader timed out after 120 seconds\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "storage", "hang"}),
            "exception",
            rank=7,
            node="node2",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|time limit|out of memory",
        ),
    ),
    Case(
        name="shared-memory-object-cannot-be-mapped",
        source="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/MapAllocator.cpp",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(
                err=worker(
                    "RuntimeError",
                    2,
                    f'  File "{SITE}/torch/utils/data/_utils/collate.py", line 271, in collate_tensor_fn\n    storage = elem._typed_storage()._new_shared(numel, device=elem.device)\n'
                    "RuntimeError: unable to allocate shared memory(shm) for file </torch_88121_2719_0>: No space left on device (28)",
                ),
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=5,
            node="node2",
            forbid=r"quota|old checkpoints|output directory",
        ),
    ),
]

CASES = finish(CASES)
