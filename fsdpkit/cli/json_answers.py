"""What commands print with `--json`: one struct a shape, named by its `schema`.

What is read in a run's directory or measured is in json_reports.py, so that nothing but msgspec is
loaded for the rest; json_schemas.py says which command prints what.

Fields are only added to a shape; where one changes its meaning or goes, the number in `schema`
changes. Paths are whole, times are Unix time in seconds, `null` is "not known". After a change here
`python -m fsdpkit.cli.json_schemas` writes the JSON Schemas anew.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Error(Struct, frozen=True, kw_only=True):
    """What ended the command instead of an answer; standard error says it, too."""

    schema: Literal["fsdpkit.error/1"] = "fsdpkit.error/1"
    kind: Literal[
        "usage",
        "config",
        "not_found",
        "render",
        "scheduler",
        "remote",
        "tracker",
        "storage",
        "damaged",
        "node",
        "node_lost",
        "broken_node",
        "not_met",
        "port_taken",
        "function",
        "fsdpkit",
        "missing_dependency",
        "interrupted",
    ]
    """The error's class in fsdpkit.errors, or one of the last two."""
    message: str
    """What was wrong, where, and what to do, for people."""
    exit_status: int


class Submitted(Struct, frozen=True, kw_only=True):
    """A run that was submitted, or resumed."""

    schema: Literal["fsdpkit.submit/1"] = "fsdpkit.submit/1"
    run: str
    job_id: str | None
    cluster: str
    dir: str


class ListedCheckpoint(Struct, frozen=True, kw_only=True):
    """One checkpoint. `problem`: what shows without reading the tensors."""

    name: str
    path: str
    task: int | None
    step: int | None
    saved_at: str | None
    bytes: int | None
    ranks: int | None
    problem: str | None
    resumes: bool
    measured: dict[str, Any]
    best: bool
    best_by: str | None
    """By what it is the best, and the value."""


class Checkpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of a run, oldest first."""

    schema: Literal["fsdpkit.checkpoint-ls/1"] = "fsdpkit.checkpoint-ls/1"
    checkpoints: list[ListedCheckpoint]


class Sent(Struct, frozen=True, kw_only=True):
    """What one tracker got."""

    run: str
    task: int | None
    tracker: str
    id: str
    place: str
    lines: int


class Tracked(Struct, frozen=True, kw_only=True):
    """What `track` sent."""

    schema: Literal["fsdpkit.tracked/1"] = "fsdpkit.tracked/1"
    sent: list[Sent]


class Cancelled(Struct, frozen=True, kw_only=True):
    """A run that was asked to end."""

    schema: Literal["fsdpkit.cancel/1"] = "fsdpkit.cancel/1"
    run: str
    job_id: str | None
    had_ended: bool
    """It had before; nothing was asked."""
    saving: list[str]
    """Jobs that were asked to save a checkpoint and to stop; the others are ended at once."""
    state: str | None
    """In words, if it has ended."""


class Rendered(Struct, frozen=True, kw_only=True):
    """`--dry-run`: what sbatch would get; nothing was submitted."""

    schema: Literal["fsdpkit.dry-run/1"] = "fsdpkit.dry-run/1"
    script: str


class Judged(Struct, frozen=True, kw_only=True):
    """`submit --check`: Slurm would take the script; nothing was submitted."""

    schema: Literal["fsdpkit.submit-check/1"] = "fsdpkit.submit-check/1"
    answer: str
    """Slurm's own words."""


class Saving(Struct, frozen=True, kw_only=True):
    """One job that was asked for a checkpoint."""

    job_id: str
    task: int | None
    path: str | None
    """Of the checkpoint; null without --wait."""


class Saved(Struct, frozen=True, kw_only=True):
    """A run that was asked to save a checkpoint and to go on."""

    schema: Literal["fsdpkit.checkpoint-save/1"] = "fsdpkit.checkpoint-save/1"
    run: str
    jobs: list[Saving]


class Verified(Struct, frozen=True, kw_only=True):
    """A checkpoint whose every byte was read."""

    name: str
    path: str
    whole: bool
    removed: bool
    """It went meanwhile, as older ones do; nothing is wrong."""
    problems: list[str]
    bytes: int | None


class Verification(Struct, frozen=True, kw_only=True):
    """What `checkpoint verify` found; the exit status is 74 if one is not whole."""

    schema: Literal["fsdpkit.checkpoint-verify/1"] = "fsdpkit.checkpoint-verify/1"
    ok: bool
    checkpoints: list[Verified]


