"""What the words of a message show, whatever its type: memory that was not enough, a file that is
missing, a service out of reach. What it quotes is data.
"""

from __future__ import annotations

import re

from fsdpkit.failures.tracebacks import PrintedException

_QUOTED = re.compile(r"(?<![A-Za-z0-9])(['\"`])(?!\s)[^'\"`\n]{1,400}\1(?![A-Za-z])")


def without_quotes(text: str) -> str:
    """The text with dots in place of what it quotes, each line as long as before."""
    return _QUOTED.sub(_masked, text)


def _masked(quoted: re.Match[str]) -> str:
    """What is quoted is data, but for a line that stands in quotation marks as a whole."""
    before = quoted.string[: quoted.start()][-1:]
    behind = quoted.string[quoted.end() :][:1]
    if before in ("", "\n") and behind in ("", "\n"):
        return quoted[0]
    return quoted[1] + "·" * (len(quoted[0]) - 2) + quoted[1]


# Memory


_SHORT_OF_MEMORY = re.compile(
    r"(?i)\bout of (?:\w+ )?memory\b|\bno (?:available|free) memory\b|\bmemory exhausted\b|"
    r"\b(?:can ?not|can't|could not|unable to|failed to) allocate\b[^\n]{0,60}?"
    r"(?:\bmemory\b|\bbytes?\b|\bblock\b|\bvector of size\b|\d ?[KMGT]i?B\b)"
)
_OF_A_GPU = re.compile(
    r"(?i)\bcuda|\bcu(?:py|blas|dnn|fft)|\bhip|gpu|\bxpu|\brocm|\brmm\b|thrust|"
    r"device (?:ordinal|memory)"
)


def is_of_gpu(raised: PrintedException) -> bool:
    return _OF_A_GPU.search(f"{raised.type} {raised.message}") is not None


def memory_short(raised: PrintedException, *, only_first: bool) -> str | None:
    """The memory that a message says was not enough, in whatever program's words: of the node,
    unless something of a GPU is named.

    only_first: only where the message begins with it.
    """
    text = without_quotes(raised.message)
    match = _SHORT_OF_MEMORY.search(text)
    if match is None or (only_first and match.start()):
        return None
    return "gpu-out-of-memory" if is_of_gpu(raised) else "host-out-of-memory"


# Files that are not there


_PATH = re.compile(r"'([^'\n]+)'")
_OF_A_TOOL = re.compile(
    r"triton|torchinductor|inductor|torch_extensions|/__pycache__/|\.lock$|/proc/"
)


def is_of_data(raised: PrintedException) -> bool:
    """Whether the file is one that a person would have put there: a name without a directory is a
    program that was to be run, two are a rename that another process was faster with, and the
    caches of compilers belong to nobody."""
    paths = _PATH.findall(raised.message)
    if " -> " in raised.message or any(_OF_A_TOOL.search(path) for path in paths):
        return False
    return not (paths and re.fullmatch(r"[\w.+-]+", paths[0]) and "." not in paths[0])


def quotes_data(raised: PrintedException) -> bool:
    """The same of a FileNotFoundError that another exception quotes."""
    _, error, words = raised.message.partition("FileNotFoundError: ")
    return not error or is_of_data(PrintedException(type="", message=words.partition("\n")[0]))


_NO_SUCH_FILE = re.compile(
    r"['\"<]/[^'\"<>\n]+['\">][^\n]*: No such file or directory\b|"
    r"^No such file or directory \(os error 2\)|"
    r"'/[^'\n]+', (?:probable )?reason 'No such file or directory'|\bOs \{ code: 2,|"
    r"(?i:\bno (?:\w+ )?files? (?:named|found|in|at|under|match)\b[^\n]* /\S|"
    r"/\S+['\"]? (?:doesn't|does not|contains no|holds no)(?: contain any)? (?:\w+ )?files?\b)"
)
_OF_NO_PERSON = re.compile(
    r"shared memory|\.so\b|\.sock\b|['\"<]/(?:tmp|dev|proc|run|sys|var)/|exec|NCCL|nccl"
)


def misses_a_file(raised: PrintedException) -> bool:
    """Whether any other type of exception says so: libraries in C++ and Rust have types of their
    own. Not of libraries, sockets and what programs put down for themselves."""
    text = raised.message
    missed = _NO_SUCH_FILE.search(text) is not None
    return missed and not _OF_NO_PERSON.search(text) and not _OF_A_TOOL.search(text)


# Out of reach


_CLIENTS = (
    "requests|urllib3|httpx|httpcore|aiohttp|botocore|boto3|aiobotocore|s3fs|gcsfs|fsspec|"
    "huggingface_hub|wandb|mlflow|comet_ml|neptune|google|azure|swanlab|clearml"
)
_BY_CLIENT = re.compile(
    rf"^(?:{_CLIENTS})\.|(?:^|\.)(?:URLError|EndpointConnectionError|NewConnectionError|MaxRetryError|"
    r"ConnectTimeout|ClientConnectorError|ProxyError|CommError|LocalEntryNotFoundError)$"
)
_IN_CLIENT = re.compile(rf"-packages/(?:{_CLIENTS})/|/urllib/request\.py|/http/client\.py")
_OUT_OF_REACH = re.compile(
    r"(?i)connect|resol(?:ve|ution)|name or service not known|unreachable|timed?[ -]?out|"
    r"max retries|offline|no route|network|no such host|dial tcp"
)
_ELSEWHERE = re.compile(
    r"https?://(?!localhost|127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|\[?::1)[\w.-]+|"
    r"host='(?!localhost|127\.|10\.)[\w.-]+'|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|co|io|ai|net):\d+"
)
_REFUSED_BY_SERVER = re.compile(
    r"\b(?:40[0-9]|429|5\d\d)\b[^\n]*(?:Error|Forbidden|Unauthorized|for url)"
)


_PATH_OF_A_URL = re.compile(r"(\w+://[^/\s'\"]+)[^\s'\"]*")


def not_reached(text: str) -> bool:
    """Whether the text says that something could not be reached, and no server that refused."""
    said_itself = _PATH_OF_A_URL.sub(r"\1", text)
    if not _OUT_OF_REACH.search(said_itself) or _REFUSED_BY_SERVER.search(text):
        return False
    return not re.search(r"TCPStore|c10d|gloo/|NCCL|nccl", text)


def outside_not_reached(text: str) -> bool:
    """Whether what could not be reached is a service that the text names, outside the cluster."""
    return not_reached(text) and _ELSEWHERE.search(text) is not None


def is_no_internet(raised: PrintedException) -> bool:
    """Whether a program tried to reach a service outside, and could not."""
    first = "\n".join(raised.message.split("\n")[:4])
    if raised.name == "FileNotFoundError" and re.match(r"\w+://", first):
        return not_reached(raised.in_front)  # a stream of a remote file, after it tried again
    if not not_reached(f"{raised.name} {first}"):
        return False
    by_client = bool(_BY_CLIENT.match(raised.type))
    through_client = any(_IN_CLIENT.search(frame.file) for frame in raised.frames)
    local = re.search(r"localhost|127\.0\.0\.1", first)
    return bool(_ELSEWHERE.search(first) or ((by_client or through_client) and not local))
