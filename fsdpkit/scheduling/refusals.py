"""What Slurm's commands say when they refuse, and what a person can do about it (refusals.toml).

Of accounts and QOSs they name the limit. Slurm puts such a name together (`QOSMaxGRESPerJob`,
`AssocGrpCPUMinutesLimit`, some hundred and fifty); it stands alone as a job's reason, and in what
sbatch says. Source: job_state_reason_string() of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec


class _Refusal(msgspec.Struct, forbid_unknown_fields=True):
    says: str
    remedy: str


@lru_cache
def _known() -> tuple[_Refusal, ...]:
    text = Path(__file__).with_suffix(".toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, tuple[_Refusal, ...]])["refusal"]


def remedy_for(stderr: str) -> str | None:
    """What to do about a refusal, where its cause is known; first by the limit that it names."""
    if (limit := limit_in(stderr)) is not None:
        return remedy(limit)
    return next((known.remedy for known in _known() if re.search(known.says, stderr)), None)


def refusal(command: str, done: subprocess.CompletedProcess[str]) -> str:
    """The words of a command that failed, with the remedy where there is one."""
    words = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    remedy = remedy_for(words)
    return f"{command} refused: {words}" + (f"\n{remedy}" if remedy else "")


_RESOURCES = {
    "BB": "burst buffer",
    "Billing": "billing unit",
    "Cpu": "CPU",
    "CPU": "CPU",
    "Energy": "energy",
    "GRES": "GPU/GRES",
    "Jobs": "running job",
    "License": "licence",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "node",
    "SubmitJob": "queued job",
    "SubmitJobs": "queued job",
    "Unknown": "resource",
    "Wall": "running time",
    "WallDuration": "time",
}
_ASK_FOR = {
    "CPU": "fewer CPUs (--set resources.cpus_per_gpu=…)",
    "GPU/GRES": "fewer GPUs (--gpus, --nodes)",
    "memory": "less memory (--set resources.memory=…)",
    "node": "fewer nodes (--nodes)",
    "running time": "less time (--time)",
    "time": "less time (--time)",
}
_NAME = re.compile(
    r"(?P<whose>Assoc|QOS)?(?P<kind>Grp|Max|Min)"
    rf"(?P<what>{'|'.join(sorted(_RESOURCES, key=len, reverse=True))})"
    r"(?P<minutes>RunMinutes|RunMins|Minutes)?"
    r"(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_IN_TEXT = re.compile(
    r"\b(?:(?:Assoc|QOS)(?:Grp|Max|Min)[A-Za-z]+|Max[A-Za-z]+Per(?:User|Account))\b"
)


@dataclass(frozen=True)
class NamedLimit:
    """One of them."""

    of_qos: bool
    kind: str
    """`Grp`, `Max` or `Min`."""
    what: str
    """The resource, for a person."""
    minutes: str
    """Empty; `Minutes`: what a job uses until its end; `RunMinutes`: what all that run may yet."""
    per: str | None
    """`Job`, `Node`, `User`, `Account`; None: of the account or QOS as a whole, or a user's."""

    @property
    def never(self) -> bool:
        """Whether the job alone is beyond it, so that waiting does not help."""
        alone = self.per in ("Job", "Node") and self.minutes != "RunMinutes"
        return self.kind == "Min" or self.minutes == "Minutes" or (self.kind == "Max" and alone)

    def words(self, whose: str) -> str:
        """What it says of a job; whose: `its QOS (gold)`, `its account`."""
        what = self.what + (" minutes" if self.minutes else "")
        if self.kind == "Min":
            return f"it asks for less than {whose} requires ({what})"
        if self.kind == "Max" and self.never:
            where = "on a node" if self.per == "Node" else "for a job"
            return f"it asks for more than {whose} allows {where} ({what})"
        if self.never:
            return f"the budget of {whose} ({what}) is used up, or too little is left for this job"
        if self.per == "User" or (self.kind == "Max" and self.per is None):
            return f"you have reached {whose}'s limit on what one user may have at once ({what})"
        return f"jobs of {whose} have reached its limit on what they may have at once ({what})"

    def ask_for(self) -> str | None:
        """What to ask for instead, where that helps."""
        if self.kind == "Min":
            return f"more ({self.what})"
        if self.minutes == "Minutes":
            return "less time (--time)"
        return _ASK_FOR.get(self.what) if self.never else None

    def show(self, qos: str | None = None) -> str:
        """The command that shows it."""
        if self.of_qos:
            return "sacctmgr show qos" + (f" {qos}" if qos else "")
        return "sacctmgr show assoc user=$USER"


def named_limit(name: str) -> NamedLimit | None:
    """The limit of this name; None if it is none of Slurm's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    minutes = (match["minutes"] or "").replace("Mins", "Minutes")
    of_qos = match["whose"] != "Assoc"  # without either it is a QOS's: MaxJobsPerAccount
    return NamedLimit(of_qos, match["kind"], _RESOURCES[match["what"]], minutes, match["per"])


def limit_in(text: str) -> NamedLimit | None:
    """The first limit that a text names."""
    return next(filter(None, map(named_limit, _IN_TEXT.findall(text))), None)


def remedy(limit: NamedLimit) -> str:
    """What to do about a refusal that named it."""
    whose = "your QOS" if limit.of_qos else "your account"
    ask = limit.ask_for()
    todo = f"ask for {ask}" if ask else "submit again when some jobs have ended"
    words = limit.words(whose)
    return f"{words[0].upper()}{words[1:]}: {todo}; limits: {limit.show()}."
