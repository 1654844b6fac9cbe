"""Whatever a form's field says: it is one of the values that are allowed, or the job ends with
status 65 and a sentence, and nothing of it was run.

The script's own checks are held to Python's reading of what is allowed, in real bash; the Ruby that
portals run before they submit is held to the same, in real Ruby.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import JobSpec
from fsdpkit.publishing.export.checks import check_lines
from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.script import ExportedScript, export_script
from fsdpkit.publishing.export.shared_job import plain_job
from tests.programs import ran
from tests.publishing.export import made, portals
from tests.rendering.hostile_strings import PIECES

REFUSED = 65
HOSTILE = (
    *r"""
    -x --flag --wrap=id - -- ' ${IFS} $((1+1)) >gotcha ../../etc/passwd .. / /../.. ~ ~root é 日本
    ٤ １ 𝕏 /tmp/é.py 0 1 -1 +1 01 007 1e3 1E3 0x10 1_000 1.5 1. .5 1,5 nan inf -inf NaN
    99999999999999999999 2147483648 3600 3601 0.25 0.249999 0.2499999 1.5 1.500001 1.0000000
    0.3000000001 x[0] RANDOM SECONDS FSDPKIT_FORM_NODES %n %s%s%s %> * ? [a-z] {a,b} !! # a#b
    #{place} train.py a/b.py a//b.py a.pyc -a.py ./-a.py .py /.py /opt/env /opt/env/ opt/env
    torch plain fast-007 fast-1234 Fast fast slow true null no ~/x.py &a *a ---
    """.split(),  # noqa: SIM905 (a list of eighty strings is unreadable)
    *("", " ", "  ", '"', "`touch gotcha`", "\\", "\\n", "$(touch gotcha)", "a;touch gotcha"),
    *("a|touch gotcha", "a&touch gotcha", "a\ntouch gotcha", "a\r\nb", "a\tb"),
    *("\x1b[31mred\x1b[0m", "\x07", "\x7f", "a\x0bb", "x" * 10_000, "9" * 10_000),
    *("a " * 5_000, "\u202eevil", "\xa0", "\ufeff", "e\u0301", "1 2", " 1", "1 ", "1\n"),
    *("a[$(touch gotcha)]", "#{`touch gotcha`}", "<%= 1 %>", "a.py ", "a b.py", "/opt/my env"),
    *("--epochs 2", "a=b c,d", "a  b", "very slow", "very  slow", "fast\n"),
    *("!ruby/object:Object {}", "- a", "{a: b}"),
)
NUL = "a\0b"
"""Only where a portal hands texts on; no variable of an environment can hold it."""


def drawn(count: int) -> list[str]:
    """Texts put together from what means something to a shell, always the same ones."""
    dice = random.Random(20261124)
    return ["".join(dice.choices(PIECES, k=dice.randint(1, 6))) for _ in range(count)]


def allowed(field: Field, text: str) -> bool:
    """Python's reading of what the field may say."""
    if text == "" or not (text.isascii() and text.isprintable()):
        return text == "" and field.may_be_empty
    if field.kind == "choice":
        return text in field.choices
    if not field.allows(text):
        return False
    return field.low is None or field.high is None or field.low <= float(text) <= field.high


def good_values(fields: tuple[Field, ...]) -> dict[str, str]:
    filled = {"directory": "/", "environment": "/opt/env"}
    return {field.key: str(filled.get(field.key, field.default)) for field in fields}


@pytest.fixture(scope="module")
def exported(folder: Path) -> ExportedScript:
    return made.app(folder, "ondemand").exports[0]


ONE_CASE = """\
for case in cases/*; do
    (
        unset -v hostile; IFS= read -r -d '' hostile < "$case/value" || true
        IFS= read -r name < "$case/variable"
        export "$name=$hostile"
        SLURM_JOB_NUM_NODES=2
        source ./checks.sh
        printf 'ALLOWED ' ; printf '%s' "${FSDPKIT_FORM_WORDS[*]}"
    ) > "$case/out" 2> "$case/err"
    echo $? > "$case/status"
done
"""


