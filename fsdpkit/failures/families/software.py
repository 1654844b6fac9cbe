"""Causes: an environment, a module, a version or a script that is not as the job needs it."""

from __future__ import annotations

from fsdpkit.errors import STEP_FAILED
from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern

OWN_STEP = Cause(
    "own-step",
    "A step of the job's own failed before the training began: {who}: {words}",
    retry="settings",
    again="not by itself",
    statuses=frozenset({STEP_FAILED}),
)

VERSION_MISMATCH = Cause(
    "version-mismatch",
    "Parts of the software do not fit together on {who}: {words}",
    patterns=(
        pattern(
            ("river/library version mismatch", "NVML/RM version mismatch"),
            "NVML, of a driver that was updated and not loaded again",
        ),
        pattern(
            (
                *("ersion incompatib", "ersion mismatch", "binary incompatib", " versions"),
                *("compiled with", "compiled against", "built with", "built against"),
            ),
            "cuDNN, NVML, protobuf and others, for a library of another release",
            line=r"(?i)(?:version|binary) (?:incompatib|mismatch)|"
            r"\bincompatible\b.*\bversions\b.*\d\.\d|"
            r"(?:compiled|built) +(?:with|against) .+ but |"
            r" but .+ (?:compiled|built) +(?:with|against)\b",
        ),
        pattern("The ranks differ in their software", "our trainer, which compares as well"),
        pattern(
            ("operator ", "Numpy is not available"),
            "torch, of an extension or a numpy of another release than it was built for",
            by=("rank",),
            line=r"\boperator \w+::[\w.]+ does not exist|No such operator \w+::|"
            r"^(?:\S+: )?Numpy is",
        ),
        pattern(
            ("unsupported GNU version", "nsupported gpu architecture"),
            "nvcc, of a compiler or a GPU newer than itself",
        ),
        pattern(
            ("out of date", "outdated", "too old"),
            "libraries, of a release that is older than what is asked of it",
            by=("rank",),
            line=r"(?i)\b(?:version|release)\b(?: of \S+)? (?:is|seems) "
            r"(?:out of date|outdated|too old)",
        ),
        pattern(
            ("apability ", "GPUs or newer"),
            "FlashAttention, vLLM and others, of a GPU older than what they compute with",
            by=("rank",),
            line=r"(?i)only support\w* .{0,40}\bGPUs or newer|"
            r"\b(?:compute|cuda) capability (?:of )?(?:at least|>=|≥|greater|or higher)",
        ),
        pattern(
            ("' not found (required by", "undefined symbol: ", "symbol lookup error: "),
            "the dynamic linker, of a library of another release, whatever exception carries it",
            quoted=True,
        ),
        pattern(
            (
                "river version is insufficient",
                *("no kernel image is available", "driver on your system is too old"),
                *(
                    "hipErrorNoBinaryForGpu",
                    "Unable to find code object",
                    "invalid device function",
                ),
                *("does not match the version torch was compiled with",),
                *(
                    "forward compatibility was attempted",
                    "display driver / cuda driver combination",
                    "PTX was compiled with an unsupported",
                ),
            ),
            "CUDA, HIP and NVML, of a driver or a GPU that this build is not for",
        ),
    ),
)

ENVIRONMENT_MISSING = Cause(
    "environment-missing",
    "The environment could not be set up on {who}: {words}",
    patterns=(
        pattern(("CondaError: ", "conda init"), "conda", line=r"(?i)run 'conda init'|CondaError"),
        pattern(
            "execve(): ",
            "slurmstepd, when a program is missing or not executable",
            by=("agent", "batch"),
        ),
        pattern(
            "FATAL: ",
            "apptainer, when it cannot create the container",
            by=("agent", "batch"),
            line=r"FATAL:\s+(?:container creation failed|could not open image|while )",
        ),
        pattern(
            ("bad interpreter", "required file not found"),
            "the shell, for a script whose interpreter has moved",
            by=("agent", "batch"),
        ),
        pattern(
            ": No such file or directory",
            "the shell, for a file that the job's prelude sources",
            by=("agent", "batch"),
            line=r"slurm_script: line \d+: ",
        ),
        pattern(
            "slurm_script: ",
            "the shell in another language, of a file or a program that the prelude does not find",
            by=("agent", "batch"),
            line=r"slurm_script: (?!line )\S+ \d+: (?:\S*/\S*|[\w.+-]+)\s?: \S",
        ),
        pattern(
            "pyxis:  ",
            "enroot, whose log pyxis prints",
            by=("agent", "batch"),
            line=r"pyxis: {2,}\S.*(?i:denied|not found|no such|failed|cannot)",
        ),
        pattern(
            ("pyxis: couldn't start container", "pyxis: failed to import"),
            "pyxis",
            by=("agent", "batch"),
        ),
        pattern(
            "spank: required plugin ",
            "Slurm, of a plugin that sets up containers and the like",
            by=("agent", "batch"),
        ),
        pattern(
            ("fatal error: ", "cannot find -l"),
            "gcc, nvcc and ld, of headers and libraries that the node lacks",
            line=r": fatal error: \S+\.h(?:pp)?: |\bld: cannot find -l",
        ),
        pattern(
            (
                *("Failed to find C compiler", "CUDA_HOME environment variable is not set"),
                *("Ninja is required to load C++ extensions", "Cannot find CUDA_HOME"),
            ),
            "Triton and torch's builder of extensions, of tools that the node lacks",
        ),
        pattern("The following module(s) are unknown", "Lmod"),
        pattern("Unable to locate a modulefile for", "Environment Modules"),
        pattern(("EnvironmentNameNotFound", "EnvironmentLocationNotFound"), "conda"),
        pattern(
            "not found",
            "the shell, in the batch script or around the agent",
            by=("agent", "batch"),
            line=r"(?:python|torchrun|conda|module|apptainer): (?:command )?not found",
        ),
        pattern(
            ("No such file or directory", "cannot execute"),
            "the shell, when the environment's directory is not on this node",
            by=("agent", "batch"),
            line=r"^\S*(?:bash|exec)\S*: .*(?:python|torchrun)\S*: ",
        ),
    ),
)

SCRIPT_NOT_VISIBLE = Cause(
    "script-not-visible",
    "{who} cannot see a file that the job needs: {words}",
    patterns=(
        pattern("can't open file '", "Python, of the script that it is to run"),
        pattern("can't find '__main__' module in ", "Python, of a directory that is empty"),
        pattern(
            "ould not open std",
            "slurmstepd, of the job's own output",
            by=("agent", "batch"),
            line=r"slurmstepd\S*: error: Could not open std(?:in|out|err) file ",
        ),
    ),
)

IMPORT_ERROR = Cause(
    "import-error",
    "{who} could not import a module: {words}",
    patterns=(
        pattern(("ModuleNotFoundError: ", "ImportError: "), "Python"),
        pattern("No module named ", "python -m, and whoever quotes Python"),
        pattern("error while loading shared libraries: ", "the dynamic linker"),
        pattern("cannot open shared object file", "dlopen(3)"),
        pattern(
            (".so", "load symbol"),
            "cuDNN, nvrtc and others that open their libraries by themselves",
            line=r"(?i)(?:unable|failed|could not|cannot|can't)(?: to)? (?:load|dlopen|open)\b.*"
            r"(?:\blib[\w+-]+\.so\b|symbol \w+)",
        ),
        pattern("Failed to import ", "transformers, of one of its own modules"),
    ),
)
