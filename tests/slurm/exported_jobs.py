"""What a portal hands to sbatch, handed in by a user of the cluster."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.publishing.export.portals import Submission
from tests.slurm.conftest import Person


def hand_in(user: Person, place: Path, made: Submission) -> str:
    """The number of the user's job, submitted from their directory `place`."""
    session = user.session
    assert session is not None
    for name, text in {"job.sh": made.script, **made.files}.items():
        (place / name).write_text(text)
    for path in (place, *place.rglob("*")):
        os.chown(path, session.user.id, session.user.id)
    stdin = [] if "job.sh" in made.argv else ["<", "job.sh"]
    words = " ".join([shlex.join(["sbatch", "--parsable", *made.argv]), *stdin])
    env = {**session.env(), **made.env, "LEAKED": "from the web server"}
    done = session.run(["bash", "-c", words], cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
