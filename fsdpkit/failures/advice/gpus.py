"""What to do about GPUs: broken, not seen, too old, or computing with what is not there."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

_LEAVE_OUT = "[one] Leave the node out ({exclude}) and tell the centre."
_SERIAL = (
    "CUDA_LAUNCH_BLOCKING=1 ({set:environment.variables.CUDA_LAUNCH_BLOCKING=1}) makes the "
    "traceback end at the operation."
)

ENTRIES = (
    Advice(
        "The fabric manager of a node with NVSwitch is not running",
        (
            "The service that connects the node's GPUs (nvidia-fabricmanager) is not running, "
            "which only the centre can change: tell it.",
            "[one] Until then leave the node out ({exclude}).",
        ),
        ("system not yet initialized", "cuda failure 802", "error 802"),
    ),
    Advice(
        "A process sees fewer GPUs than it counts on",
        (
            "Compare nvidia-smi -L and CUDA_VISIBLE_DEVICES, as a rank has them, with the number "
            "of ranks on a node (resources.gpus). A process sees one slice of a MIG GPU only, and "
            "slices cannot train together: request whole GPUs.",
        ),
        ("device >= 0 && device < num_gpus",),
    ),
    Advice(
        "Lightning is given GPUs that the process does not see",
        (
            'Let it count for itself: devices="auto" (and num_nodes as in the job). Where each '
            "task was given a GPU of its own (--gpus-per-task, --gpu-bind), a rank sees only that.",
        ),
        ("misconfigurationexception…requested gpu", "but your machine only has"),
    ),
    Advice(
        "A rank asked for a GPU that it does not see",
        (
            "Choose the GPU by LOCAL_RANK, never by the rank among all nodes, and compare the "
            "ranks of a node (resources.gpus) with nvidia-smi -L and CUDA_VISIBLE_DEVICES there.",
        ),
        ("invalid device ordinal", "invalid device_id", "device index must be"),
    ),
    Advice(
        "Several ranks use the same GPU",
        (
            "Each rank must choose its own GPU before it joins or allocates anything: "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).',
        ),
        ("duplicate gpu detected", "on the compute device cuda:…was on cuda:"),
    ),
    Advice(
        "Several processes hold memory of the same GPU",
        (
            'Several processes hold memory of this GPU. torch.load(…, map_location="cpu") keeps a '
            "file's tensors from going to the GPU that saved them, and "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else keeps each '
            "rank on its own.",
        ),
        ("out of memory…process…has…process…has…process…has",),
    ),
    Advice(
        "A kernel wants more shared memory than a multiprocessor has",
        (
            "One kernel wants more on-chip memory than this GPU has, so that a smaller batch does "
            "not help: smaller blocks or fewer stages of the kernel (a smaller head dimension, "
            "other torch.compile options), another release of torch and Triton, or other GPUs.",
        ),
        ("out of resource", "no valid triton configs"),
    ),
    Advice(
        "An index on the GPU is out of range",
        (
            "An index is out of range on the GPU, most often a token that is not below the size "
            "of the embedding, a position beyond its length, or a label that is not below the "
            "number of classes: check the batch for its largest and smallest value.",
            _SERIAL,
        ),
        (
            *("device-side assert triggered", "device-side assertion failed"),
            *("srcindex < srcselectdimsize", "index out of bounds", "cur_target"),
        ),
        causes=("exception", "bad-gpu"),
    ),
    Advice(
        "A kernel accessed memory that is not its own",
        ("A kernel used an address that is not its own.", _SERIAL),
        (
            *("illegal memory access", "unspecified launch failure", "misaligned address"),
            *("memory access fault by gpu", "an illegal instruction was encountered"),
        ),
        causes=("exception",),
    ),
    Advice(
        "The GPU lacks a data type",
        (
            "The GPU does not compute with that data type. bfloat16 takes compute capability 8.0 "
            "(Ampere), FP8 8.9: use float16, or newer GPUs (resources.constraint).",
            "[one] If only {node} has older GPUs, leave it out ({exclude}).",
        ),
        (
            *("cublas_status_not_supported", "support bf16", "bf16 is not supported"),
            *("bfloat16 is not supported", "bfloat16 is only supported", "required for fp8"),
            *("bf16…ampere", "bf16 not supported"),
        ),
    ),
    Advice(
        "The GPU is older than a kernel asks for",
        (
            "Ask for newer GPUs (resources.constraint, --partition), or choose what these can "
            "compute: another attention, float16 in place of bfloat16.",
            "[one] If only {node} has older GPUs, leave it out ({exclude}).",
        ),
        (
            *("compute capability", "cuda capability", "gpus or newer"),
            "requires device with capability",
        ),
        causes=("exception", "version-mismatch"),
    ),
    Advice(
        "The driver is older than the CUDA toolkit of what runs",
        (
            "[one] The driver of {node} is older than the CUDA toolkit that this was built with: "
            "leave the node out ({exclude}), and tell the centre.",
            "[alike] The driver is older than the CUDA toolkit that this was built with: install "
            "a build for a CUDA that nvidia-smi names there, or none newer.",
        ),
        (
            *("unsupported toolchain", "unsupported ptx", "version is insufficient"),
            *("driver on your system is too old", "forward compatibility was attempted"),
            "display driver / cuda driver combination",
        ),
    ),
    Advice(
        "The build has no kernels for this GPU",
        (
            "This build has no kernels for that GPU: install one that names its architecture "
            "(torch.cuda.get_arch_list()), and build extensions with TORCH_CUDA_ARCH_LIST for it.",
            "[one] If only {node} has other GPUs, leave it out ({exclude}).",
        ),
        (
            *("no kernel image is available", "hiperrornobinaryforgpu", "invalid device function"),
            *("unable to find code object", "nsupported gpu architecture"),
        ),
    ),
    Advice(
        "A library of CUDA's could not start on the GPU",
        (
            "cuBLAS and cuDNN need memory of their own when they start: see what else holds "
            "memory of that GPU (nvidia-smi), use a smaller batch, or call them once before the "
            "GPU is full.",
        ),
        (
            *("cublascreate", "cudnn_status_not_initialized", "cublas_status_alloc_failed"),
            *("cublas_status_not_initialized", "cusolver_status_internal_error"),
        ),
        causes=("exception", "gpu-out-of-memory"),
    ),
    Advice(
        "The driver was updated and not loaded again",
        (
            "The node's driver was updated and has to be loaded again, which only the centre can "
            "do: tell it.",
            "[one] Until then leave the node out ({exclude}).",
        ),
        ("nvml/rm version mismatch", "driver/library version mismatch"),
    ),
    Advice(
        "No process sees a GPU",
        (
            "[apart one] Leave the node out ({exclude}) and tell the centre.",
            "[else] [container] The container shows no GPU: it must be started with the driver's "
            "libraries (--nv, --rocm), and its torch must be built for CUDA or ROCm.",
            "[else] [host] No process sees a GPU: compare python -c 'import torch; "
            "print(torch.version.cuda)' in the job's environment, CUDA_VISIBLE_DEVICES and "
            "nvidia-smi on such a node.",
        ),
        (
            *("gpus are available", "no nvidia driver", "no cuda-capable", "no rocm-capable"),
            *("cuda_error_no_device", "hiperrornodevice", "no supported devices found"),
        ),
    ),
    Advice(
        "Another process uses the GPU",
        (
            "Another process has this GPU for itself: a second one of this run, if ranks do not "
            "choose their GPU by LOCAL_RANK, or one that outlived its job (nvidia-smi shows it).",
            "[one] Of another's job, leave the node out ({exclude}) and tell the centre.",
        ),
        ("busy or unavailable", "another process holds gpu memory"),
    ),
    Advice(
        "A GPU is broken, on one node",
        (_LEAVE_OUT, "[alike] Tell the centre, with the line above."),
        causes=("bad-gpu",),
    ),
)
