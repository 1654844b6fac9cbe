"""Command lines taken apart: which options of a program take a value, and where its own command
begins. Tables name the options *without* a value, for of these there are few; long options that
are written with `=` need no table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdpkit.config.sbatch_spellings import LETTERS
from fsdpkit.scheduling.batch_file.expansion import is_unknown

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
_SBATCH_FLAGS = _FLAGS | {"wait"}


@dataclass(frozen=True)
class Split:
    """A command line: its options in order, and what they are followed by. A flag's value is
    None; `written` is an option with its value as it stood."""

    options: tuple[tuple[str, str | None, str], ...]
    rest: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """The value of the last of these options; "" for a flag, None if there is none."""
        found = [value or "" for name, value, _ in self.options if name in names]
        return found[-1] if found else None


@dataclass(frozen=True)
class Grammar:
    """How a program reads its options."""

    flags: Collection[str]
    letters: Mapping[str, str] = field(default_factory=dict)
    values: Collection[str] = ()
    """Long options that take a value, where a program accepts unambiguous beginnings."""
    underscores: bool = False
    """`_` and `-` are the same in an option's name."""
    single: bool = False
    """Long options may have one dash, as those of mpirun and torchrun's older spellings."""
    pairs: Collection[str] = ()
    """Options that take two values."""

    def split(
        self, words: Sequence[str], starts: Callable[[str], bool] = lambda word: False
    ) -> Split:
        """Options up to the first word that is none, or `--`. starts: whether a word is a program
        that can follow; before one, a word that is unknown as a whole is an option without name."""
        options: list[tuple[str, str | None, str]] = []
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
            if word.startswith("--") or (self.single and len(word) > 2):
                options.append(self._long(word, rest))
            else:
                options.extend(self._short(word, rest))
        return Split(tuple(options), tuple(rest))

    def _long(self, word: str, rest: list[str]) -> tuple[str, str | None, str]:
        name, equals, value = word.lstrip("-").partition("=")
        name = self._whole(name.replace("_", "-") if self.underscores else name)
        if equals:
            return name, value, word
        if name in self.flags or not rest:
            return name, None, word
        taken = [rest.pop(0) for _ in range(1 + (name in self.pairs)) if rest]
        return name, " ".join(taken), " ".join([word, *taken])

    def _whole(self, name: str) -> str:
        known = {*self.flags, *self.values}
        if name in known or not self.values:
            return name
        begun = [each for each in known if each.startswith(name)]
        return begun[0] if len(begun) == 1 else name

    def _short(self, word: str, rest: list[str]) -> Iterator[tuple[str, str | None, str]]:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = self.letters.get(letter, letter)
            if name in self.flags:
                if letters.isdigit():  # such as -K1: a flag that may have a value
                    yield name, letters, f"-{letter}{letters}"
                    return
                yield name, None, f"-{letter}"
                continue
            if letters:
                yield name, letters.removeprefix("="), f"-{letter}{letters}"
            elif rest:
                value = rest.pop(0)
                yield name, value, f"-{letter} {value}"
            else:
                yield name, None, f"-{letter}"
            return


SBATCH = Grammar(_SBATCH_FLAGS, _LETTERS)
SRUN = Grammar(_FLAGS, _SRUN_LETTERS, underscores=True)
TORCHRUN = Grammar(
    frozenset("standalone module no-python run-path use-env virtual-local-rank help".split()),  # noqa: SIM905
    {"m": "module", "r": "redirects", "t": "tee"},
    frozenset(
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts "  # noqa: SIM905
        "monitor-interval start-method role log-dir redirects tee local-ranks-filter node-rank "
        "master-addr master-port local-addr logs-specs numa-binding event-log-handler "
        "signals-to-handle duplicate-stdout-filters duplicate-stderr-filters".split()
    ),
    underscores=True,
)
ACCELERATE = Grammar(
    frozenset(
        "quiet cpu multi-gpu tpu ipex use-xpu use-mps-device module no-python same-network debug "  # noqa: SIM905
        "use-deepspeed use-fsdp use-megatron-lm use-parallelism-config dynamo-use-fullgraph "
        "dynamo-use-dynamic dynamo-use-regional-compilation enable-cpu-affinity tpu-use-cluster "
        "no-tpu-use-cluster tpu-use-sudo no-tpu-cluster main-training-function help".split()
    ),
    {"m": "module", "q": "quiet"},
    frozenset(
        "config-file num-processes num-machines machine-rank main-process-ip main-process-port "  # noqa: SIM905
        "mixed-precision num-cpu-threads-per-process gradient-accumulation-steps dynamo-backend "
        "rdzv-backend rdzv-conf max-restarts monitor-interval role tee log-dir gpu-ids".split()
    ),
    underscores=True,
)
DEEPSPEED = Grammar(
    frozenset(
        "module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid "  # noqa: SIM905
        "enable-each-rank-log elastic-training bind-cores-to-rank help".split()
    ),
    {"H": "hostfile", "i": "include", "e": "exclude"},
    underscores=True,
)
MPIRUN = Grammar(
    frozenset(
        "oversubscribe allow-run-as-root tag-output report-bindings bind-to-core nolocal pernode "  # noqa: SIM905
        "use-hwthread-cpus quiet verbose version v q l".split()
    ),
    single=True,
    pairs=frozenset({"mca", "gmca", "genv", "env"}),
)
PYTHON = Grammar(frozenset("uOBsSEIqvbdixPRtVh"))
CONTAINER = Grammar(
    frozenset(
        "nv rocm nvccli cleanenv containall contain no-home writable writable-tmpfs userns "  # noqa: SIM905
        "fakeroot pid ipc net compat no-init unsquash allow-setuid keep-privs no-privs no-umask "
        "disable-cache no-eval no-https sharens quiet verbose debug silent "
        "e C c u f p i n q v s d".split()
    ),
)
SHIFTER = Grammar(
    frozenset(["entrypoint"]), {"V": "volume", "i": "image", "m": "module", "e": "env"}
)
ENV = Grammar(frozenset(["i", "ignore-environment", "0", "v"]), {"u": "unset"})
