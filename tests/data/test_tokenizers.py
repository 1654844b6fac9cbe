"""Every tokenizer gives text back, has T5's special ids, and says what it lacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.data.tokenizer_files import largest_id
from fsdpkit.data.tokenizers import Tokenizer, load_tokenizer
from fsdpkit.errors import ConfigError, NotFoundError
from tests.data.conftest import T5_IDS, train_sentencepiece

TEXTS = ["", "hello", "  two  spaces\nand a line", "Größe ☃ 😀", "import this\n"]


@pytest.fixture(params=["bytes", "json", "sentencepiece"])
def spec(request: pytest.FixtureRequest, tokenizer_json: Path, sentencepiece_model: Path) -> str:
    files = {"json": tokenizer_json, "sentencepiece": sentencepiece_model}
    return str(files.get(request.param, request.param))


@pytest.fixture
def tokenizer(spec: str) -> Tokenizer:
    return load_tokenizer(spec)


def test_one_text_a_batch_and_flat_arrays_are_the_same_ids(tokenizer: Tokenizer) -> None:
    one_by_one = [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch(TEXTS) == one_by_one
    flat = tokenizer.encode_flat(TEXTS)
    assert flat.ids.tolist() == [i for ids in one_by_one for i in ids]
    assert flat.ids.dtype == np.uint16
    assert flat.lengths.tolist() == [[len(ids)] for ids in one_by_one]
    assert tokenizer.encode_flat([]).lengths.shape == (0, 1)


def test_no_special_id_is_added_or_cut_and_all_are_below_the_vocabulary(
    tokenizer: Tokenizer,
) -> None:
    long = tokenizer.encode("a sentence that is longer than five tokens " * 20)
    assert len(long) > 100
    assert not {tokenizer.eos_id, tokenizer.pad_id} & set(long)
    assert max(*long, *tokenizer.sentinels) < tokenizer.vocab_size
    assert (tokenizer.pad_id, tokenizer.eos_id) == (0, 1)


def test_decoding_ends_at_the_first_end_of_text_and_leaves_padding_out(
    tokenizer: Tokenizer,
) -> None:
    hello, more = tokenizer.encode("hello"), tokenizer.encode("more")
    ids = [tokenizer.pad_id, *hello, tokenizer.eos_id, *more]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(np.array(ids)) == "hello"


@pytest.mark.parametrize("kind", ["bytes", "json"])
def test_any_text_comes_back(kind: str, tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer("bytes" if kind == "bytes" else str(tokenizer_json))

    # A special token's own name in a text is that token; nothing else changes.
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<")))
    @settings(max_examples=60)
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_sentinels_of_a_tokenizer_json_are_its_extra_ids(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    assert list(tokenizer.sentinels) == [3 + i for i in range(10)]
    ids = [*tokenizer.encode("a"), tokenizer.sentinels[0], *tokenizer.encode("b")]
    assert tokenizer.decode(ids) == "a<extra_id_0>b"


def test_sentencepiece_gets_t5s_hundred_sentinels_on_top_in_reverse(
    sentencepiece_model: Path,
) -> None:
    tokenizer = load_tokenizer(str(sentencepiece_model))
    assert tokenizer.vocab_size == 300 + 100
    assert list(tokenizer.sentinels) == list(range(399, 299, -1))
    ids = [*tokenizer.encode("the"), 399, *tokenizer.encode("function"), 398]
    assert tokenizer.decode(ids) == "the <extra_id_0> function <extra_id_1>"


@pytest.mark.parametrize("mark", ["", "▁"])
def test_sentinels_that_a_sentencepiece_model_holds_are_taken(
    mark: str, tmp_path: Path, sentences: list[str]
) -> None:
    own = [f"{mark}<extra_id_{i}>" for i in range(2)]
    path = train_sentencepiece(tmp_path / "a.model", sentences, user_defined_symbols=own, **T5_IDS)
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.vocab_size == 300
    assert list(tokenizer.sentinels) == [3, 4]
    assert largest_id(path, sentinels=True) == 299


def test_the_largest_id_is_found_without_the_packages(
    tokenizer_json: Path, sentencepiece_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {path: load_tokenizer(str(path)) for path in (tokenizer_json, sentencepiece_model)}
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for path, tokenizer in expected.items():
        assert largest_id(path, sentinels=True) == tokenizer.vocab_size - 1
    assert largest_id(sentencepiece_model, sentinels=False) == 299


Lookup = Callable[[Path], object]


@pytest.mark.parametrize(
    "look_up",
    [lambda p: load_tokenizer(str(p)), lambda p: largest_id(p, False)],
    ids=["load", "id"],
)
def test_a_tokenizer_that_is_none_is_refused_by_name(look_up: Lookup, tmp_path: Path) -> None:
    for name, content in (("a.json", b'{"a": 1}'), ("b.json", b"\xff"), ("c.model", b"nothing")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=name):
            look_up(path)
    with pytest.raises(NotFoundError, match=r"d\.json: no such file"):
        look_up(tmp_path / "d.json")
    with pytest.raises(ConfigError, match="must be"):
        look_up(tmp_path / "e.txt")


@pytest.mark.parametrize("missing", ["</s>", "<pad>"])
def test_a_tokenizer_json_without_a_special_token_names_it(
    missing: str, tokenizer_json: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json.read_text().replace(f'"{missing}"', '"other"'))
    for look_up in (lambda: load_tokenizer(str(path)), lambda: largest_id(path, False)):
        with pytest.raises(ConfigError, match=rf"tokenizer\.json: has no {missing} token"):
            look_up()


@pytest.mark.torch
def test_beside_a_model_it_gives_others_the_ids_that_were_trained_on(
    spec: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """With the config.json of a T5, by which AutoTokenizer would else take T5's own."""
    from transformers import AutoTokenizer

    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["hello", "Größe of three", "import this", "a sentence, and another."]
    for text in texts:
        assert theirs(text, add_special_tokens=False).input_ids == tokenizer.encode(text)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.eos_id, tokenizer.pad_id)
    ids = tokenizer.encode("hello")
    assert theirs.decode([*ids, tokenizer.eos_id], skip_special_tokens=True).strip() == "hello"
    if spec.endswith(".model"):
        sentinel = theirs.convert_tokens_to_ids("<extra_id_0>")
        assert sentinel == tokenizer.sentinels[0]
