"""Random streams and sampling: reproducible per (seed, position), and distributed as they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outlast.adapters.engines.torch_sampling import SamplingRows, sample, stream_key, uniforms


def rows(
    count: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0
) -> SamplingRows:
    """`count` rows at positions 0, 1, ... of one stream."""
    keys = np.full(count, stream_key(seed), dtype=np.uint64)
    return SamplingRows(
        temperature=np.full(count, temperature, dtype=np.float32),
        top_p=np.full(count, top_p, dtype=np.float32),
        top_k=np.full(count, top_k, dtype=np.int64),
        uniform=uniforms(keys, np.arange(count)),
    )


LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 0.0])


def frequencies(settings: SamplingRows) -> np.ndarray:
    count = len(settings.uniform)
    tokens, _ = sample(LOGITS.expand(count, -1), settings)
    return np.bincount(tokens.numpy(), minlength=5) / count


def test_streams_are_part_of_the_format() -> None:
    """Golden values: a replayed run must draw what the first one drew, in every release."""
    assert [stream_key(seed) for seed in (0, 1, -5, 2**80)] == [
        0x75DFCD439D7D2B84,
        0x7637BA9F0342FCF6,
        0x4653FDF21A030A85,
        0x60E6D1B03165AFF4,
    ]
    # The first outputs of the published SplitMix64 generator started at 0.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    observed = uniforms(np.zeros(3, dtype=np.uint64), np.arange(3))
    assert observed.tolist() == [(value >> 11) * 2.0**-53 for value in published]


def test_streams_are_uniform_and_independent() -> None:
    keys = np.asarray([stream_key(seed) for seed in range(64)], dtype=np.uint64)
    values = np.stack([uniforms(keys, np.full(64, i)) for i in range(512)])
    assert ((values >= 0) & (values < 1)).all()
    assert abs(values.mean() - 0.5) < 0.005
    histogram = np.histogram(values, bins=16, range=(0, 1))[0] / values.size
    assert np.abs(histogram - 1 / 16).max() < 0.006
    between = np.corrcoef(values.T) - np.eye(64)  # neighbouring seeds
    assert np.abs(between).max() < 0.2
    along = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]  # neighbouring positions
    assert abs(along) < 0.02


def test_frequencies_follow_the_policy() -> None:
    expected = torch.softmax(LOGITS / 0.7, -1).numpy()
    assert frequencies(rows(40_000, temperature=0.7)) == pytest.approx(expected, abs=0.01)


def test_top_k_and_top_p_cut_and_renormalise() -> None:
    probabilities = torch.softmax(LOGITS, -1).numpy()
    kept = np.where(np.isin(np.arange(5), [1, 2]), probabilities, 0)
    assert frequencies(rows(20_000, top_k=2)) == pytest.approx(kept / kept.sum(), abs=0.01)
    # 0.64 + 0.24 reaches 0.8 only with the second token; the third is out.
    assert frequencies(rows(20_000, top_p=0.8)) == pytest.approx(kept / kept.sum(), abs=0.01)
    assert frequencies(rows(100, top_p=1e-6)).tolist() == [0, 1, 0, 0, 0]


def test_logprobs_are_those_of_the_uncut_policy() -> None:
    tokens, logprobs = sample(LOGITS.expand(50, -1), rows(50, temperature=0.5, top_k=2))
    expected = torch.log_softmax(LOGITS / 0.5, -1)[tokens]
    torch.testing.assert_close(logprobs, expected)


def test_a_row_does_not_notice_the_settings_of_others() -> None:
    alone, _ = sample(LOGITS.expand(30, -1), rows(30, seed=4))
    mixed = rows(30, seed=4)
    mixed.top_k[::2] = 1
    mixed.temperature[1::3] = 0
    together, _ = sample(LOGITS.expand(30, -1), mixed)
    same = [n for n in range(30) if n % 2 and n % 3 != 1]
    assert together[same].tolist() == alone[same].tolist()
    assert (together[::2] == 1).all()


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    settings = rows(5000)
    edge = SamplingRows(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        uniform=np.linspace(0, 1, 5000, endpoint=False),
    )
    tokens, _ = sample(logits.expand(5000, -1), edge)
    assert set(tokens.tolist()) == {1, 3}
