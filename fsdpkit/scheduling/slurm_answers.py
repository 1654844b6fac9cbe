"""What one cluster says of itself, each question asked at most once.

The only place that asks (`slurm.py` asks about jobs): a submission, `check` and `site draft` need
parts of the same answers, and a question that was not answered in time is not repeated.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import may_be_here
from fsdpkit.config.surroundings import stood_in
from fsdpkit.errors import SchedulerError
from fsdpkit.runs.exclusions import expand
from fsdpkit.scheduling.answers import call
from fsdpkit.scheduling.live_cluster import (
    LiveCluster,
    LiveNode,
    LivePartition,
    parse_config,
    parse_nodes,
    parse_partitions,
)
from fsdpkit.scheduling.live_limits import (
    ASSOC_FORMAT,
    QOS_FORMAT,
    LiveAssociation,
    LiveQos,
    parse_associations,
    parse_qos,
)
from fsdpkit.scheduling.refusals import remedy_for

_PATIENCE_S = 15.0
"""For all questions of a submission together: it does not wait longer for a busy slurmctld."""
_LIMIT_S = 60.0
"""For one command; thousands of nodes take slurmctld a second or two."""
_KEPT_S = 300.0
"""How long a process that goes on (a notebook, a sweep) uses the same answers."""
_KEPT_FAILED_S = 20.0
_EXPEDITES = (25, 11)
"""The release that has `--requeue=expedite`."""
T = TypeVar("T")


class RefusedError(SchedulerError):
    """Slurm answers, and does not show this user what was asked for (slurm.conf, PrivateData)."""


class SlurmAnswers:
    """The answers of one cluster; each question is asked when its answer is first needed.

    Its methods raise SchedulerError where Slurm did not answer, or not to the end; RefusedError
    where it does not show this user the answer. patience_s: for all questions together; None: a
    minute for each.
    """

    def __init__(self, cluster: str | None = None, patience_s: float | None = None) -> None:
        self._which = ["-M", cluster] if cluster else []
        self._name = cluster
        self._patience_s = self._left_s = patience_s
        self._given: dict[str, Any] = {}
        self._made_s = time.monotonic()
        self.asked_s: dict[str, tuple[float, float]] = {}
        """When each question was asked and answered, by this machine's clock."""

    def config(self) -> dict[str, str]:
        """By key of slurm.conf."""
        argv = ["scontrol", *self._which, "show", "config"]
        return self._once("config", argv, parse_config)

    def settings(self) -> Mapping[str, str]:
        """The same; empty where Slurm does not say."""
        try:
            return self.config()
        except SchedulerError:
            return {}

    def partitions(self) -> tuple[LivePartition, ...]:
        """All, hidden ones too."""
        return self._once("partition", self._show("partition"), lambda s: (*parse_partitions(s),))

    def nodes(self) -> tuple[LiveNode, ...]:
        """All that Slurm lists."""
        return self._once("node", self._show("node"), lambda s: (*parse_nodes(s),))

    def away(self) -> dict[str, str]:
        """Nodes that somebody drained or set down, by name: the state, and the reason given."""
        argv = ["sinfo", *self._which, "-h", "-R", "-N", "-o", "%N|%T|%E"]
        rows = [line.split("|", 2) for line in self._once("away", argv, list)]
        return {
            name: f"{row[1].strip()}: {row[2].strip()}"
            for row in rows
            if len(row) == 3
            for name in expand(row[0].strip()) or ()
        }

    def qos(self) -> dict[str, LiveQos]:
        """By name."""
        argv = ["sacctmgr", "-nP", "show", "qos", f"format={QOS_FORMAT}"]
        return self._once("qos", argv, parse_qos)

    def own(self) -> list[LiveAssociation]:
        """This user's associations, on this cluster."""
        import pwd  # only Unix has it

        try:
            me = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            raise SchedulerError(f"user {os.getuid()} has no name on this machine") from None
        return self._once("own", self._associations(me), parse_associations)

    def associations(self) -> tuple[LiveAssociation, ...]:
        """This user's, and those of all accounts, which are above them."""
        own = self.own()
        above = self._once("above", self._associations(""), parse_associations) if own else []
        return (*own, *above)

    def accounts(self) -> list[str]:
        """Those that this user may charge."""
        return sorted({one.account for one in self.own()})

    def live(self, *, nodes: bool = True, accounting: bool = True) -> LiveCluster:
        """A whole answer, but for what Slurm does not show this user. nodes: False: only if they
        are known already. accounting: with QOS and associations, where slurmdbd answers."""
        refused: dict[str, str] = {}

        def seen(what: str, ask: Callable[[], T]) -> T | None:
            try:
                return ask()
            except RefusedError as error:
                refused[what] = " ".join(str(error).split())
                return None

        config = seen("config", self.config) or {}
        partitions = seen("partition", self.partitions) or ()
        listed = (seen("node", self.nodes) if nodes or "node" in self._given else None) or ()
        if {"partition", "node"} <= refused.keys():
            raise SchedulerError("\n".join(refused.values()))
        qos, associations, unread = None, None, []
        if accounting:
            try:
                qos, associations = self.qos(), self.associations()
            except SchedulerError as error:
                unread.append(str(error).splitlines()[0])
        return LiveCluster(config, partitions, listed, qos, associations, tuple(unread), refused)

    @property
    def stale(self) -> bool:
        """Whether whoever asks now should ask anew."""
        failed = any(isinstance(one, SchedulerError) for one in self._given.values())
        return time.monotonic() - self._made_s > (_KEPT_FAILED_S if failed else _KEPT_S)

    def _show(self, what: str) -> list[str]:
        return ["scontrol", *self._which, "--all", "--oneliner", "show", what]

    def _associations(self, user: str) -> list[str]:
        cluster = self._name or self.settings().get("ClusterName")
        where = [f"cluster={cluster}"] if cluster else []
        return [
            "sacctmgr",
            "-nP",
            "show",
            "assoc",
            *where,
            f"format={ASSOC_FORMAT}",
            f"user={user}",
        ]

    def _once(self, what: str, argv: Sequence[str], parse: Callable[[Iterator[str]], T]) -> T:
        if what not in self._given:
            began_s, before_s = time.monotonic(), time.time()
            try:
                self._given[what] = parse(self._asked(argv))
            except SchedulerError as error:
                self._given[what] = error
            self.asked_s[what] = before_s, time.time()
            if self._left_s is not None:
                self._left_s -= time.monotonic() - began_s
        if isinstance(found := self._given[what], SchedulerError):
            raise found
        answer: T = found
        return answer

    def _asked(self, argv: Sequence[str]) -> Iterator[str]:
        """The lines that a command prints, once it has ended well. Raises SchedulerError."""
        limit_s = _LIMIT_S if self._left_s is None else self._left_s
        late = f"{argv[0]} has not answered within {self._patience_s or limit_s:.0f} s"
        if limit_s < 0.1:
            raise SchedulerError(late)
        try:
            done = call(argv, limit_s, {"SLURM_TIME_FORMAT": "standard"})
        except subprocess.TimeoutExpired:
            raise SchedulerError(late) from None
        if done.returncode != 0:
            raise _failed(argv, done)
        return iter(done.stdout.split("\n"))