def test_the_scripts_own_checks_let_nothing_through_but_what_is_allowed(
    exported: ExportedScript, tmp_path: Path
) -> None:
    (tmp_path / "checks.sh").write_text(check_lines(exported.fields, 1, 64))
    (tmp_path / "cases").mkdir()
    cases = [(field, text) for field in exported.fields for text in (*HOSTILE, *drawn(20))]
    for number, (field, text) in enumerate(cases):
        case = tmp_path / "cases" / f"{number:05}"
        case.mkdir()
        (case / "variable").write_text(f"{field.variable}\n")
        (case / "value").write_bytes(text.encode())
    good = {field.variable: good_values(exported.fields)[field.key] for field in exported.fields}
    before = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run(
        ["bash", "-p", "-c", ONE_CASE],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **good},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    wrong = []
    for number, (field, text) in enumerate(cases):
        case = tmp_path / "cases" / f"{number:05}"
        status = int((case / "status").read_text())
        out, err = (case / "out").read_text(), (case / "err").read_text(errors="replace")
        if allowed(field, text) and not (field.key == "directory" and not Path(text).is_dir()):
            ok = status == 0 and out.startswith("ALLOWED ") and err == ""
            if field.key == "arguments":
                ok = ok and out == f"ALLOWED {text}"
        else:
            ok = status == REFUSED and out == "" and err.startswith("fsdpkit: the form: ")
            ok = ok and f": {field.label}: " in err and "; allowed: " in err
            ok = (
                ok and all(char.isprintable() for char in err.removesuffix("\n")) and len(err) < 900
            )
        if not ok:
            wrong.append((field.key, text[:80], status, out[:80], err[:200]))
    assert wrong == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "something was run"


def bare(text: str) -> str:
    """As Ruby strips it: what a form for OnDemand says, without blanks around it."""
    return text.strip(" \t\n\v\f\r\0")


def verdicts(answers: list[Any]) -> list[str | None]:
    return [answer.get("error") for answer in answers]


def forms(
    fields: tuple[Field, ...], good: dict[str, Any], name: Any
) -> list[tuple[Field, str, Any]]:
    texts = (*HOSTILE, *drawn(10), NUL)
    return [
        (field, text, {**good, name(field): text})
        for field in fields
        if field.key != "gpus"
        for text in texts
    ]


def assert_refused_alike(cases: list[tuple[Field, str, Any]], errors: list[str | None]) -> None:
    for (field, text, _), error in zip(cases, errors, strict=True):
        # A pattern of a template's own is left to the script.
        own = field.key.startswith("p_") and field.kind == "text"
        good = field.may_be_empty if text == "" else text.isascii() and text.isprintable()
        good = good and len(text) <= field.longest if own else allowed(field, text)
        assert (error is None) == good, (field.key, text[:80], error)
        if error is not None:
            assert error.startswith(f"{field.label}: "), error
            assert "; allowed: " in error
            assert error.isprintable()
            assert len(error) < 900


@portals.needs_ruby
def test_ondemands_server_refuses_the_same_before_it_submits(
    folder: Path,
    exported: ExportedScript,
) -> None:
    root = made.on_disk(made.app(folder, "ondemand"), folder)
    good = portals.batch_connect_defaults(root) | {"auto_accounts": "pas1234"}
    good |= {f"fsdpkit_{key}": text for key, text in good_values(exported.fields).items()}
    cases = forms(exported.fields, good, lambda field: f"fsdpkit_{field.key}")
    answers = portals.in_ruby("batch-connect", root, [form for _, _, form in cases])
    read = [(field, bare(text), form) for field, text, form in cases]
    assert_refused_alike(read, verdicts(answers))


@portals.needs_ruby
def test_open_composers_server_refuses_the_same_before_it_writes_the_script(
    folder: Path,
) -> None:
    app = made.app(folder, "open-composer")
    root, fields = made.on_disk(app, folder), app.exports[0].fields
    good = portals.open_composer_defaults(root) | {"account": "pas1234", **good_values(fields)}
    cases = forms(fields, good, lambda field: field.key)
    answers = portals.in_ruby("open-composer", root, [form for _, _, form in cases])
    assert_refused_alike(cases, verdicts(answers))


def bad_arguments(exported: ExportedScript) -> list[str]:
    (field,) = (field for field in exported.fields if field.key == "arguments")
    return [text for text in HOSTILE if not allowed(field, text)]


def run_to_refusal(script: Path, folder: Path) -> None:
    """The whole script ends at its checks, and leaves nothing behind."""
    before = sorted(path.name for path in folder.iterdir())
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    run = {"cwd": folder, "env": env, "capture_output": True, "check": False}
    done = subprocess.run(["bash", "-p", str(script)], **run)
    assert done.returncode == REFUSED, (script.read_text()[:3000], done.stderr)
    assert done.stderr.startswith(b"fsdpkit: the form: Arguments: "), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


