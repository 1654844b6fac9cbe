"""Command lines taken apart: which options of a program take a value, and where its own command
begins. Tables name the options *without* a value, for of these there are few; options that are
written with `=` need no table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdpkit.config.sbatch_spellings import LETTERS, LONG_OPTIONS
from fsdpkit.scheduling.batch_file.expansion import is_unknown

WrittenOption = tuple[str, str | None, str]
"""Its name, its value (None: a flag), and both as they stood."""


@dataclass(frozen=True)
class Split:
    """A command line: its options in order, and what they are followed by."""

    options: tuple[WrittenOption, ...]
    rest: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """The value of the last of these options; "" for a flag, None if there is none."""
        found = [value or "" for name, value, _ in self.options if name in names]
        return found[-1] if found else None


@dataclass(frozen=True)
class Grammar:
    """How a program reads its options; `_` and `-` are the same in an option's name."""

    flags: Collection[str]
    letters: Mapping[str, str] = field(default_factory=dict)
    shortened: Collection[str] = ()
    """Options that are known by an unambiguous beginning, too."""

    def split(
        self, words: Sequence[str], starts: Callable[[str], bool] = lambda word: False
    ) -> Split:
        """Options up to the first word that is none, or `--`. starts: whether a word is a program
        that can follow; before one, a word that is unknown as a whole is an option without name."""
        options: list[WrittenOption] = []
        rest = list(words)
        while rest and rest[0] != "-":
            if is_unknown(rest[0]) and any(map(starts, rest[1:])):
                options.append(("", None, rest.pop(0)))
                continue
            if not rest[0].startswith("-"):
                break
            word = rest.pop(0)
            if word == "--":
                break
            if word.startswith("--"):
                options.append(self._long(word, rest))
            else:
                options.extend(self._short(word, rest))
        return Split(tuple(options), tuple(rest))

    def _long(self, word: str, rest: list[str]) -> WrittenOption:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        whole = [each for each in self.shortened if each.startswith(name)]
        name = whole[0] if len(whole) == 1 else name
        if equals:
            return name, value, word
        if name in self.flags or not rest:
            return name, None, word
        value = rest.pop(0)
        return name, value, f"{word} {value}"

    def _short(self, word: str, rest: list[str]) -> Iterator[WrittenOption]:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = self.letters.get(letter, letter)
            if name in self.flags and not letters.isdigit():
                yield name, None, f"-{letter}"
                continue
            if letters:  # such as -N2, and -K1, a flag that may have a value
                yield name, letters.removeprefix("="), f"-{letter}{letters}"
            elif rest:
                value = rest.pop(0)
                yield name, value, f"-{letter} {value}"
            else:
                yield name, None, f"-{letter}"
            return


_LETTERS = LETTERS | {"I": "immediate", "Q": "quiet", "V": "version", "h": "help", "v": "verbose"}
_SRUN_LETTERS = _LETTERS | dict(
    pair.split("=")
    for pair in """E=preserve-env K=kill-on-bad-exit P=dependency T=threads X=disable-status
    Z=no-allocate g=gid l=label r=relative u=unbuffered""".split()  # noqa: SIM905
)
_FLAGS = frozenset(
    "contiguous exclusive help hold ignore-pbs immediate kill-on-bad-exit no-kill no-requeue "  # noqa: SIM905
    "requeue oversubscribe overcommit parsable quiet reboot spread-job test-only use-min-nodes "
    "usage verbose version label unbuffered preserve-env pty multi-prog disable-status whole exact "
    "overlap nice propagate get-user-env nvmps interactive container-mount-home "
    "no-container-mount-home container-writable container-readonly container-remap-root "
    "no-container-remap-root no-container-entrypoint container-entrypoint share x11 send-libs "
    "bcast resv-ports no-allocate quit-on-interrupt stepmgr mpi-combine".split()
)
SBATCH = Grammar(_FLAGS | {"wait"}, _LETTERS, LONG_OPTIONS)
SRUN = Grammar(_FLAGS, _SRUN_LETTERS, LONG_OPTIONS)
TORCHRUN = Grammar(
    frozenset("standalone module no-python run-path use-env virtual-local-rank help".split()),  # noqa: SIM905
    {"m": "module", "r": "redirects", "t": "tee"},
    ("nnodes", "nproc-per-node", "master-addr", "master-port"),
)
ACCELERATE = Grammar(
    frozenset(
        "quiet cpu multi-gpu tpu ipex use-xpu use-mps-device module no-python same-network debug "  # noqa: SIM905
        "use-deepspeed use-fsdp use-megatron-lm use-parallelism-config dynamo-use-fullgraph "
        "dynamo-use-dynamic dynamo-use-regional-compilation enable-cpu-affinity tpu-use-cluster "
        "no-tpu-use-cluster tpu-use-sudo no-tpu-cluster main-training-function help".split()
    ),
    {"m": "module", "q": "quiet"},
)
DEEPSPEED = Grammar(
    frozenset(
        "module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid "  # noqa: SIM905
        "enable-each-rank-log elastic-training bind-cores-to-rank help".split()
    ),
    {"H": "hostfile", "i": "include", "e": "exclude"},
)
