"""No secret in a job: what looks like one is refused, ordinary settings are not, and names do."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.secrets import may_pass, secrets_in, why_secret
from tests.conftest import Command
from tests.programs import Fsdpkit

# Put together here, so that nothing that scans a repository for secrets finds one.
LETTERS = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fX"
TOKENS = [
    "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
    "hf_" + LETTERS[:20],
    "sk-" + LETTERS,
    "sk-proj-" + LETTERS,
    "sk-ant-api03-" + LETTERS + "-" + LETTERS,
    "ghp_" + LETTERS,
    "gho_" + LETTERS,
    "github_pat_" + LETTERS + "_" + LETTERS,
    "glpat-" + LETTERS[:20],
    "xoxb-123456789012-" + LETTERS,
    "xoxp-" + LETTERS,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".c2lnbmF0dXJl",
    "-----BEGIN OPENSSH PRIVATE KEY" + "-----",
    "postgresql://me:hunter2@db.example/x",
    "https://:tok@example.org/repo",
    f"https://{LETTERS}@example.org/repo",
    "https://discord.com/api/webhooks/123456789/" + LETTERS,
    f"https://store.example/x?sv=2024&sig={LETTERS}{LETTERS[:11]}%3D",
    *("gsk_" + LETTERS, "r8_" + LETTERS, "nvapi-" + LETTERS, "dckr_pat_" + LETTERS),
    *("hvs." + LETTERS, "dapi" + "0123456789abcdef" * 2, "rk_live_" + LETTERS),
    *(f"SG.{LETTERS}.{LETTERS}", "api_org_" + LETTERS, "curl -u me:" + LETTERS),
    "https://hooks.slack.com/services/T0/B0/" + LETTERS,
    "Authorization: Bearer " + LETTERS,
]
NAMES = """
    HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY DB_PASSWORD GITHUB_TOKEN MY_KEY MYSQL_PWD
    api_key apikey apiKey access-token token secret passphrase password2 API_KEY_BASE64
    trainer.logger.api_key client_secret KEY_TOKEN
""".split()  # noqa: SIM905 (a list of so many strings is unreadable)
ORDINARY = """
    --tokenizer=google-t5/t5-small --max-tokens=512 key=value --eos-token=</s> --mask-token
    <mask> --tokens-per-step=1e6 --primary-key=id keyboard=de --lr=1e-4 monkey=banana
    --name=disk-based-storage-of-2024-experiments --path=/data/hf_datasets/wikitext
    --run=task-20261121-101500-abcdef123456 --url=https://example.org:8080/a@b
    --secret-file=/home/me/secret --password-file=/run/x --key-dim=64 --n-key-value-heads=8
    --query_key_norm=true tokenized=/data/tokens.bin git@github.com:me/repo.git
    --sha=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b --metric=token_accuracy ONE_PASS=2
    https://me@host.example model=ghp_small --special-token=<extra_id_0> --public-key=x
    optimizer=adamw --encoder.key_proj=linear
""".split()  # noqa: SIM905 (a list of so many strings is unreadable)
ORDINARY += ["--prompt=Translate: English to German", "bearer of bad news", "docker -u 1000:1000"]


@pytest.mark.parametrize("token", TOKENS)
def test_a_known_form_is_noticed_wherever_it_stands(token: str) -> None:
    table = {"environment": {"variables": {"A": f"x {token}"}}, "args": ["--a", f"--b={token}"]}
    found = dict(secrets_in(table | {"notify": {"command": ["curl", "-H", token]}}))
    assert set(found) == {"environment.variables.A", "args[1]", "notify.command[2]"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_enough_in_every_way_of_writing_it(name: str) -> None:
    value = "hunter-two"
    words = [[f"--{name}={value}"], [f"--{name}", value], [f"{name}={value}"]]
    for args in [
        *words,
        [f"+a.{name}={value}"],
        [f'{{"{name}": "{value}"}}'],
        [f"x?{name}={value}"],
    ]:
        assert list(secrets_in({"args": args})), args
    assert list(secrets_in({"environment": {"variables": {name: value}}}))


def test_ordinary_arguments_are_no_secrets() -> None:
    assert list(secrets_in({"args": ORDINARY})) == []
    for word in ORDINARY:
        assert why_secret("", word) is None
        assert list(secrets_in({"parameters": {"x": word}})) == []


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "K"])
def test_ordinary_variables_are_no_secrets(name: str) -> None:
    assert list(secrets_in({"variables": {name: "true"}, "a": {name: "some value"}})) == []


@given(st.text(string.ascii_letters + string.digits, min_size=20, max_size=60))
def test_a_word_of_letters_and_digits_alone_is_no_secret(word: str) -> None:
    """Such as a digest: without a known beginning nobody can tell."""
    if not word.startswith(("hf", "AKIA", "ASIA", "AIza", "eyJ")):
        assert why_secret("revision", word) is None


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "PYTHONPATH", "PYTHONSTARTUP"),
        *("BASH_FUNC_srun", "PATH", "IFS", "FSDPKIT_RUN_DIR", "SLURM_JOB_ID", "SBATCH_EXPORT"),
        *(
            "RANK",
            "MASTER_ADDR",
            "PROMPT_COMMAND",
            "A B",
            "",
            "A=B",
            "1A",
            "A\n",
            "SUBMITIT_FOLDER",
        ),
    ],
)
def test_what_changes_how_programs_start_or_is_ours_cannot_be_passed(name: str) -> None:
    assert not may_pass(name)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "LDAP_PASSWORD", "https_proxy", "_T"]
)
def test_other_variables_can(name: str) -> None:
    assert may_pass(name)


# The commands


@pytest.fixture(autouse=True)
def sbatch(command: Command, tmp_path: Path) -> None:
    """Writes down what reached it."""
    command("sbatch", f"env > {tmp_path}/arrived\necho 12")


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "environment.variables.HF_TOKEN=hunter-two"],
        ["--set", 'environment.variables={WANDB_API_KEY="hunter-two"}'],
        ["--set", "notify.command=['curl', 'https://me:hunter-two@example.org']"],
        ["--set", "resources.nodes=https://me:hunter-two@example.org"],
        ["--", "--api-key", "hunter-two"],
        ["--", "--config", '{"password": "hunter-two"}'],
    ],
)
def test_a_secret_is_refused_without_being_repeated_and_before_anything_is_written(
    words: list[str], fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    done = fsdpkit("submit", "train.py", "--cluster", "generic", *words, status=65)
    assert 'environment.pass = ["' in done.stderr
    assert "hunter-two" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_passed_variable_reaches_sbatch_and_no_file(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    words = ["submit", "--cluster", "generic", "--set", 'environment.pass=["HF_TOKEN"]']
    assert fsdpkit(*words).returncode == 65  # not set
    done = fsdpkit(*words, env={"HF_TOKEN": "hunter-two"}, status=0)
    assert "HF_TOKEN=hunter-two\n" in (tmp_path / "arrived").read_text()
    written = [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert len(written) >= 4
    assert [p for p in written if b"hunter-two" in p.read_bytes()] == []
    report = fsdpkit("report", str(written[0].parent), "-o", "-")
    assert "hunter-two" not in done.stdout + done.stderr + report.stdout