@portals.needs_ruby
def test_what_ondemand_stages_carries_any_text_to_the_checks(folder: Path, tmp_path: Path) -> None:
    """Even if the server's own check were not there."""
    app = made.app(folder, "ondemand")
    root, exported = made.on_disk(app, folder), app.exports[0]
    (tmp_path / "script-heron.sh").write_text(app.files["template/script-heron.sh"])
    (tmp_path / "train.py").write_text("")
    good = {f"fsdpkit_{key}": text for key, text in good_values(exported.fields).items()}
    good = portals.batch_connect_defaults(root) | good | {"fsdpkit_directory": str(tmp_path)}
    texts = [text for text in bad_arguments(exported) if bare(text) in bad_arguments(exported)]
    staged = portals.in_ruby("before", root, [{**good, "fsdpkit_arguments": t} for t in texts])
    for before in staged:
        (tmp_path / "before.sh").write_text(before)
        run_to_refusal(tmp_path / "before.sh", tmp_path)


def test_what_open_composer_fills_in_carries_any_text_to_the_checks(
    folder: Path, tmp_path: Path
) -> None:
    app = made.app(folder, "open-composer")
    root = made.on_disk(app, folder)
    (tmp_path / "train.py").write_text("")
    good = portals.open_composer_defaults(root) | good_values(app.exports[0].fields)
    for text in bad_arguments(app.exports[0])[::3]:
        script = portals.filled_in(root, {**good, "arguments": text})
        (tmp_path / "job.sh").write_text(script)
        run_to_refusal(tmp_path / "job.sh", tmp_path)


PLACES = (
    ("fsdpkit_place", "heron:long:5", "Partition and GPUs: is"),
    ("fsdpkit_place", "long:4", "Partition and GPUs: is"),
    ("fsdpkit_place", "$(id)", "Partition and GPUs: is"),
    ("fsdpkit_place", "", "Partition and GPUs: is empty"),
    ("cluster", "egret", 'Partition and GPUs: is not on the cluster "egret"'),
    ("cluster", "$(id)", "Partition and GPUs: is not on the cluster"),
    ("fsdpkit_nodes", "0", "Nodes: is"),
    ("fsdpkit_nodes", "-1", "Nodes: is"),
    ("fsdpkit_nodes", "1e3", "Nodes: is"),
    ("fsdpkit_nodes", "02", "Nodes: is"),
    ("fsdpkit_nodes", "5", "Nodes: are 5; allowed there: 1 to 4"),
    ("fsdpkit_nodes", "65", "Nodes: is"),
    ("fsdpkit_nodes", "9" * 10_000, "Nodes: has 10000 characters"),
    ("fsdpkit_minutes", "721", "Minutes: are 721; allowed there: 6 to 720"),
    ("fsdpkit_minutes", "5", "Minutes: is"),
    ("fsdpkit_minutes", "0", "Minutes: is"),
    ("fsdpkit_minutes", "7.5", "Minutes: is"),
    ("fsdpkit_minutes", "00:30", "Minutes: is"),
    ("auto_accounts", "", "Account: is empty"),
    ("auto_accounts", "--wrap=id", "Account: is"),
    ("auto_accounts", "a b", "Account: is"),
)


@portals.needs_ruby
def test_what_slurm_is_told_is_within_the_limits_of_the_place(
    folder: Path,
    exported: ExportedScript,
) -> None:
    root = made.on_disk(made.app(folder, "ondemand"), folder)
    good = portals.batch_connect_defaults(root) | {"auto_accounts": "pas1234"}
    good |= {f"fsdpkit_{key}": text for key, text in good_values(exported.fields).items()}
    good |= {"fsdpkit_place": "heron:long:4", "fsdpkit_nodes": "4", "fsdpkit_minutes": "720"}
    single = {**good, "fsdpkit_nodes": "1", "fsdpkit_minutes": "2880"}
    changed = [{**good, name: text} for name, text, _ in PLACES]
    answers = portals.in_ruby("batch-connect", root, [good, single, *changed])
    assert answers[0]["submit"] == {
        "batch_connect": {"template": "basic"},
        "script": {
            "native": [
                *("--partition=long", "--ntasks-per-node=1", "--cpus-per-task=64", "--mem=0"),
                *("--gpus-per-node=4", "--open-mode=append", "--signal=B:USR1@120"),
                *("--requeue", "--nodes=4"),
            ],
            "wall_time": 12 * 3600,
            "accounting_id": "pas1234",
        },
    }
    assert answers[1]["submit"]["script"]["wall_time"] == 48 * 3600
    for (name, text, told), answer in zip(PLACES, answers[2:], strict=True):
        assert str(answer.get("error")).startswith(told), (name, text, answer)


