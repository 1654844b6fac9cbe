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


_OF_A_GPU = re.compile(
    r"(?i)\bcuda|\bcu(?:py|blas|dnn|fft)|\bhip|gpu|\bxpu|\brocm|\brmm\b|thrust|"
    r"device (?:ordinal|memory)"
)


def is_of_gpu(raised: PrintedException) -> bool:
    return _OF_A_GPU.search(f"{raised.type} {raised.message}") is not None


# Files that are not there


_PATH = re.compile(r"'([^'\n]+)'")
_OF_A_TOOL = re.compile(
    r"triton|torchinductor|inductor|torch_extensions|/__pycache__/|\.lock$|/proc/|/cache-\w+\.arrow$"
)
_TAKES = re.compile(
    r"\b(?:shutil|pathlib|os)\b\S* in _?(?:rmtree|move|rename|replace|unlink|rmdir|chmod)|"
    r"\bos\.(?:remove|unlink|rename|replace|rmdir|chmod)\(|\.unlink\("
)


def was_taken(raised: PrintedException) -> bool:
    """Whether a call that removes, renames or changes files missed it: another was faster."""
    calls = f"{raised.frames[-1]} {raised.source}" if raised.frames else ""
    return " -> " in raised.message or _TAKES.search(calls) is not None


def is_of_data(raised: PrintedException) -> bool:
    """Whether the file is one that a person would have put there: a name without a directory is a
    program that was to be run, and the caches of compilers and data sets belong to nobody."""
    paths = _PATH.findall(raised.message)
    if was_taken(raised) or any(_OF_A_TOOL.search(path) for path in paths):
        return False
    return not (paths and re.fullmatch(r"[\w.+-]+", paths[0]) and "." not in paths[0])


def quotes_data(raised: PrintedException) -> bool:
    """The same of a FileNotFoundError that another exception quotes."""
    _, error, words = raised.message.partition("FileNotFoundError: ")
    return not error or is_of_data(PrintedException(type="", message=words.partition("\n")[0]))


# Out of reach


_CLIENTS = re.compile(r"(?:requests|urllib3?|httpx|aiohttp|botocore|huggingface_hub|wandb)\.")
_OUT_OF_REACH = re.compile(
    r"(?i)connect|resol(?:ve|ution)|name or service not known|unreachable|timed?[ -]?out|"
    r"max retries|offline|no route|network|no such host|dial tcp"
)
_ELSEWHERE = re.compile(
    r"https?://(?!localhost|127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|\[?::1)[\w.-]+|"
    r"host='(?!localhost|127\.|10\.)[\w.-]+'|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|co|io|ai|net):\d+"
)
_PATH_OF_A_URL = re.compile(r"(\w+://[^/\s'\"]+)[^\s'\"]*")


def not_reached(text: str) -> bool:
    """Whether the text says that something could not be reached."""
    said_itself = _PATH_OF_A_URL.sub(r"\1", text)
    of_ranks = re.search(r"TCPStore|c10d|gloo/|NCCL|nccl", text)
    return _OUT_OF_REACH.search(said_itself) is not None and not of_ranks


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
    local = "localhost" in first or "127.0.0.1" in first or ".service." in raised.type
    by_client = _CLIENTS.match(raised.type) is not None
    return _ELSEWHERE.search(first) is not None or (by_client and not local)
