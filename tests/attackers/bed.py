"""Runs of an ordinary user, held where a test wants to look at them or to attack them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.trial import HELD_AT, LIGHT, Bed, Phase, Trial
from tests.slurm.conftest import Person


@dataclass
class PersonBed(Bed):
    """A bed whose runs are this person's, in their home."""

    person: Person = field(kw_only=True)

    @classmethod
    def of(cls, person: Person) -> PersonBed:
        home = Path(tempfile.mkdtemp(prefix="beds-", dir=person.home))
        bed = cls(person.cluster, home, person=person)
        bed._own(home)
        return bed

    def __post_init__(self) -> None:
        self._person = self.person

    def start(
        self,
        *shape: str,
        trainer: Path = LIGHT,
        hold: Phase | None = "training",
        then: Phase | None = None,
        sets: Sequence[str] = (),
    ) -> Trial:
        """Submit a run of another shape than two nodes of one rank, by the options of `submit`.
        then: where it is held once it has been let go."""
        directory = self._new_directory()
        for phase in filter(None, (hold, then)):
            (directory / f"hold-{phase}").write_text(str(HELD_AT[phase]))
        words = (*shape, "--runs", str(directory / "runs"))
        run, job_id = self._submit(trainer, directory, words, sets)
        return Trial(self, directory, run, job_id, hold, then=then)

    def start_array_task(self, *shape: str) -> Trial:
        """The only task of an array, held while it trains."""
        directory = self._new_directory()
        own = directory / "0"
        own.mkdir()
        self._own(own)
        (own / "hold-training").write_text(str(HELD_AT["training"]))
        words = (*shape, "--array", "0-0", "--runs", str(directory / "runs"))
        run, job_id = self._submit(LIGHT, directory, words)
        return Trial(self, own, run, f"{job_id}_0", "training", 0)

    def answer(self, trial: Trial, command: str, *words: str) -> dict[str, object]:
        """What a command says of the run with --json."""
        done = self.fsdpkit(command, str(trial.dir), *words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def mend(self) -> None:
        """All jobs of the user ended, and the nodes free."""
        if (session := self.person.session) is not None:
            session.run(["scancel", f"--user={session.user.name}"], check=True)
        for node in self.cluster.options.node_names:
            self.cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        self.cluster.wait_idle()

    def _new_directory(self) -> Path:
        directory = super()._new_directory()
        self._own(directory)
        return directory

    def _own(self, directory: Path) -> None:
        session = self.person.session
        if session is not None:
            os.chown(directory, session.user.id, session.user.id)
            directory.chmod(0o755)
