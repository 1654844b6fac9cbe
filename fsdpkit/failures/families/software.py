"""Causes: an environment, a module, a version or a script that is not as the job needs it."""

from __future__ import annotations

from fsdpkit.errors import STEP_FAILED
from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern

OWN_STEP = Cause(
    "own-step",
    "One of the job's own steps failed before training began: {who}: {words}",
    retry="settings",
    again="not by itself",
    statuses=frozenset({STEP_FAILED}),
)

VERSION_MISMATCH = Cause(
    "version-mismatch",
    "Parts of the software are incompatible on {who}: {words}",
    patterns=(
        pattern(
            "river/library version mismatch | NVML/RM version mismatch | "
            "The ranks differ in their software | Numpy is not available | "
            "No such operator  | unsupported GNU version | nsupported gpu architecture | "
            "river version is insufficient | no kernel image is available | "
            "driver on your system is too old | hipErrorNoBinaryForGpu | "
            "Unable to find code object | invalid device function | "
            "does not match the version torch was compiled with | "
            "forward compatibility was attempted | display driver / cuda driver combination | "
            "PTX was compiled with an unsupported",
            "CUDA, HIP and NVML, of a driver or a GPU that this build is not for; our trainer, "
            "which compares as well; torch, of an extension or a numpy of another release; nvcc",
        ),
        pattern(
            "ersion | binary incompatib | compiled | built | operator  | out of date | "
            "outdated | too old | apability  | GPUs or newer",
            "cuDNN, protobuf and others, for a library of another release; FlashAttention, vLLM "
            "and others, of a GPU older than what they compute with",
            line=r"(?i)(?:version|binary) (?:incompatib|mismatch)|"
            r"\bincompatible\b.*\bversions\b.*\d\.\d|"
            r"(?:compiled|built) +(?:with|against) .+ but |"
            r" but .+ (?:compiled|built) +(?:with|against)\b|"
            r"\boperator \w+::[\w.]+ does not exist|"
            r"\b(?:version|release)\b(?: of \S+)? (?:is|seems) (?:out of date|outdated|too old)|"
            r"only support\w* .{0,40}\bGPUs or newer|"
            r"\b(?:compute|cuda) capability (?:of )?(?:at least|>=|≥|greater|or higher)",
        ),
        pattern(
            "' not found (required by | undefined symbol:  | symbol lookup error: ",
            "the dynamic linker, of a library of another release, whatever exception carries it",
            quoted=True,
        ),
    ),
)

ENVIRONMENT_MISSING = Cause(
    "environment-missing",
    "The environment could not be set up on {who}: {words}",
    patterns=(
        pattern(
            "CondaError:  | Run 'conda init' | 'conda init' before | EnvironmentNameNotFound | "
            "EnvironmentLocationNotFound | The following module(s) are unknown | "
            "Unable to locate a modulefile for | Failed to find C compiler | "
            "CUDA_HOME environment variable is not set | Cannot find CUDA_HOME | "
            "Ninja is required to load C++ extensions | ld: cannot find -l",
            "conda; Lmod and Environment Modules; Triton and torch's builder of extensions, of "
            "tools that the node lacks",
            quoted=True,
        ),
        pattern(
            "pyxis:  ",
            "enroot, whose log pyxis prints",
            by=("agent", "batch"),
            line=r"pyxis: {2,}\S.*(?i:denied|not found|no such|failed|cannot)",
        ),
        pattern(
            "execve():  | bad interpreter | required file not found | spank: required plugin  | "
            "FATAL: …container creation failed | FATAL: …could not open image | FATAL:   while  | "
            "pyxis: couldn't start container | pyxis: failed to import",
            "slurmstepd and the shell, when a program is missing or its interpreter has moved; "
            "apptainer, and Slurm's plugins for containers",
            by=("agent", "batch"),
        ),
        pattern(
            "slurm_script: ",
            "the shell, of a file or a program that the prelude does not find, in any language",
            by=("agent", "batch"),
            line=r"slurm_script: line \d+: .*: No such file or directory|"
            r"slurm_script: (?!line )\S+ \d+: (?:\S*/\S*|[\w.+-]+)\s?: \S",
        ),
        pattern(
            "fatal error: ",
            "gcc and nvcc, of headers that the node lacks",
            line=r": fatal error: \S+\.h(?:pp)?: ",
        ),
        pattern(
            "not found | No such file or directory | cannot execute",
            "the shell, in the batch script or around the agent, or when the environment's "
            "directory is not on this node",
            by=("agent", "batch"),
            line=r"(?:python|torchrun|conda|module|apptainer): (?:command )?not found|"
            r"^\S*(?:bash|exec)\S*: .*(?:python|torchrun)\S*: (?!.*command not found)",
        ),
    ),
)

SCRIPT_NOT_VISIBLE = Cause(
    "script-not-visible",
    "{who} cannot see a file that the job needs: {words}",
    patterns=(
        pattern(
            "can't open file ' | can't find '__main__' module in ",
            "Python, of the script that it is to run, or of a directory that is empty",
        ),
        pattern(
            "slurmstepd…ould not open std",
            "slurmstepd, of the job's own output",
            by=("agent", "batch"),
        ),
    ),
)

IMPORT_ERROR = Cause(
    "import-error",
    "{who} could not import a module: {words}",
    patterns=(
        pattern(
            "ModuleNotFoundError:  | ImportError:  | No module named  | "
            "error while loading shared libraries:  | cannot open shared object file | "
            "Failed to import ",
            "Python; the dynamic linker; transformers, of one of its own modules",
        ),
        pattern(
            ".so | load symbol",
            "cuDNN, nvrtc and others that open their libraries by themselves",
            line=r"(?i)(?:unable|failed|could not|cannot|can't)(?: to)? (?:load|dlopen|open)\b.*"
            r"(?:\blib[\w+-]+\.so\b|symbol \w+)",
        ),
    ),
)
