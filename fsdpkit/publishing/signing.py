"""An administrator's signature, by `ssh-keygen -Y sign`: with a key file, or by an agent that holds
the key of a public one; and until when it counts, so that somebody signs anew before that."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config.published.centre import read_file, read_signers
from fsdpkit.config.published.index import (
    MOST_INDEX_BYTES,
    PublishedIndex,
    decode,
    index_path,
    split,
)
from fsdpkit.config.published.signature import NAMESPACE, SignatureError, has_dates, reason, verify
from fsdpkit.errors import ConfigError, NotFoundError

_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_TIMEOUT_S = 300  # a person may have to type a passphrase, or to touch a token


@dataclass(frozen=True)
class Signer:
    key: Path
    name: str | None = None
    """The principal of allowed_signers; None: the one that this key has there."""


def key_file(given: str | None) -> Path:
    """As given, `$FSDPKIT_SIGNING_KEY`, else the first of ~/.ssh/id_ed25519 and so on. Raises
    NotFoundError."""
    if named := given or os.environ.get("FSDPKIT_SIGNING_KEY"):
        path = Path(os.path.expanduser(named)).absolute()
        if not path.is_file():
            raise NotFoundError(f"there is no key {path} to sign with")
        return path
    home = Path(os.path.expanduser("~/.ssh"))
    for name in _KEYS:
        if (home / name).is_file():
            return home / name
    raise NotFoundError(
        f"there is no key to sign with: none of {', '.join(_KEYS)} in {home}. Make one with "
        "ssh-keygen -t ed25519, or name one with --key"
    )


def sign(body: bytes, key: Path) -> bytes:
    """The armoured signature. Raises ConfigError."""
    return _ask(["-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)], body, f"signing with {key}")


def principal(signer: Signer, signers: bytes) -> str:
    """Whose key this is by allowed_signers, or as the person says. Raises ConfigError."""
    if signer.name is not None:
        return signer.name
    with tempfile.TemporaryDirectory(prefix="fsdpkit-sign-") as place:
        Path(place, "signers").write_bytes(signers)
        Path(place, "signature").write_bytes(sign(b"", signer.key))
        words = ["-f", f"{place}/signers", "-s", f"{place}/signature"]
        try:
            said = _ask(["-Y", "find-principals", *words], b"", "looking for the key")
        except ConfigError as error:
            raise ConfigError(
                f"the key {signer.key} is not in allowed_signers, or no longer valid: {error}"
            ) from error
    names = said.decode(errors="replace").replace("\n", ",").split(",")
    plain = [name for name in names if name and not set(name) & set("*?!")]
    if not plain:
        raise ConfigError(
            f"allowed_signers has {names[0]!r} for {signer.key}: say who you are with --as"
        )
    return plain[0]


def _ask(words: Sequence[str], given: bytes, what: str) -> bytes:
    try:
        done = subprocess.run(
            ["ssh-keygen", *words],
            input=given,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError("this machine has no ssh-keygen (package openssh-client)") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{what}: {error}") from error
    if done.returncode != 0:
        raise ConfigError(f"{what}: {reason(done.stderr.decode(errors='replace'))}")
    return done.stdout


AHEAD_S = 60 * 86400
"""How long before its end it is told of."""


def ends_at_s(centre: Path) -> float | None:
    """When the signer's key stops counting, in Unix seconds, to the second; None: not within the
    next sixty days. Raises ConfigError or OSError for a centre that cannot be read now."""
    signers = read_signers(centre)
    if not has_dates(signers):
        return None
    body, signature = split(read_file(index_path(centre), MOST_INDEX_BYTES))
    by = decode(body, PublishedIndex).by

    def is_over(at_s: int) -> bool:
        try:
            verify(body, signature, signers, by, at_s=at_s)
        except SignatureError:
            return True
        return False

    now = int(time.time())
    if not is_over(now + AHEAD_S) or is_over(now):
        return None
    times = range(now + 1, now + AHEAD_S)
    return times.start + bisect_left(times, True, key=is_over)


def warning(centre: Path, by: str, ends_s: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ends_s))
    return (
        f"the key of {by} counts until {when}, then users of {centre} are refused: before that, "
        f"somebody whose key counts longer signs anew (fsdpkit publish sign --to {centre})"
    )