class Exported(Struct, frozen=True, kw_only=True):
    """The weights of a checkpoint, written for another program."""

    schema: Literal["fsdpkit.checkpoint-export/1"] = "fsdpkit.checkpoint-export/1"
    checkpoint: str
    path: str
    files: list[str]
    bytes: int
    load: list[str]
    """How to read it, a line each."""


class ListedJob(Struct, frozen=True, kw_only=True):
    """A job that can be submitted by its name."""

    name: str
    nodes: int
    gpus: int
    """Per node."""
    found_in: list[str]
    """The places, the strongest last."""
    description: str


class Jobs(Struct, frozen=True, kw_only=True):
    """All jobs that have a name."""

    schema: Literal["fsdpkit.jobs/1"] = "fsdpkit.jobs/1"
    jobs: list[ListedJob]


class PrintedSetting(Struct, frozen=True, kw_only=True):
    """One key of a job."""

    key: str
    """Such as `resources.nodes`."""
    value: Any
    origin: str
    """Where the value is from."""


class OneJob(Struct, frozen=True, kw_only=True):
    """A job with every value that is set, and its origin."""

    schema: Literal["fsdpkit.jobs-show/1"] = "fsdpkit.jobs-show/1"
    name: str
    files: list[str]
    entry: str
    settings: list[PrintedSetting]


class ListedSite(Struct, frozen=True, kw_only=True):
    """A cluster with a profile."""

    name: str
    title: str
    found_in: list[str]
    verified: str | None
    gpus_per_node: dict[str, int]
    """By kind of node, of those with GPUs."""


class Sites(Struct, frozen=True, kw_only=True):
    """All cluster profiles."""

    schema: Literal["fsdpkit.sites/1"] = "fsdpkit.sites/1"
    sites: list[ListedSite]


class OneSite(Struct, frozen=True, kw_only=True):
    """A cluster's profile, its files laid over one another."""

    schema: Literal["fsdpkit.sites-show/1"] = "fsdpkit.sites-show/1"
    name: str
    files: list[str]
    profile: dict[str, Any]
    """By site/schema/site.schema.json."""


class ListedTemplate(Struct, frozen=True, kw_only=True):
    """A template."""

    name: str
    version: str
    found_in: list[str]
    description: str


class Templates(Struct, frozen=True, kw_only=True):
    """All templates."""

    schema: Literal["fsdpkit.templates/1"] = "fsdpkit.templates/1"
    templates: list[ListedTemplate]


class Prepared(Struct, frozen=True, kw_only=True):
    """A directory that `data prepare` made."""

    schema: Literal["fsdpkit.data-prepare/1"] = "fsdpkit.data-prepare/1"
    dir: str
    was_prepared: bool
    """It had been before, from the same input."""
    task: str
    rows: int
    tokens: int
    bytes: int
    bad_rows: int
    bad_examples: list[str]
    """Why some of the rows that were left out cannot be used."""
    fingerprint: str


class Lengths(Struct, frozen=True, kw_only=True):
    """How many tokens the rows have in one field."""

    min: int
    p5: int
    p50: int
    p95: int
    p99: int
    max: int


class PreparedData(Struct, frozen=True, kw_only=True):
    """What a prepared directory holds, and one of its rows."""

    schema: Literal["fsdpkit.data-show/1"] = "fsdpkit.data-show/1"
    dir: str
    task: str
    tokenizer: str
    vocab_size: int
    rows: int
    tokens: int
    bytes: int
    shards: int
    bad_rows: int
    bad_examples: list[str]
    inputs: list[str]
    fingerprint: str
    lengths: dict[str, Lengths]
    """By field."""
    row: int
    texts: dict[str, str]
    """The row's, decoded, by field."""


class PrintedLine(Struct, frozen=True, kw_only=True):
    """One line of a log; each is an object of its own."""

    schema: Literal["fsdpkit.logs/1"] = "fsdpkit.logs/1"
    attempt: int
    launch: int | None
    rank: int | None
    """Both null: the batch shell's."""
    stream: str
    """`out` or `err`."""
    text: str


class Forgiven(Struct, frozen=True, kw_only=True):
    """`nodes --forgive`: a node that jobs may use again."""

    schema: Literal["fsdpkit.nodes-forgive/1"] = "fsdpkit.nodes-forgive/1"
    node: str
    queued: list[str]
    """What waits in the queue and no longer avoids it."""
    problems: list[str]
