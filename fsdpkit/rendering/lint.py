"""What a Slurm admin would mark in a batch script, found before anything is queued.

Pure and quick: text in, findings out. It reads the text the way sbatch does and bash's only as far
as words, quotes, comments and here-documents; `bash -n` and shellcheck remain the judges of syntax.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.config.sbatch_spellings import LONG_OPTIONS
from fsdpkit.config.spelling import nearest
from fsdpkit.rendering.directives import DirectiveError, split_directive

MAX_SCRIPT_BYTES = 4_000_000  # SchedulerParameters=max_script_size, Slurm's default
_MOST = 100  # findings of a kind: nobody reads more, and some take long to word
PORTAL_BYTES = 65_000
"""What Open OnDemand's Job Composer still shows as a script (OOD_MAX_SCRIPT_SIZE_KB, 65)."""

# sbatch(1) of 22.05, with the options that later versions added.
_GPU_FORMS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")


class LintFinding(msgspec.Struct, frozen=True):
    """One thing to correct (`error`: the script must not be submitted) or to know (`warning`)."""

    line: int
    severity: Literal["error", "warning"]
    message: str


def lint(script: str, plugin_options: Collection[str] = ()) -> list[LintFinding]:
    """Findings in the order of the lines. plugin_options: long options that this site's Slurm
    plugins add to sbatch's own."""
    lines = script.split("\n")
    found = [_file(script, lines), _directives(lines, plugin_options), _body(lines)]
    some = [finding for kind in found for finding in islice(kind, _MOST)]
    return sorted(some, key=lambda finding: finding.line)


def _error(line: int, message: str) -> LintFinding:
    return LintFinding(line, "error", message)


def _warning(line: int, message: str) -> LintFinding:
    return LintFinding(line, "warning", message)


def _file(script: str, lines: list[str]) -> Iterator[LintFinding]:
    """What sbatch checks before it reads (sbatch.c, script checks)."""
    if not lines[0].startswith("#!"):
        yield _error(1, "no shebang: sbatch refuses a script that does not begin with #!")
    if "\0" in script:
        yield _error(script[: script.index("\0")].count("\n") + 1, "a NUL character")
    if "\r" in script:
        at = script[: script.index("\r")].count("\n") + 1
        yield _error(at, "a carriage return (DOS line break): sbatch refuses it, bash misreads it")
    size = len(script.encode(errors="surrogatepass"))
    if size > MAX_SCRIPT_BYTES:
        yield _error(1, f"{size} bytes: Slurm takes at most {MAX_SCRIPT_BYTES} (max_script_size)")
    elif size > PORTAL_BYTES:
        yield _warning(1, f"{size} bytes: Open OnDemand's Job Composer does not show it")


def _directives(lines: list[str], plugin_options: Collection[str]) -> Iterator[LintFinding]:
    known = LONG_OPTIONS.union(plugin_options)
    seen: dict[str, int] = {}
    gpu_forms: dict[str, int] = {}
    reading = True
    for number, line in enumerate(lines, 1):
        if line.startswith("#SLURM"):
            yield _error(number, "#SLURM is read as a directive by some versions: write #SBATCH")
        if not line.startswith("#SBATCH"):
            reading = reading and (line.startswith("#") or not line.strip())
            continue
        if not reading:
            yield _error(number, "a directive after the first command: sbatch does not read it")
            continue
        text = line.removeprefix("#SBATCH")
        try:
            arguments = split_directive(text)
        except DirectiveError as error:
            yield _error(number, f"sbatch cannot read this line: {error}")
            continue
        if "$" in text or "`" in text:
            yield _warning(number, "nothing is expanded in a directive: $ and ` stay as they are")
        for name, value in _options(arguments):
            if name not in known:
                near = nearest(name, known)
                yield _error(number, f"sbatch has no option --{name}.{near}")
            if name in seen:
                yield _error(number, f"--{name} again: only the last counts (line {seen[name]})")
            seen[name] = number
            if name == "gpus-per-task":
                yield _error(number, "--gpus-per-task gives the one task of a node a part of it")
            if name in _GPU_FORMS:
                gpu_forms[name] = number
            elif name in ("gres", "tres-per-task") and re.search(r"(^|,)(gres[:/])?gpu\b", value):
                gpu_forms[f"{name}=gpu"] = number
    if len(gpu_forms) > 1:
        forms = " and ".join(f"--{form}" for form in gpu_forms)
        yield _error(max(gpu_forms.values()), f"GPUs are asked for in two forms: {forms}")