def _failed(argv: Sequence[str], done: subprocess.CompletedProcess[str]) -> SchedulerError:
    words = done.stderr.strip()[-2000:]
    what = " ".join([argv[0], *(w for w in argv[1:] if not w.startswith("-"))])
    told = f"{what}: {words or f'exit status {done.returncode}'}"
    if re.search(r"access denied|permission denied", words, re.IGNORECASE):
        return RefusedError(told)
    return SchedulerError("\n".join([told, *filter(None, [remedy_for(words)])]))


_known: dict[tuple[str | None, ...], SlurmAnswers] = {}


def answers_of(cluster: str | None) -> SlurmAnswers:
    """The answers of a cluster of that name (None: the one of this machine's commands), which all
    of this process share for some minutes."""
    key = (cluster, *(os.environ.get(name) for name in ("PATH", "SLURM_CONF", "SLURM_CLUSTERS")))
    if key not in _known or _known[key].stale:
        _known[key] = SlurmAnswers(cluster, _PATIENCE_S)
    return _known[key]


def answers_for(profile: SiteProfile) -> SlurmAnswers | None:
    """Those of the profile's cluster; None where it cannot be asked from here."""
    if profile.kind != "slurm" or stood_in() is not None:
        return None
    name = profile.slurm_clusters
    one = may_be_here(profile) if name is None else "," not in name
    return answers_of(name) if one else None


def wants_expediting(job: LoadedJob, profile: SiteProfile) -> bool:
    """Whether the job is to come back at once, and before others, when Slurm loses its head node.
    Slurm otherwise lets it wait for two minutes and then in the queue, like any other job."""
    if profile.policy.requeue is False or not job.may_requeue:
        return False
    if job.spec.retry.on_node_failure == "stop" or profile.slurm.flavour == "psslurm":
        return False
    if (surroundings := stood_in()) is not None:
        return surroundings.expedites
    settings = answers.settings() if (answers := answers_for(profile)) else {}
    # Older releases refuse an option that they do not know, and a site must have switched it on.
    number = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    is_new = number is not None and (int(number[1]), int(number[2])) >= _EXPEDITES
    allowed = settings.get("SlurmctldParameters", "").split(",")
    return is_new and "enable_expedited_requeue" in allowed
