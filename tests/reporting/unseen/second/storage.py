"""File systems that are full, read-only, stale or gone, and the names of the places."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"

CASES = [
    Case(
        name="root-file-system-full-on-one-node",
        source="strerror(3)",
        nodes=4,
        gpus=2,
        ranks={
            4: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 24, in <module>\n    log = tempfile.NamedTemporaryFile(dir="/var/tmp", delete=False)\n  File "/usr/lib/python3.11/tempfile.py", line 256, in _mkstemp_inner\n    fd = _os.open(file, flags, 0o600)\nOSError: [Errno 28] No space left on device: \'/var/tmp/tmpk3s0x1zz\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=4,
            node="node3",
            forbid=r"/dev/shm|fewer checkpoints",
            retry="storage",
        ),
    ),
    Case(
        name="no-usable-temporary-directory",
        source="https://github.com/python/cpython/blob/main/Lib/tempfile.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 6, in <module>\n    import torch\n  File \"/usr/lib/python3.11/tempfile.py\", line 223, in _get_default_tempdir\n    raise FileNotFoundError(_errno.ENOENT,\nFileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/home/ada/lm']\n",
                status=1,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(
            frozenset({"disk-full", "storage"}),
            "disk-full",
            rank="any",
            node="node2",
            forbid=r"data ?set|input data|training data",
        ),
    ),
    Case(
        name="quota-while-saving",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=1000,
        ranks={
            0: Rank(
                err='step 1000 loss 2.9\nTraceback (most recent call last):\n  File "/home/ada/lm/train.py", line 150, in <module>\n    torch.save(state, path)\n  File "'
                + SITE
                + '/torch/serialization.py", line 977, in save\n    with _open_zipfile_writer(f) as opened_zipfile:\n  File "'
                + SITE
                + '/torch/serialization.py", line 803, in __exit__\n    self.file_like.write_end_of_file()\n'
                "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/391: file write failed\n"
                "\nDuring handling of the above exception, another exception occurred:\n\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 154, in <module>\n    marker.write_text("failed")\nOSError: [Errno 122] Disk quota exceeded: \'/home/ada/lm/out/step-1000/failed\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=0,
            node="node1",
            forbid=r"/dev/shm|corrupt checkpoint",
            retry="storage",
        ),
    ),
    Case(
        name="stream-writer-alone",
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        nodes=1,
        gpus=8,
        step=1000,
        ranks={
            0: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 150, in <module>\n    torch.save(state, path)\n'
                "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/391: file write failed\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full", "storage"}),
            "disk-full",
            rank=0,
            node="node1",
            forbid=r"batch size|out of memory|NCCL (timeout|fail|cannot)|NCCL_",
            retry="any",
        ),
    ),
    Case(
        name="input-output-error-while-importing",
        source="strerror(3)",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 3, in <module>\n    import transformers\n  File "<frozen importlib._bootstrap_external>", line 1183, in get_data\nOSError: [Errno 5] Input/output error\n',
                status=1,
                after_s=0.1 * (r - 2),
            )
            for r in (2, 3)
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank="any",
            node="node2",
            forbid=r"pip install|not installed|disk is full",
            retry="storage",
        ),
    ),
    Case(
        name="stale-handle-of-a-log",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=77,
        ranks={
            6: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 133, in <module>\n    metrics.flush()\nOSError: [Errno 116] Stale file handle\nException ignored in: <_io.TextIOWrapper name='/home/ada/lm/out/metrics.jsonl' mode='a' encoding='UTF-8'>\nOSError: [Errno 116] Stale file handle\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank=6,
            node="node2",
            forbid=r"disk is full|quota|out of memory",
            retry="storage",
        ),
    ),
    Case(
        name="file-system-turned-read-only",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=500,
        ranks={
            0: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 140, in <module>\n    os.replace(tmp, final)\nOSError: [Errno 30] Read-only file system: '/scratch/ada/out/.step-500.tmp' -> '/scratch/ada/out/step-500'\n",
                status=1,
            )
        },
        node_logs={
            1: "[91230.11] EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:83: Detected aborted journal\n[91230.12] EXT4-fs (nvme0n1p1): Remounting filesystem read-only\n"
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank=0,
            node="node1",
            forbid=r"disk is full|quota|chmod|change the permission",
            retry="storage",
        ),
    ),
    Case(
        name="lustre-client-evicted",
        source="https://github.com/marbits-icm/marbits-public/issues/139",
        nodes=8,
        gpus=8,
        step=2000,
        ranks={
            r: Rank(
                err=f"[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File \"/home/ada/lm/train.py\", line 97, in <module>\n[rank{r}]:     tokens = np.fromfile(path, dtype=np.uint16)\n[rank{r}]: OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/ada/corpus/0117.bin'\n",
                status=1,
                after_s=0.1 * (r - 16),
            )
            for r in range(16, 24)
        },
        node_logs={
            3: "[88120.41] LustreError: 167-0: fs1-OST0012-osc-ffff9b: This client was evicted by fs1-OST0012; in progress operations using this service will fail.\n"
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank="any",
            node="node3",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|InfiniBand adapter|disk is full",
            retry="storage",
        ),
    ),
    Case(
        name="gpfs-not-mounted-any-more",
        source="https://www.ibm.com/docs/en/storage-scale/5.2.0?topic=messages",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 30, in <module>\n    names = sorted(os.listdir("/gpfs/projects/ada/shards"))\nOSError: [Errno 116] Stale file handle: \'/gpfs/projects/ada/shards\'\n',
                status=1,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        node_logs={
            2: "mmfs: [E] Unexpected data in message. Header dump\nmmfs: [E] File system projects unmounted by the system with return code 669 reason code 0\n"
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank="any",
            node="node2",
            forbid=r"disk is full|quota",
            retry="storage",
        ),
    ),
    Case(
        name="fuse-mount-without-its-daemon",
        source="strerror(3)",
        nodes=4,
        gpus=2,
        ranks={
            7: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/data.py", line 30, in open_shard\n    return open(path, "rb")\nOSError: [Errno 107] Transport endpoint is not connected: \'/mnt/s3/corpus/0042.tar\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank=7,
            node="node4",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|rendezvous timed out|other ranks failed",
            retry="storage",
        ),
    ),
    Case(
        name="network-file-system-times-out",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=61,
        ranks={
            3: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/data.py", line 44, in read\n    return os.pread(self.fd, n, at)\nTimeoutError: [Errno 110] Connection timed out\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "/home/ada/lm/train.py", line 97, in <module>\n    batch = next(batches)\n  File "/home/ada/lm/data.py", line 47, in read\n    raise ShardError(f"cannot read {self.path}") from e\nlm.data.ShardError: cannot read /nfs/corpus/0042.bin\n',
                status=1,
            )
        },
        node_logs={1: "[812201.2] nfs: server nas01 not responding, timed out\n"},
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank=3,
            node="node1",
            forbid=r"rendezvous timed out|NCCL (timeout|fail|cannot)|NCCL_|firewall",
            retry="storage",
        ),
    ),
    Case(
        name="no-inodes-left",
        source="https://man7.org/linux/man-pages/man2/open.2.html",
        nodes=1,
        gpus=8,
        step=9000,
        ranks={
            5: Rank(
                err="[shards] 3999999 files written; 1.2T of 7.0T used\n"
                'Traceback (most recent call last):\n  File "/home/ada/emb/train.py", line 58, in <module>\n    np.save(f"{out}/{i}.npy", vector)\nOSError: [Errno 28] No space left on device: \'/scratch/ada/emb/4000000.npy\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=5,
            node="node1",
            forbid=r"/dev/shm",
            retry="storage",
        ),
    ),
    Case(
        name="a-log-of-data-about-full-disks",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        step=10,
        ranks={
            2: Rank(
                err="sample 88: 'OSError: [Errno 28] No space left on device'  -> class storage\nsample 89: 'slurmstepd: error: Detected 1 oom_kill event'  -> class memory\nsample 90: 'CUDA error: uncorrectable ECC error encountered'  -> class hardware\n"
                'Traceback (most recent call last):\n  File "/home/ada/logs/train.py", line 70, in <module>\n    loss = cross_entropy(logits, target)\n  File "'
                + SITE
                + '/torch/nn/functional.py", line 3494, in cross_entropy\n    return torch._C._nn.cross_entropy_loss(\nValueError: Expected input batch_size (32) to match target batch_size (31).\n',
                status=1,
            )
        },
        others=Rank(err="sample 11: 'NCCL WARN Connection refused'  -> class network\n"),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=2,
            node="node1",
            forbid=r"disk is full|free (disk )?space|quota|ECC error|\bbad GPU\b|\boom\b|more host memory|hardware fault|broken hardware",
            retry="crash",
        ),
    ),
]

CASES = finish(CASES)
