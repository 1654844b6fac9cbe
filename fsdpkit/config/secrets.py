"""What looks like a secret, and so has no place in a job, nor in a site profile: files, `--set` and
arguments of a job, and what its site says, are copied into its script, its records and Slurm's
database, where others read them.

A value looks like one if it has the form of a known kind of credential, wherever it stands. A
setting looks like one if its name *ends* in a word for a credential and its value could be one:

- `PASSWORD`, `PASSPHRASE`, `SECRET`, `CREDENTIALS` and the like, in any spelling; `DB_PASS`;
- `TOKEN` and `KEY`, in a name all in capitals, as variables have (`MY_TOKEN`, `KAGGLE_KEY`), unless
  the word before says that data are meant (`EOS_TOKEN`, `SORT_KEY`);
- `token` and `key` otherwise, only behind a word that makes them a credential (`api_key`,
  `hf-token`, `accessKey`); `token` also alone. So `lang_token`, `key` and `image-key` are none.

A truth value, a marker such as `</s>` and a path named by `…_FILE` are no secrets, nor is a number
but as a password: `tokenizer=…`, `--max-tokens=512` and `key=value` pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsdpkit.config.loading import Layered
from fsdpkit.errors import ConfigError

_FORMS = {
    "a token of Hugging Face": r"hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}|[A-Za-z0-9]{30,})",
    "an API key": r"(?<!-)sk-(?:[A-Za-z0-9]+-)*"
    r"(?:(?=[A-Za-z_]*[0-9])(?=[0-9_]*[A-Za-z])\w{16,}|\w{40,})"
    r"|[rs]k_(?:live|test)_\w{16,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}",
    "a token of GitHub": r"gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}",
    "a token of GitLab": r"gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{16,}",
    "a token of Slack": r"x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}",
    "an access key of AWS": r"A(?:KIA|SIA)[A-Z0-9]{16}",
    "a web token (JWT)": r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "a token of Groq": r"gsk_[A-Za-z0-9]{20,}",
    "a token of Replicate": r"r8_[A-Za-z0-9]{20,}",
    "a key of NVIDIA": r"nvapi-[\w-]{20,}",
    "a token of Docker": r"dckr_(?:pat|oat)_[\w-]{16,}",
    "a token of Vault": r"hv[sbr]\.[\w-]{20,}",
    "a token of Databricks": r"dapi[0-9a-f]{32}",
    "a key of SendGrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "a token of an organisation": r"api_org_[A-Za-z0-9]{20,}",
    "a signature of Azure": r"sig=[\w%+/-]{40,}",
    "a URL with a password": r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@?#]*:[^/\s@]+@",
    "a URL with a token": r"https?://(?=[^/\s@]*[0-9])[\w.~%+-]{16,}@",
    "the URL of a web hook": r"hooks\.slack\.com/services/\w"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/\w",
    "a user with a password": r"-u\s+(?![\d:]+(?!\S))[\w.@-]+:[^\s/]\S*",
    "a credential in a header": r"(?i:bearer|basic)\s+(?=\S*[0-9A-Z])[\w.~+/=-]{12,}",
}
_FORM = re.compile(
    "|".join(f"(?<![A-Za-z0-9])(?P<form_{n}>{form})" for n, form in enumerate(_FORMS.values()))
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z][\w.-]*)[\"']?\s*(?:=|:(?!//))\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&}\"']*)"
)
_ALWAYS = (
    *("password", "passwd", "passphrase", "passcode", "secret", "secrets", "credential"),
    *("credentials", "apikey", "secretkey", "accesskey", "privatekey", "authtoken", "apitoken"),
    *("accesstoken", "secrettoken", "bearer"),
)
_CREDENTIAL = frozenset(
    [
        *("access", "account", "api", "app", "auth", "bot", "client", "deploy", "encryption"),
        *("license", "login", "master", "oauth", "personal", "private", "refresh", "registry"),
        *("sas", "secret", "security", "service", "session", "shared", "signing", "ssh"),
        *("storage", "subscription", "user"),
        *("anthropic", "aws", "azure", "cohere", "comet", "gcp", "git", "github", "gitlab"),
        *("google", "groq", "hf", "hub", "huggingface", "kaggle", "mistral", "mlflow"),
        *("neptune", "openai", "pypi", "replicate", "slack", "wandb"),
    ]
)
"""Before `token` and `key`: what they are for."""
_DATA = frozenset(
    [
        *("audio", "begin", "bos", "class", "cls", "decoder", "end", "eod", "eos", "extra", "fim"),
        *("first", "image", "lang", "language", "last", "mask", "max", "min", "new", "next", "num"),
        *("pad", "per", "prefix", "prompt", "sentinel", "sep", "separator", "special", "start"),
        *("stop", "suffix", "target", "text", "think", "trigger", "unk", "video", "vocab"),
        *("batch", "cache", "column", "dict", "foreign", "group", "hash", "index", "label"),
        *("partition", "primary", "public", "sort"),
    ]
)
"""Before them, where they are a piece of text or a column."""
_SAME = frozenset(["value", "string", "text", "base", "json"])
_NOTHING = re.compile(r"(?i:true|false|none|null|auto|yes|no|on|off)|<.*>|\[.*\]|\{.*|\$.*|")
_NUMBER = re.compile(r"[+-]?[0-9][0-9_.eE+-]*")


def form_of(value: str) -> str | None:
    """The kind of credential that stands somewhere in `value`; None: none that is known."""
    match = _FORM.search(value)
    if match is None:
        return None
    return next(k for n, k in enumerate(_FORMS) if match[f"form_{n}"] is not None)


def is_secret(name: str, value: str) -> bool:
    """Whether a setting of this name and value holds a credential, by its name."""
    name = name.rpartition(".")[2]
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in _SAME:
        words.pop()
    if not words or _NOTHING.fullmatch(value):
        return False
    *before, last = words
    ahead = before[-1] if before else ""
    if last.endswith(_ALWAYS) or (last in ("pwd", "pat") and ahead not in ("", "old", "file")):
        return True
    if _NUMBER.fullmatch(value):
        return False
    if name.isupper() and last == "pass" and before:
        return True
    if name.isupper() and last.endswith(("token", "key")):
        alone = not before and last in ("key", "monkey", "turkey", "whiskey", "hockey", "jockey")
        return ahead not in _DATA and not alone
    return (last in ("token", "key") and ahead in _CREDENTIAL) or (last == "token" and not before)


def why_secret(name: str, value: str) -> str | None:
    """What `value`, set under `name`, looks like; None if it may stand in a job."""
    if kind := form_of(value):
        return kind
    if is_secret(name, value.strip()):
        return "a secret, by its name"
    return next((why for inner, text in _assigned(value) if (why := why_secret(inner, text))), None)


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """What a text assigns: `name=value`, `"name": value`, several in a URL or a table."""
    if "=" not in text and ":" not in text:  # as in most
        return
    for match in _ASSIGNED.finditer(text):
        yield match["name"], match["value"].strip("\"'")


def secrets_in(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The dotted key of each value that looks like a secret, and what it looks like."""
    yield from _in("", "", values)


