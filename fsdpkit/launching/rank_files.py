"""Where torchelastic's ranks write: their output into the run's directory, what they tell of an
exception into the node's memory first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from fsdpkit.runs.layout import (
    AttemptPaths,
    RankFileKind,
    error_file,
    make_directory,
    raised_beside,
)

RankVariables = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Of torchrun's variables of a rank: what else its environment has, or has otherwise."""


class RunDirectoryLogs(LogsSpecs):
    """Every rank's stdout, stderr and exceptions in the attempt's directory, by global rank.

    Global rank 0 is also copied to this process's own output, so that the job's log shows the
    training. Exceptions are written into the node's memory and copied by `keep_raised`: a rank
    that fails because the disk is full shall be able to say so.
    """

    def __init__(
        self, attempt: AttemptPaths, launch: int, memory: Path, variables: RankVariables
    ) -> None:
        super().__init__()
        self._variables = variables
        self._attempt, self._launch, self._memory = attempt, launch, memory
        self._raised: dict[Path, Path] = {}
        self._files: list[Path] = []

    def keep_raised(self) -> None:
        """Copy the files about exceptions to the attempt's directory, as far as space allows."""
        for source, kept in self._raised.items():
            try:
                shutil.copyfile(source, kept)
            except OSError:  # most ranks have none; of one that did not fit, nothing stays
                with suppress(OSError):
                    kept.unlink()

    def drop_empty(self) -> None:
        """Remove files that stayed empty: they count in a quota, and most ranks print nothing."""
        for file in self._files:
            with suppress(OSError):
                if file.stat().st_size == 0:
                    file.unlink()

    @property
    def root_log_dir(self) -> str:
        return str(self._attempt.dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        for folder in {self._attempt.rank_folder(rank) for rank in ranks.values()}:
            make_directory(folder)

        def file(rank: int, kind: RankFileKind) -> Path:
            return self._attempt.rank_file(rank, kind, self._launch)

        out = {i: str(file(r, "out")) for i, r in ranks.items()}
        err = {i: str(file(r, "err")) for i, r in ranks.items()}
        self._files = [Path(path) for path in (*out.values(), *err.values())]
        errors = {i: error_file(self._memory, r, self._launch) for i, r in ranks.items()}
        self._raised = {raised_beside(errors[i]): file(r, "raised.json") for i, r in ranks.items()}
        for local, env in envs.items():
            env.update(self._variables(env))
            env["TORCHELASTIC_ERROR_FILE"] = str(errors[local])
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._launch)
        shown = {local for local, rank in ranks.items() if rank == 0}
        return LogsDest(
            stdouts=out,
            stderrs=err,
            tee_stdouts={i: p for i, p in out.items() if i in shown},
            tee_stderrs={i: p for i, p in err.items() if i in shown},
            error_files={i: str(path) for i, path in errors.items()},
            filtered_stdout=os.devnull,
            filtered_stderr=os.devnull,
        )
