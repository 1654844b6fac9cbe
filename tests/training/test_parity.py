"""The example's T5 beside Hugging Face's: same weights, same numbers.

Float32 on both sides; what differs is the order of sums (fused kernels, one matrix product instead
of another), so scores, losses and gradients are compared to 1e-5, absolute and relative to the
number. Tokens are compared exactly.
"""

from __future__ import annotations

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from model import T5
from search import CachedDecoder, Search, generate
from small_t5 import DIMENSIONS, V1_0, V1_1, batch_of, build, loss_and_gradients
from weights import export, hugging_face_config, load

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
WIDE = {"d_kv": 8, "num_heads": 5}  # 40, where d_model is 12
FAMILIES = {
    "v1.0": V1_0,
    "v1.1": V1_1,
    "v1.0, heads wider than the model": {**V1_0, **WIDE},
    "v1.1, 8 buckets to distance 20": {
        **V1_1, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
    },
    "tied, not scaled": {**V1_0, "scale_decoder_outputs": False},
}  # fmt: skip
SAMPLES = (
    ([5, 9, 30, 2, 33, 8, 1], [7, 1]),
    ([8, 1], [4, 3, 22, 17, 1]),
    ([*range(2, 39), 1], [*range(38, 2, -1), 1]),  # farther apart than small buckets reach
)


def hugging_face_t5() -> type:
    """Imported by the worker that compares, and not by all as they collect tests: seconds."""
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration


def peer_of(model: T5, **arguments: object) -> torch.nn.Module:
    """Hugging Face's model with `model`'s weights."""
    from transformers import T5Config

    peer = hugging_face_t5()(T5Config(**hugging_face_config(model.config)))
    if model.lm_head is not None:
        peer.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    state = {**model.state_dict()}
    for alias in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        state.setdefault(alias, state["shared.weight"])
    peer.load_state_dict(state)
    return peer.train()


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES.keys())
def pair(request) -> tuple[T5, torch.nn.Module]:
    model = build(**request.param)
    return model, peer_of(model)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_scores_loss_and_every_gradient_are_hugging_face_s(pair, attention):
    ours, peer = pair
    model = T5(ours.config, attention)
    model.load_state_dict(ours.state_dict())
    source, mask, labels = batch_of(*SAMPLES)
    scores = model(source, mask, labels)
    peer.zero_grad()
    expected = peer(input_ids=source, attention_mask=mask.long(), labels=labels)
    torch.testing.assert_close(scores, expected.logits, **TOLERANCE)
    loss, gradients = loss_and_gradients(model, (source, mask, labels))
    torch.testing.assert_close(loss, expected.loss.detach(), **TOLERANCE)
    expected.loss.backward()
    found = {name: p.grad for name, p in peer.named_parameters()}
    assert gradients.keys() == found.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, found[name], **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


def expected_tokens(peer: torch.nn.Module, source, mask, **arguments: object) -> list[list[int]]:
    """What transformers writes, cut like ours: without start token, up to EOS."""
    rows = (
        peer.eval()
        .generate(input_ids=source, attention_mask=mask.long(), do_sample=False, **arguments)[:, 1:]
        .tolist()
    )
    return [row[: row.index(1)] if 1 in row else row for row in rows]


def writer(**family: object) -> T5:
    """A model that writes texts of many lengths: few tokens, EOS among the likely ones."""
    # transformers' cache has a slot per encoder layer: it fails where the decoder has more.
    model = build(**family, vocab_size=12, num_layers=3, num_decoder_layers=2).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".o.weight", ".wo.weight")):
                parameter *= 2  # less of the token before, more of the layers
        head = model.shared if model.lm_head is None else model.lm_head
        head.weight[1] = 2 * torch.randn(12, generator=torch.Generator().manual_seed(6))
    return model


def sources() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    rows = [torch.randint(2, 12, (n,), generator=random).tolist() for n in range(1, 13)]
    return batch_of(*((row, [1]) for row in rows))[:2]


SEARCHES = {
    "greedy": Search(max_new_tokens=10),
    "4 beams": Search(max_new_tokens=10, beams=4),
    "long preferred": Search(max_new_tokens=10, beams=4, length_penalty=2.0),
    "short preferred": Search(max_new_tokens=10, beams=3, length_penalty=-1.0),
    "stopping early": Search(max_new_tokens=10, beams=4, early_stopping=True),
    "a single token": Search(max_new_tokens=1, beams=3),
}


@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_greedy_and_beam_search_write_hugging_face_s_tokens(family):
    source, mask = sources()
    model = writer(**family)
    peer = peer_of(model)
    lengths = set()
    for name, search in SEARCHES.items():
        expected = expected_tokens(
            peer,
            source,
            mask,
            max_new_tokens=search.max_new_tokens,
            num_beams=search.beams,
            length_penalty=search.length_penalty,
            early_stopping=search.early_stopping,
        )
        assert generate(model, source, mask, search) == expected, name
        lengths |= set(map(len, expected))
    assert len(lengths) >= 4  # texts that end at once, early, late and not at all


@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_the_cache_changes_no_score(family):
    model = build(**family).eval()
    source, mask, labels = batch_of(*SAMPLES)
    together = model(source, mask, labels.clamp(min=0))
    decoder = CachedDecoder(model, source, mask, Search(max_new_tokens=labels.shape[1]))
    tokens = torch.nn.functional.pad(labels.clamp(min=0), (1, 0))
    with torch.inference_mode():
        for t in range(labels.shape[1]):
            torch.testing.assert_close(decoder.step(tokens[:, t]), together[:, t], **TOLERANCE)


@pytest.mark.parametrize("head", ["of its own", "tied"])
def test_an_mt5_of_transformers_is_read_and_gives_its_scores(head, tmp_path):
    from transformers import MT5Config, MT5ForConditionalGeneration

    torch.manual_seed(0)
    peer = MT5ForConditionalGeneration(MT5Config(**DIMENSIONS)).eval()
    if head == "of its own":  # as google/mt5-* have it
        peer.lm_head.weight = torch.nn.Parameter(torch.randn_like(peer.lm_head.weight))
    peer.save_pretrained(tmp_path)
    said = tmp_path / "config.json"
    table = {**json.loads(said.read_text()), "tie_word_embeddings": head == "tied"}
    said.write_text(json.dumps(table))
    model = load(tmp_path)
    assert model.config.tie_word_embeddings == (head == "tied")
    source, mask, labels = batch_of(*SAMPLES)
    expected = peer(input_ids=source, attention_mask=mask.long(), labels=labels).logits
    torch.testing.assert_close(model(source, mask, labels), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_an_export_loads_in_transformers_and_back_bit_for_bit(family, tmp_path):
    model = build(**family).eval()
    export(tmp_path / "ours", model, model.config)
    peer, report = hugging_face_t5().from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    theirs = peer.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(theirs[name], value), name
    source, mask, labels = batch_of(*SAMPLES)
    expected = peer(input_ids=source, attention_mask=mask.long(), labels=labels).logits
    torch.testing.assert_close(model(source, mask, labels), expected, **TOLERANCE)

    peer.save_pretrained(tmp_path / "theirs")
    back = load(tmp_path / "theirs")
    assert back.config.tie_word_embeddings == model.config.tie_word_embeddings
    assert back.config.scales_decoder_outputs == model.config.scales_decoder_outputs
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
