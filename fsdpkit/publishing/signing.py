"""An administrator's signature, by `ssh-keygen -Y sign`: with a key file, or by an agent that holds
the key of a public one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config.published.signature import NAMESPACE, reason
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
