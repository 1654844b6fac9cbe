"""The Python interface, from the docstrings: each public name with its signature and sections."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from fsdpkit.reference import markdown
from fsdpkit.reference.docstrings import Docstring, parse
from fsdpkit.reference.public import Public, listed

_WIDTH = 88
_KINDS = ("function", "class", "value")
_SETTINGS = ("ShardingSettings", "PrecisionSettings")
_ABOUT: Mapping[str, str] = {
    "fsdpkit": "`import fsdpkit` costs next to nothing: each name is imported on first use. "
    "How to use them: [your own script](../your-script.md).",
    "fsdpkit.training": "`from fsdpkit import training`, for a loop of your own on `torchrun`'s "
    "ranks; a whole one is [examples/own-model](../../examples/own-model/README.md). In signatures "
    "`Tensor` is `torch.Tensor` and `nn` is `torch.nn`. A *collective* is called on all ranks.",
    "fsdpkit.scheduling.states": "What `Run.state` and `Run.wait` return.",
    "fsdpkit.scheduling.saving": "What `Run.save_checkpoint` returns.",
    "fsdpkit.training.checkpoint": "What `training.data_order` returns.",
    "fsdpkit.training.hugging_face": "What `training.pretrained` returns.",
}


def page() -> str:
    """The text of `docs/reference/python.md`."""
    modules = listed()
    head = [
        "What a program, a notebook or a training script may import. Other modules may change with",
        "any release. Errors of its own are kinds of `FsdpkitError`, in `fsdpkit.errors`:",
        "[exit statuses](exit-statuses.md) lists them.",
    ]
    return markdown.page("Python", head, *(_module(*each) for each in modules.items()))


def _module(module: str, names: list[Public]) -> Iterator[str]:
    yield f"## `{module}`"
    yield ""
    names = sorted(names, key=lambda one: (_KINDS.index(one.kind), one.name))
    if module in _ABOUT:
        yield from [_ABOUT[module], ""]
    if len(names) > 2:
        rows = [(_link(one), markdown.escaped(_summary(one))) for one in names]
        yield from [*markdown.table(("name", ""), rows), ""]
    for name in names:
        yield from _name(name)


def _link(public: Public) -> str:
    """By the slug that GitHub and MkDocs give to the heading."""
    slug = re.sub(r"[^\w -]", "", _heading(public).lower()).replace(" ", "-")
    return f"[`{public.name.rpartition('.')[2]}`](#{slug})"


def _heading(public: Public) -> str:
    """`run` and `Run` differ in more than a capital, for a slug has none."""
    return f"{'Class ' * (public.kind == 'class')}`{public.name}`"


def _summary(public: Public) -> str:
    return public.doc or "" if public.kind == "value" else parse(public.doc or "").summary


def _name(public: Public) -> Iterator[str]:
    short = public.name.removeprefix("fsdpkit.")
    yield from [f"### {_heading(public)}", ""]
    if public.kind == "value":
        if isinstance(public.node, ast.Assign):
            yield from ["```py", f"{short} = {ast.unparse(public.node.value)}", "```", ""]
        yield from [markdown.escaped(public.doc or ""), ""]
        return
    doc, function = parse(public.doc or ""), public.function
    if function is not None:
        yield from _signature(short, function)
    yield from _said(doc)
    if public.kind != "class":
        return
    if short.rpartition(".")[2] in _SETTINGS:
        yield from ["Its fields, all with a default, are [keys of a job](job-keys.md).", ""]
        return
    rows = [*doc.entries("Attributes").items(), *_values(public, doc)]
    yield from _table("attribute", rows)
    for member in public.members:
        if member.kind == "method" and member.function is not None:
            yield f"#### `{short.rpartition('.')[2]}.{member.name}`"
            yield ""
            yield from _signature(member.name, member.function)
            yield from _said(parse(member.doc or ""))


def _values(public: Public, doc: Docstring) -> Iterator[tuple[str, str]]:
    """Properties, and fields with a string of their own."""
    for member in public.members:
        if member.name in doc.entries("Attributes"):
            continue
        if member.kind == "property":
            yield member.name, parse(member.doc or "").summary
        elif member.kind == "value" and member.doc:
            yield member.name, member.doc


def _said(doc: Docstring) -> Iterator[str]:
    yield from [markdown.escaped(doc.summary), ""]
    for paragraph in doc.paragraphs:
        yield from _paragraph(paragraph)
    yield from _table("argument", doc.entries("Args").items())
    for section in ("Returns", "Yields"):
        if section in doc.texts:
            yield from [f"**{section}** {markdown.escaped(doc.texts[section])}", ""]
    yield from _table("raises", doc.entries("Raises").items())
    for paragraph in doc.texts.get("Examples", "").split("\n\n"):
        yield from _paragraph(paragraph)


def _paragraph(text: str) -> Iterator[str]:
    if text.startswith(">>>"):
        shown = re.sub(r" *# doctest: .*", "", text)
        yield from ["```pycon", *shown.splitlines(), "```", ""]
    elif text.startswith("- "):
        items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
        yield from (f"- {markdown.escaped(item)}" for item in items)
        yield ""
    elif text:
        yield from [markdown.escaped(text), ""]


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    found = [(f"`{name}`", markdown.escaped(words)) for name, words in rows]
    if found:
        yield from markdown.table((title, ""), found)
        yield ""


def _signature(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """On one line if it fits, else a line for each argument, as ruff writes it."""
    arguments = list(parameters(function))
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    whole = f"{name}({', '.join(arguments)}){'' if function.name == '__init__' else returns}"
    if len(whole) > _WIDTH:
        inside = "".join(f"    {each},\n" for each in arguments)
        whole = whole.replace("(" + ", ".join(arguments) + ")", f"(\n{inside})", 1)
    yield from ["```py", *whole.splitlines(), "```", ""]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters as they are written, `/` and `*` among them, without `self` or `cls`."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for index, (each, default) in enumerate(zip(positional, defaults, strict=True)):
        if index or each.arg not in ("self", "cls"):
            yield _parameter(each, default)
        if given.posonlyargs and each is given.posonlyargs[-1]:
            yield "/"
    if given.vararg:
        yield f"*{_parameter(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(each, default)
    if given.kwarg:
        yield f"**{_parameter(given.kwarg, None)}"


def _parameter(each: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(each.annotation)}" if each.annotation else ""
    equals = " = " if kind else "="
    return each.arg + kind + (f"{equals}{ast.unparse(default)}" if default else "")
