"""The shipped tiny checkpoint: loads like any other, is small, and has something left to learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import outlast.assets
from outlast.assets import make_tiny, tiny_task

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TINY = Path(outlast.assets.__file__).with_name("tiny")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(TINY)


def test_the_checkpoint_is_under_a_megabyte() -> None:
    assert 0 < sum(path.stat().st_size for path in TINY.iterdir()) < 1_000_000


def test_the_model_has_the_documented_shape(model: LlamaForCausalLM) -> None:
    assert sum(p.numel() for p in model.parameters()) == 223_392
    assert model.config.hidden_size == 96
    assert model.config.vocab_size == len(make_tiny.VOCABULARY) == 18
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)


def test_the_tokenizer_round_trips_and_adds_nothing() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    assert len(tokenizer) == 18
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (make_tiny.PAD_ID, make_tiny.EOS_ID)
    text = "3+5+2+7=8;0;7>7"
    ids = tokenizer(text)["input_ids"]
    assert ids == [make_tiny.VOCABULARY.index(char) for char in text]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, make_tiny.EOS_ID], skip_special_tokens=True) == text
    assert tokenizer("5<eos>")["input_ids"] == [9, make_tiny.EOS_ID]


def test_the_warm_start_is_right_about_one_time_in_five(model: LlamaForCausalLM) -> None:
    # Below 0.1 the groups carry no signal, above 0.4 there is little to show.
    assert 0.1 <= make_tiny.sampled_accuracy(model, samples=512) <= 0.4


def test_thinking_is_rare_but_right(model: LlamaForCausalLM) -> None:
    """What reinforcement can find: forced to begin with a running sum, the model is right."""
    import torch

    right = 0
    for index in range(64):
        problem = tiny_task.item(index, 0, held_out=True)
        forced = problem.prompt + tiny_task.thinking(problem.prompt)[:2]
        ids = torch.tensor([[make_tiny.VOCABULARY.index(char) for char in forced]])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8
        )
        response = make_tiny.response_text(output[0, len(problem.prompt) :].tolist())
        right += int(tiny_task.reward(response, problem.answer))
    assert right >= 58


def test_a_phase_of_the_script_lowers_its_loss() -> None:
    import torch

    torch.set_num_threads(1)
    model = make_tiny.build_model()
    before = make_tiny.sampled_accuracy(model, samples=128)
    make_tiny.train_phase(
        model, make_tiny.Phase(thinking_share=0.0, steps=60, lr=3e-3, warmup_steps=10), seed=1
    )
    # After a moment of direct demonstrations it has the form of an answer, right by chance.
    after = make_tiny.sampled_accuracy(model, samples=128)
    assert before < 0.03 < after < 0.35