@portals.needs_ruby
@pytest.mark.parametrize("name", ["_script_location", "_script_1", "_script_2"])
def test_open_composers_own_fields_reach_no_shell_either(folder: Path, name: str) -> None:
    """Its sbatch command is one text, in which a job's name would be read by a shell."""
    app = made.app(folder, "open-composer")
    root = made.on_disk(app, folder)
    good = portals.open_composer_defaults(root) | {"account": "pas1234"}
    good |= good_values(app.exports[0].fields)
    texts = ["x; touch gotcha", "$(id)", "a b", "-x", "a\nb", "'", "x" * 10_000, "/closed"]
    answers = portals.in_ruby("open-composer", root, [good, *({**good, name: t} for t in texts)])
    assert answers[0] == {"error": None}
    assert all(answer["error"] for answer in answers[1:]), answers


@portals.needs_ruby
def test_open_composer_says_which_value_is_offered_no_more(folder: Path) -> None:
    """Before it looks that up in the form, and fails."""
    app = made.app(folder, "open-composer")
    root = made.on_disk(app, folder)
    good = portals.open_composer_defaults(root) | {"account": "pas1234"}
    cases = [{"place": "gone"}, {"p_mode": "#{exit}"}, {"place": ""}]
    for answer in portals.in_ruby("open-composer", root, [good | case for case in cases]):
        assert "allowed: one of the list" in answer["error"]
    page = "<script>alert(1)</script>"
    cases = [{"place": page}, {"account": page}, {"script": page}]
    for answer in portals.in_ruby("open-composer", root, [good | case for case in cases]):
        assert "<" not in answer["error"]
        assert "alert(1)" in answer["error"]


def test_a_pattern_with_quotes_reaches_job_json_as_json(
    exported: ExportedScript, tmp_path: Path
) -> None:
    """A template may allow what it likes; the record stays one that can be read."""
    (tag,) = (field for field in exported.fields if field.key == "p_tag")
    free = replace(tag, pattern=".*")
    script = check_lines([free], 1, 64) + "json FSDPKIT_FORM_P_TAG\n"
    text = 'it\'s "$(id)" \\ `x` \\" %s'
    env = {"FSDPKIT_FORM_P_TAG": text, "SLURM_JOB_NUM_NODES": "1"}
    done = ran(["bash", "-c", script], env=env, status=0)
    assert json.loads(done.stdout) == text


def test_what_a_job_says_of_itself_is_text_in_the_record(folder: Path, tmp_path: Path) -> None:
    """Its description, variables and arguments stand in a here-document, where bash expands."""
    hostile = "$(touch gotcha) `touch gotcha` \\ \" ' ${HOME} $HOME\nJOB\ntouch gotcha é"
    spec = plain_job()
    value = hostile.replace("HOME", "0")  # the name of a variable would be refused
    environment = msgspec.structs.replace(spec.environment, variables={"X": value})
    spec = msgspec.structs.replace(spec, description=hostile, environment=environment)
    exported = export_script(made.template(folder), made.site(folder, "heron"), spec)
    (tmp_path / "train.py").write_text("")
    good = {field.variable: good_values(exported.fields)[field.key] for field in exported.fields}
    good |= {"FSDPKIT_FORM_ARGUMENTS": "--a b=c", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7"}
    script = tmp_path / "script.sh"
    script.write_text(exported.checks)
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(["bash", "-p", script], env={"PATH": os.environ["PATH"], **good}, **run)
    assert (done.returncode, done.stderr) == (0, "")
    run_dir = tmp_path / "runs" / "train-7"
    job = msgspec.json.decode((run_dir / "job.json").read_bytes(), type=JobSpec)
    assert (job.description, job.environment.variables) == (hostile, {"X": value})
    assert (job.args, job.resources.nodes, job.template) == (["--a", "b=c"], 3, "small")
    assert job.parameters == {"wait_s": 60, "share": 0.5, "tag": "plain", "mode": "fast"}
    record = json.loads((run_dir / "run.json").read_text())
    sha256 = hashlib.sha256((run_dir / "job.json").read_bytes()).hexdigest()
    assert (record["id"], record["nodes"], record["job_id"]) == ("train-7", 3, "7")
    assert record["digests"]["job"] == sha256
    assert (run_dir.stat().st_mode & 0o777, (run_dir / "job.json").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    assert not list(tmp_path.rglob("gotcha"))

    # What somebody else has put in the run's place is not written to.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "train-8").symlink_to(tmp_path / "elsewhere")
    good["SLURM_JOB_ID"] = "8"
    done = subprocess.run(["bash", "-p", script], env={"PATH": os.environ["PATH"], **good}, **run)
    assert done.returncode == REFUSED
    assert "cannot be written" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []
