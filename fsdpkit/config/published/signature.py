"""Whether a text carries the SSH signature of somebody who may sign: OpenSSH decides, offline.

`ssh-keygen -Y verify` knows every key type, certificates, namespaces and the dates between which a
key counts (`valid-after`, `valid-before` in allowed_signers). It gets copies of the bytes that were
checked here, so nothing changes between the check and its reading.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

NAMESPACE = "fsdpkit"
"""What is signed for another purpose, such as a commit, does not count here."""
_TIMEOUT_S = 30
_USAGE = re.compile(r"^usage: ", re.MULTILINE)
"""What an ssh-keygen that does not know `-Y` answers."""
_DATED = re.compile(rb"valid-(?:before|after)", re.IGNORECASE)


class SignatureError(Exception):
    """The signature is not to be believed, with ssh-keygen's reason."""


def has_dates(signers: bytes) -> bool:
    """Whether a key of these may be valid today and not tomorrow."""
    return bool(_DATED.search(signers))


def verify(
    body: bytes, signature: bytes, signers: bytes, principal: str, *, at_s: int | None = None
) -> None:
    """Raises SignatureError unless `principal`, by `signers`, has signed `body`, with a key that is
    valid now, or at another time, in Unix seconds."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fsdpkit-verify-") as place:  # 0700
        files = {"signers": signers, "signature": signature}
        for name, content in files.items():
            Path(place, name).write_bytes(content)
        words = ["-f", f"{place}/signers", "-s", f"{place}/signature", "-I", principal]
        if at_s is not None:
            then = time.strftime("%Y%m%d%H%M%S", time.localtime(at_s))
            words += ["-O", f"verify-time={then}"]
        _ask(["-Y", "verify", "-n", NAMESPACE, *words], body, place)


def _ask(words: list[str], body: bytes, place: str) -> None:
    import subprocess

    env = {**os.environ, "LC_ALL": "C"}
    command = ["ssh-keygen", *words]
    try:
        done = subprocess.run(
            command, input=body, env=env, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise SignatureError(
            "this machine has no ssh-keygen to verify it with (package openssh-client)"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SignatureError(f"ssh-keygen cannot verify it: {error}") from error
    if done.returncode != 0:
        said = (done.stderr + b"\n" + done.stdout).decode(errors="replace")
        raise SignatureError(reason(said.replace(f"{place}/signers:", "allowed_signers, line ")))


def reason(said: str) -> str:
    """What ssh-keygen wrote, in a line: of a key in no line only `Could not verify`."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    plain = "".join(c if c.isprintable() else "?" for c in "; ".join(lines))[:300]
    if plain.rstrip(".") == "Could not verify signature":
        return "its key is not, or no longer, in allowed_signers for whom it names"
    if _USAGE.search(said):
        return "this machine's ssh-keygen is older than OpenSSH 8.1, which signatures need"
    return plain or "ssh-keygen refused it and gave no reason"
