"""What to do about environments, containers, packages, releases and the script itself."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

_START = ("environment-missing", "refused", "version-mismatch", "node-failure")
_TOOLS = (
    "Name the modules that bring what it is built with (a compiler, cuda for nvcc and libraries "
    "such as libcurand) in environment.modules, or build it before the job.",
    "[container] Build it into the image, or take one for development (-devel), which has the "
    "compiler and CUDA's libraries.",
)
_BUILD = ("environment-missing", "import-error", "version-mismatch", "exception", "data-missing")

ENTRIES = (
    Advice(
        "A registry of images wants to know who asks",
        (
            "The registry refused the image. Check its name and tag (without a registry's name it "
            "is looked for on Docker Hub), and put credentials where the job finds them "
            "(~/.config/enroot/.credentials, apptainer registry login).",
        ),
        (
            *("401 unauthorized", "403 forbidden", "pull access denied", "manifest unknown"),
            *("requested access to the resource is denied", "toomanyrequests"),
        ),
        causes=_START,
        around=True,
    ),
    Advice(
        "A container's mount has no place",
        (
            "The image has no directory where something is to be mounted: make it in the image "
            "(mkdir), have the engine make it (apptainer: enable underlay or overlay), or leave "
            "that mount out.",
        ),
        ("doesn't exist in container", "mount point does not"),
        causes=_START,
    ),
    Advice(
        "A container's image is older than the node",
        (
            "The image is older than the node, whose libraries of the driver come into it (--nv): "
            "take a newer base image, one with at least the node's glibc (ldd --version).",
        ),
        ("glibc_…not found (required by /.singularity", "glibc_…not found…/.singularity.d"),
    ),
    Advice(
        "A container engine could not set up the GPU on a node",
        (
            "The container engine could not set up the GPU's libraries there, which is the "
            "centre's to mend.",
            "[one] Leave the node out ({exclude}) and tell the centre.",
        ),
        ("nvidia-container-cli", "nvidia-container-runtime", "libnvidia-container"),
        causes=(*_START, "bad-gpu"),
    ),
    Advice(
        "A container engine may not write on the node",
        (
            "The container engine is not set up for you on that node ({path}): tell the centre.",
            "[else] The container engine is not set up for you on that node: tell the centre.",
            "[one] Until then leave the node out ({exclude}).",
        ),
        ("pyxis: …permission denied", "enroot…permission denied", "user namespace"),
        causes=_START,
    ),
    Advice(
        "slurmd's own files are not there",
        (
            "The node lost what Slurm had put there, which is not the job's fault: report the "
            "line to the centre.",
            "[one] Leave the node out ({exclude}).",
        ),
        ("/slurm_script: no such file", "couldn't find the program on the node"),
        causes=(*_START, "script-not-visible"),
    ),
    Advice(
        "A container could not be started",
        (
            "Check on a node that the image is there and whole, and so is what is mounted into it: "
            "starting it by hand in a short job shows the same.",
        ),
        ("pyxis: ", "fatal:   container", "fatal:   while", "fatal:   could not open", "enroot"),
        causes=("environment-missing",),
    ),
    Advice(
        "A module of the cluster is not known",
        (
            "Compare the names in environment.modules with what the nodes have (module spider "
            "NAME): it may need another one loaded before it.",
        ),
        ("module(s) are unknown", "unable to locate a modulefile", "cannot load the module"),
    ),
    Advice(
        "The node's tools of a build are missing",
        _TOOLS,
        (
            *(
                "cannot find -l",
                "fatal error: ",
                "find c compiler",
                "cuda_home",
                "ninja is required",
            ),
            *("error building extension", "torch_extensions", "unsupported gnu version"),
            *("/gcc', ", "/g++', ", "/nvcc', ", "/cc', ", "['ninja',"),
        ),
        causes=_BUILD,
    ),
    Advice(
        "An extension was not built, for the lines before say what was missing",
        _TOOLS,
        ("cannot find -l", "fatal error: ", "error building extension"),
        causes=("import-error", "environment-missing"),
        around=True,
    ),
    Advice(
        "A package was built for another release of NumPy",
        (
            "A package was built for another NumPy than the environment has: pip install "
            "'numpy<2', or a newer release of that package.",
        ),
        (
            *("numpy.core.multiarray", "numpy.dtype size changed", "numpy is not available"),
            *("numpy._core.multiarray", "compiled against abi", "module 'numpy' has no attribute"),
        ),
        causes=("import-error", "version-mismatch", "exception"),
    ),
    Advice(
        "A package was built for another release of torch",
        (
            "It was built for another torch or CUDA than the job has: install it anew in the same "
            "environment (pip install --no-build-isolation --no-cache-dir --force-reinstall "
            "--no-deps PACKAGE), or the release of it that names this torch.",
        ),
        (
            *("undefined symbol: _zn", "undefined symbol", "symbol lookup error"),
            *("no such operator", "does not exist…operator", "operator …does not exist"),
            *("different cuda", "compiled with…pytorch", "version the torch"),
            "does not match the version torch was compiled with",
        ),
        causes=("version-mismatch", "import-error", "exception"),
    ),
    Advice(
        "bitsandbytes does not find CUDA's libraries",
        (
            "python -m bitsandbytes, run on a node of the job, shows where it looks for CUDA's "
            "libraries: put their directory first with environment.prepend "
            "(LD_LIBRARY_PATH), or install a release with libraries for this CUDA.",
        ),
        ("bitsandbytes", "cuda setup failed"),
        causes=("exception", "import-error", "version-mismatch", "environment-missing"),
    ),
    Advice(
        "A shared library is missing",
        (
            "{library} is not where the loader looks: ldd of what needs it shows more. If a "
            "package brings it, install that in the job's environment; else name its directory in "
            "environment.prepend (LD_LIBRARY_PATH).",
            "[else] The library is not where the loader looks: install it in the job's "
            "environment, or name its directory in environment.prepend (LD_LIBRARY_PATH).",
        ),
        (
            *("cannot open shared object file", "error while loading shared libraries"),
            *("could not load library lib", "failed to open lib", "cannot load lib"),
        ),
    ),
    Advice(
        "The C++ library is older than a package",
        (
            "The loader takes the system's libstdc++, which is older: put the directory of a "
            "newer one first with environment.prepend (LD_LIBRARY_PATH), such as the "
            "environment's own lib.",
        ),
        ("glibcxx_…not found", "cxxabi_…not found"),
    ),
    Advice(
        "The C library is older than a package",
        (
            "That was built on a newer system than the node has: install a build for an older one "
            "(manylinux wheel, conda-forge), or build it there; in a container, take a newer base "
            "image.",
            "[else] That was built for a newer system than the image has: take a newer base "
            "image, or install a build for an older one.",
        ),
        ("glibc_…not found",),
    ),
    Advice(
        "protobuf is newer than what was made with it",
        (
            "A package was made for an older protobuf: a newer release of that package, or pip "
            "install 'protobuf<4'.",
        ),
        ("descriptors cannot be created directly",),
    ),
    Advice(
        "A file of one's own stands before a package",
        (
            "A file of your own has the name of what is imported, or two of your files import "
            "each other: the path in the message says which. Rename it (and remove its "
            "__pycache__), or import within the function.",
        ),
        ("partially initialized module", "same name as the "),
    ),
    Advice(
        "Two packages are of releases that do not fit",
        (
            "Two packages do not fit together: pip check in the job's environment, and install "
            "the release that the message asks for.",
        ),
        (
            "cannot import name…-packages/",
            "requires…but",
            "is required for a normal functioning",
            "outdated",
        ),
        causes=("import-error", "version-mismatch"),
    ),
    Advice(
        "Python was built without a part of itself",
        (
            "This Python was built without that part, for a library was missing then: take "
            "another Python (conda-forge's, a newer module of the site), or build it anew.",
            "[else] The image's Python was built without that part: take another image.",
        ),
        ("no module named '_",),
    ),
    Advice(
        "Python is older than the code",
        (
            "Python's own library does not have that name: the job starts an older Python than "
            "the code wants, which fsdpkit check shows.",
        ),
        ("cannot import name…(/usr/lib",),
        causes=("import-error",),
    ),
    Advice(
        "A package is missing on one node",
        (
            "[apart] {node} sees another environment than the others, which have `{module}`: put "
            "it on a file system that all nodes share.",
        ),
        ("no module named",),
        causes=("import-error",),
        scopes=("node",),
    ),
    Advice(
        "A package is missing",
        (
            "`{module}` is not in the environment that the job activates: python -m pip install "
            "there. If it is there, fsdpkit check shows which Python the job starts. If it is a "
            "file of yours: PYTHONPATH, or run from its directory.",
            "[container] The job sees only what the image has, and what is mounted into it.",
        ),
        ("no module named",),
    ),
    Advice(
        "A Hugging Face repository wants to know who asks",
        (
            "Accept the terms of {repository} on huggingface.co with your account, and give the "
            'job a token: environment.pass = ["HF_TOKEN"], or log in once (hf auth login) with '
            "HF_HOME where the nodes see it.",
            "[else] Give the job a token that may read it: environment.pass = "
            '["HF_TOKEN"], or hf auth login with HF_HOME where the nodes see it.',
        ),
        (
            *("gated repo", "401 client error…huggingface", "huggingface…401 client error"),
            "repositorynotfounderror",
        ),
    ),
    Advice(
        "A model is neither a directory nor a name of the hub",
        (
            "Of a directory: it is not there, as seen from where the job runs. Of a name of the "
            "hub: check how it is spelt; a private one wants a token (environment.pass = "
            '["HF_TOKEN"]).',
        ),
        ("is not a valid model identifier", "incorrect path_or_model_id"),
    ),
    Advice(
        "Weights & Biases wants a key",
        (
            "The job has no key of Weights & Biases: wandb login on the login node (~/.netrc), "
            'environment.pass = ["WANDB_API_KEY"], or '
            "write offline ({set:environment.variables.WANDB_MODE=offline}).",
        ),
        ("api_key not configured", "wandb…api key", "wandb login", "wandb.login", "wandb…401"),
    ),
    Advice(
        "A certificate could not be verified",
        (
            "The job does not know who signed the server's certificate, often that of a proxy: "
            "name the centre's bundle in SSL_CERT_FILE and REQUESTS_CA_BUNDLE "
            "(environment.variables), or download on the login node.",
        ),
        ("certificate_verify_failed", "certificate verify failed"),
    ),
    Advice(
        "A locale is not there on the node",
        (
            "The locale that the job brings along is not on that node: set another "
            "({set:environment.variables.LC_ALL=C.UTF-8}).",
        ),
        ("locale::facet", "unsupported locale setting", "_s_create_c_locale"),
    ),
    Advice(
        "Python writes ASCII only",
        (
            "The job runs without a UTF-8 locale, so that other letters cannot be written "
            "({set:environment.variables.PYTHONUTF8=1}), or a file is opened without encoding.",
        ),
        (
            "'ascii' codec can't encode",
            "'ascii' codec can't decode",
            "'latin-1' codec can't encode",
        ),
    ),
    Advice(
        "git does not trust a work tree of another owner",
        (
            "git does not trust a work tree of another owner: git config --global --add "
            "safe.directory DIRECTORY (the line before the traceback names it), or take the "
            "commit before the job and pass it on.",
        ),
        ("dubious ownership",),
        around=True,
        causes=("exception", "environment-missing"),
    ),
    Advice(
        "Native code crashed",
        (
            "Native code crashed. {set:environment.variables.PYTHONFAULTHANDLER=1} makes the next "
            "run print at which line of Python.",
            "Often a library was built for another torch, CUDA or CPU (python -m "
            "torch.utils.collect_env).",
        ),
        (
            *("signal 11", "signal 4 (", "signal 8 (", "signal 6 (", "segmentation fault"),
            *("double free", "corrupted ", "free():", "malloc()", "stack smashing"),
        ),
        causes=("exception",),
    ),
    Advice(
        "A process left without a word",
        (
            "It printed no exception. See the last lines of each rank: fsdpkit logs {run} --all "
            "--tail 20; and look in the script for what leaves, such as sys.exit.",
        ),
        ("^exit status ",),
        causes=("exception",),
    ),
    Advice(
        "A step of the job's own failed",
        (
            "What it printed is in the job's log (fsdpkit logs {run} --batch) or, of each_node, "
            "in the node's log below submitit/. Correct the file that [steps] names.",
        ),
        causes=("own-step",),
    ),
    Advice(
        "One node has other software than the others",
        (
            "[one] {node} has other software than the rest: use one environment on a file system "
            "that all nodes share, or leave it out ({exclude}).",
            "[alike] See which releases the job has (python -m torch.utils.collect_env, pip "
            "check), and install the one that the message asks for.",
        ),
        causes=("version-mismatch",),
    ),
    Advice(
        "A node does not see the environment",
        (
            "{node} does not see what other nodes do: put the environment on a file system that "
            "all nodes share, or leave the node out ({exclude}) and tell the centre.",
        ),
        ("no such file", "not found"),
        causes=("environment-missing",),
        scopes=("node", "rank"),
    ),
    Advice(
        "Line ends of Windows",
        ("The file has line ends of Windows: dos2unix FILE, or sed -i 's/\\r$//' FILE.",),
        ("sh^m: bad interpreter", "python3^m: ", "env^m: ", "$'\\r': command not found"),
    ),
    Advice(
        "A program is for another kind of processor",
        ("That program is for another kind of processor: install it on a node of that kind.",),
        ("exec format error", "cannot execute binary file"),
    ),
    Advice(
        "A program may not be executed",
        (
            "It may not be executed there: ls -l of it, chmod +x, and mount for a file system "
            "without execution (noexec).",
        ),
        ("permission denied",),
        causes=("environment-missing",),
    ),
    Advice(
        "A variable of the prelude is not set",
        ("The shell stops at variables that are not set (set -u): set it, or write ${NAME:-}.",),
        ("unbound variable",),
    ),
    Advice(
        "conda does not know the environment, or is not set up",
        (
            "Give the whole path in environment.conda (conda env list shows it): fsdpkit "
            "activates it by itself, and conda activate needs conda init, which a batch shell "
            "does not read.",
        ),
        ("conda",),
        causes=("environment-missing",),
    ),
    Advice(
        "There is no command for modules",
        (
            "A batch shell does not have the command `module` by itself: name modules in "
            "environment.modules, for which fsdpkit sets it up, or source the site's profile.",
        ),
        ("module: ", "module : ", "'module' command"),
        causes=("environment-missing",),
    ),
    Advice(
        "What the environment consists of is not there",
        (
            "See on a node whether {path} is there: what lies on scratch may have been purged, "
            "and an environment that was moved has to be made anew.",
        ),
        ("no such file", "cannot execute: required", "bad interpreter"),
        causes=("environment-missing",),
    ),
    Advice(
        "The environment could not be set up",
        ("What the job's shell printed: fsdpkit logs {run} --batch",),
        causes=("environment-missing",),
    ),
    Advice(
        "A library cannot be loaded",
        ("Install what the message names into the environment that the job activates.",),
        causes=("import-error",),
    ),
)
