"""T5's architecture, as far as it can be told without another implementation at hand."""

from __future__ import annotations

import math

import pytest
import torch
from data import Sample, collate
from model import T5, T5Config, additive, init_parameter, relative_buckets, shift_right
from torch.nn.functional import cross_entropy

DIMENSIONS = {
    "vocab_size": 40, "d_model": 12, "d_ff": 20, "d_kv": 5, "num_heads": 3,
    "num_layers": 2, "num_decoder_layers": 3, "dropout_rate": 0.0,
}  # fmt: skip
V1_0 = {"feed_forward_proj": "relu", "tie_word_embeddings": True}
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def build(**family) -> T5:
    torch.manual_seed(0)
    model = T5(T5Config(**DIMENSIONS, **family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            init_parameter(model.config, name, parameter, torch.default_generator)
    return model


def batch(extra_padding: int = 0):
    made = collate([Sample([5, 9, 30, 1], [7, 1]), Sample([8, 1], [4, 3, 22, 17, 1])])
    if extra_padding:
        pad = torch.nn.functional.pad
        made = made._replace(
            source=pad(made.source, (0, extra_padding)),
            source_mask=pad(made.source_mask, (0, extra_padding), value=False),
            labels=pad(made.labels, (0, extra_padding), value=-100),
        )
    return made


def loss_and_gradients(model: T5, made) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    scores = model(*made)
    loss = cross_entropy(scores.flatten(0, 1), made.labels.flatten(), ignore_index=-100)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_more_padding_changes_neither_loss_nor_gradient(family):
    model = build(**family)
    loss, gradients = loss_and_gradients(model, batch())
    padded_loss, padded_gradients = loss_and_gradients(model, batch(extra_padding=7))
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradients, gradients, atol=1e-5, rtol=1e-4)


def test_a_target_token_sees_the_tokens_before_it_only():
    model, made = build(**V1_1), batch()
    changed = made.labels.clone()
    changed[1, 3] = 11
    scores, others = model(*made), model(made.source, made.source_mask, changed)
    torch.testing.assert_close(scores[1, :4], others[1, :4])  # label 3 is input 4
    assert not torch.allclose(scores[1, 4], others[1, 4])


def test_a_row_of_padding_only_gives_finite_scores_and_no_gradient():
    model = build(**V1_1)
    made = collate([])
    scores = model(*made)
    assert torch.isfinite(scores).all()
    cross_entropy(
        scores.flatten(0, 1), made.labels.flatten(), ignore_index=-100, reduction="sum"
    ).backward()
    assert all((p.grad == 0).all() for p in model.parameters())


def test_state_dict_keys_are_hugging_face_s():
    keys = set(build(**V1_1).state_dict())
    assert {
        "shared.weight",
        "lm_head.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.1.layer.0.SelfAttention.q.weight",
        "encoder.block.1.layer.0.layer_norm.weight",
        "encoder.block.1.layer.1.DenseReluDense.wi_0.weight",
        "encoder.block.1.layer.1.DenseReluDense.wi_1.weight",
        "encoder.final_layer_norm.weight",
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder.block.2.layer.1.EncDecAttention.o.weight",
        "decoder.block.2.layer.2.DenseReluDense.wo.weight",
        "decoder.final_layer_norm.weight",
    } <= keys
    # Encoder block: q k v o, wi_0 wi_1 wo, 2 norms; decoder block: 4 + 1 more; per stack a table
    # and a last norm; embedding and head.
    assert len(keys) == 2 * 9 + 3 * 14 + 2 * 2 + 2
    v1_0 = set(build(**V1_0).state_dict())
    assert "encoder.block.0.layer.1.DenseReluDense.wi.weight" in v1_0
    assert "lm_head.weight" not in v1_0


def literal_bucket(relative: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """One bucket by the paper's words, in float64: exact up to half, then logarithmic, capped."""
    base = 0
    if bidirectional:
        buckets //= 2
        base = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return base + min(exact + int(share * (buckets - exact) + 1e-6), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets_of_all_distances_to_600(bidirectional):
    length = 601
    got = relative_buckets(length, length, bidirectional, 32, 128).tolist()
    expected = [literal_bucket(r, bidirectional, 32, 128) for r in range(-600, 601)]
    assert got == expected
    assert max(got) == 31


def test_position_bias_is_the_table_s_row_of_key_minus_query():
    attention = build(**V1_1).decoder.block[0].layer[0].inner
    bias = attention.position_bias(9)
    buckets = relative_buckets(9, 9, False, 32, 128)
    table = attention.relative_attention_bias.weight
    for query in range(9):
        for key in range(9):
            torch.testing.assert_close(bias[0, :, query, key], table[buckets[key - query + 8]])


def test_attention_scores_are_not_scaled():
    attention = build(**V1_1).encoder.block[1].layer[0].inner
    x = torch.randn(1, 4, 12)
    q, k, v = (
        part(x).unflatten(-1, (3, -1)).transpose(1, 2)
        for part in (attention.q, attention.k, attention.v)
    )
    expected = attention.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, x, torch.zeros(1, 1, 4, 4)), expected)


def test_v1_0_scales_the_decoder_s_output_before_the_tied_head():
    model, made = build(**V1_0), batch()
    caught = []
    model.decoder.register_forward_hook(lambda _m, _a, output: caught.append(output))
    scores = model(*made)
    torch.testing.assert_close(scores, caught[0] @ model.shared.weight.T / math.sqrt(12))


def test_shift_right_starts_with_pad_and_hides_the_ignored():
    assert shift_right(torch.tensor([[7, 8, 1, -100, -100]])).tolist() == [[0, 7, 8, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masks_are_finite_in_every_type(dtype):
    mask = additive(torch.tensor([True, False]), dtype)
    assert mask.dtype == dtype
    assert torch.isfinite(mask).all()
    assert mask[0] == 0
    assert mask[1] < -60000


def test_norm_s_variance_is_float32_for_half_weights():
    norm = build(**V1_1).encoder.final_layer_norm.bfloat16()
    x = torch.full((1, 12), 3e20, dtype=torch.bfloat16)
    torch.testing.assert_close(norm(x / 1e10), torch.ones(1, 12, dtype=torch.bfloat16))
    assert norm(x / 1e10).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("shared.weight", 1.0),
        ("lm_head.weight", 1.0),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", (512 * 64) ** -0.5),
        ("encoder.block.0.layer.0.SelfAttention.k.weight", 512**-0.5),
        ("encoder.block.0.layer.0.SelfAttention.o.weight", 384**-0.5),
        ("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 512**-0.5),
        ("encoder.block.0.layer.1.DenseReluDense.wo.weight", 1024**-0.5),
    ],
)
def test_initial_values_have_t5_s_spread(name, std):
    config = T5Config(
        vocab_size=300, d_model=512, d_ff=1024, d_kv=64, num_heads=6,
        num_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    tensor = torch.empty(300, 512)
    init_parameter(config, name, tensor, torch.Generator().manual_seed(1))
    assert float(tensor.std()) == pytest.approx(std, rel=0.02)