def _options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Long options with their values; a short option and what belongs to it is left alone."""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            yield name, value


_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"\\]?)(?P<word>\w+)['\"]?")
_QUOTED_OR_COMMENT = re.compile(
    _HEREDOC.pattern + r"""|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|(?<=[\s;]))#.*"""
)
_COMMAND = r"(?:^|[;|&(]|\b(?:then|do|else|if|while|until|sudo|exec|time|nohup)\b|!)\s*"


class _Forbidden(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of lint.toml."""

    line: str
    why: str
    command: bool = False


@cache
def _forbidden() -> list[tuple[re.Pattern[str], str]]:
    """Read when a script first looks suspicious, which is hardly ever."""
    text = Path(__file__).with_suffix(".toml").read_bytes()
    found = msgspec.toml.decode(text, type=dict[str, tuple[_Forbidden, ...]])["forbidden"]
    return [(re.compile(_COMMAND * one.command + one.line), one.why) for one in found]


# Decides whether a line needs the patterns above.
_SUSPICIOUS = re.compile(
    r"pkill|killall|skill|slay|SLURM_LAUNCH_NODE_IPADDR|localhost|127\.|::1|gpus-per-task|RANDOM|conda\s+init"
)


def _bare(line: str) -> str:
    """The line without comments and without quoted text, save where that is expanded."""
    if "'" not in line and '"' not in line and "#" not in line and "\\" not in line:
        return line
    return _QUOTED_OR_COMMENT.sub(_bare_piece, line)


def _bare_piece(found: re.Match[str]) -> str:
    piece = found.group()
    if found["word"]:  # a here-document's
        return piece
    if piece[0] == "'":
        return "''"
    if piece[0] == '"':
        return piece if "$" in piece or "`" in piece else '""'
    return "" if piece[0] == "#" else piece


class _Command(msgspec.Struct):
    """A logical line: continued lines joined, its here-document left out."""

    line: int
    text: str


def _body(lines: list[str]) -> Iterator[LintFinding]:
    for number, line in enumerate(lines, 1):
        if _SUSPICIOUS.search(line) and not line.startswith("#SBATCH"):
            bare = _bare(line)
            for pattern, message in _forbidden():
                if pattern.search(bare):
                    yield _error(number, message)
    commands = list(_commands(lines))
    launches = [n for n, c in enumerate(commands) if re.search(_COMMAND + r"srun\b", c.text)]
    for launch in (commands[n] for n in launches):
        heredoc = _HEREDOC.search(launch.text)
        if heredoc and not heredoc["quote"]:
            yield _error(
                launch.line,
                f"the here-document is not quoted, so the batch shell expands it for all nodes: "
                f"write <<'{heredoc['word']}'",
            )
    if launches:
        yield from _status(commands[launches[-1] :], "".join(lines))


def _status(commands: list[_Command], text: str) -> Iterator[LintFinding]:
    """Is what the last srun returned the script's status?"""
    launch, *rest = commands
    if re.search(r"(?<!\|)\|(?![|&])", launch.text) and "pipefail" not in text:
        yield _error(launch.line, "srun's status is lost in the pipe: set -o pipefail")
    if re.search(r"\|\|\s*(true|:)\s*(#|$)", launch.text):
        yield _error(launch.line, "srun's failure is thrown away")
    if not rest:
        if re.search(r"(?<![&>])&\s*$", launch.text):
            yield _error(launch.line, "srun runs in the background and nothing waits for it")
        return
    last = rest[-1]
    left = re.fullmatch(r"exit\s+\"?\$\{?(?P<name>\w+|\?)\}?\"?", last.text.strip())
    if left and left["name"] == "?":
        kept = last is rest[0]
    else:
        kept = left is not None and any(f"{left['name']}=$?" in c.text for c in commands)
    if not kept:
        yield _error(
            last.line,
            "this command decides the job's status, not srun: keep it (srun … || status=$?) and "
            'end with exit "$status"',
        )


def _commands(lines: list[str]) -> Iterator[_Command]:
    number = 0
    while number < len(lines):
        first, pieces = number + 1, [_bare(lines[number])]
        while pieces[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            pieces[-1] = pieces[-1][:-1]
            pieces.append(_bare(lines[number]))
        text = " ".join(pieces)
        number += 1
        if not text.strip():
            continue
        yield _Command(first, text.strip())
        for heredoc in _HEREDOC.finditer(text) if "<<" in text and "<<<" not in text else ():
            while number < len(lines) and lines[number].strip() != heredoc["word"]:
                number += 1
            number += 1
