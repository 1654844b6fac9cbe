"""The trainer, but rank 1 dies of SIGKILL as it begins step argv[1]."""

from __future__ import annotations

import os
import signal
import sys

import fsdp_t5

FATAL_STEP = int(sys.argv.pop(1))
seed_step = fsdp_t5.seed_step


def seed_or_die(seed: int, step: int, rank: int) -> None:
    if step == FATAL_STEP and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seed_step(seed, step, rank)


fsdp_t5.seed_step = seed_or_die
sys.exit(fsdp_t5.main())
