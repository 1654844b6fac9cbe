"""`fsdpkit jobs NAME --all`: a whole job as TOML that reads back as the same job."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config import assets
from fsdpkit.config.as_toml import as_toml
from fsdpkit.config.fields import VariableName
from fsdpkit.config.job import Environment, JobSpec, Resources
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.loading import tomllib
from tests.programs import Fsdpkit


@pytest.mark.parametrize("name", sorted(assets.available("job")))
def test_each_job_reads_back_as_it_was(name: str, fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    printed = fsdpkit("jobs", name, "--all")
    (tmp_path / "mine.toml").write_text(printed.stdout)
    job, again = load_job(name), load_job(str(tmp_path / "mine.toml"))
    assert again.entry == job.entry
    assert msgspec.structs.replace(again.spec, entry=job.spec.entry) == job.spec


def keys_of(kind: type[msgspec.Struct], above: str = "") -> list[str]:
    found = []
    for field in msgspec.structs.fields(kind):
        inner = [t for t in getattr(field.type, "__args__", (field.type,)) if is_struct(t)]
        name = f"{above}{field.encode_name}"
        found += keys_of(inner[0], f"{name}.") if inner else [name]
    return found


def is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@given(st.text(), st.lists(st.text()), st.dictionaries(st.from_regex(r"\A[A-Z_]+\Z"), st.text()))
def test_no_text_breaks_it(text: str, texts: list[str], variables: dict[VariableName, str]) -> None:
    spec = JobSpec(
        schema="fsdpkit.job/1",
        name="x",
        entry="x.py",
        resources=Resources(nodes=1, gpus=1, time="1:00:00"),
        description=text,
        args=texts,
        environment=Environment(variables=variables),
    )
    assert msgspec.convert(tomllib.loads(as_toml(spec)), JobSpec) == spec