def _in(key: str, name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for inner, below in value.items():
            yield from _in(f"{key}.{inner}" if key else str(inner), str(inner), below)
    elif isinstance(value, str):
        if why := why_secret(name, value):
            yield key, why
    elif isinstance(value, Sequence):
        words = [word if isinstance(word, str) else "" for word in value]
        for place, (word, option) in enumerate(zip(words, ["", *words], strict=False)):
            # `--api-key VALUE`: of a command line the word before may be the name.
            named = option if option.startswith("-") and "=" not in option else name
            said = f"{option} {word}" if option == "-u" else word
            if why := why_secret("" if word.startswith("-") else named, said):
                yield f"{key}[{place}]", why
            elif not isinstance(value[place], str):
                yield from _in(f"{key}[{place}]", name, value[place])


def refuse_secrets(layered: Layered, what: str) -> None:
    """Before any other message could quote one. Raises ConfigError."""
    for key, why in secrets_in(layered.values):
        raise found_secret(f"{what}: {key} ({layered.source(key)})", key, why)


def found_secret(where: str, key: str, why: str) -> ConfigError:
    """It quotes no value."""
    table, _, name = key.rpartition(".")
    variable = name if table == "environment.variables" else "NAME"
    return ConfigError(
        f"{where} looks like {why}. What a job or a site profile says stands in scripts, records "
        "and Slurm's database. Set a variable where you submit, and let the job hand it on by its "
        f'name: environment.pass = ["{variable}"]'
    )


# What a job can be handed on by its name: not what changes how a shell, the loader, Python or
# torchrun start, not what a login sets anew on each machine, not ours and not Slurm's.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_STARTS_PROGRAMS = re.compile(
    r"(?:LD|DYLD|BASH|MALLOC|GLIBC|CONDA|MAMBA|MODULES|LMOD|_LMFILES|_|JAVA|_JAVA|NODE|GIT)_.*"
    r"|(?:PYTHON|PERL5|PERLLIB|RUBY).*|LUA_(?:C?PATH|INIT).*"
    r"|ENV|BASH\w*|SHELLOPTS|IFS|PS[0-4]|PROMPT_COMMAND|CDPATH|GLOBIGNORE|FPATH|ZDOTDIR"
    r"|PATH|HOME|SHELL|USER|LOGNAME|PWD|OLDPWD|TMPDIR|UID|EUID|PPID|MODULEPATH|LOADEDMODULES"
    r"|VIRTUAL_ENV|GCONV_PATH|LOCPATH|NLSPATH|POSIXLY_CORRECT|TZDIR|HOSTALIASES|RES_OPTIONS"
)
_RESERVED = re.compile(
    r"(?:FSDPKIT|SLURM|SLURMD|SBATCH|SRUN|SALLOC|SUBMITIT|RDZV|TORCHELASTIC|PMI|PMIX|OMPI)_.*"
    r"|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|CUDA_VISIBLE_DEVICES"
)


def may_pass(name: str) -> bool:
    """Whether `environment.pass` may name this variable."""
    return not why_not_passed(name)


def why_not_passed(name: str) -> str:
    """Why it may not; empty if it may. What is no name is not repeated: it may be the secret."""
    if not _NAME.fullmatch(name):
        return "takes names of variables, such as HF_TOKEN; their values stay in your environment"
    if _RESERVED.fullmatch(name):
        return f"{name} is set by fsdpkit, Slurm or torchrun for each job"
    if _STARTS_PROGRAMS.fullmatch(name):
        return f"{name} changes how programs start: set it in environment.variables if you must"
    return ""
