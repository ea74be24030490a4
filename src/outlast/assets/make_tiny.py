"""Makes the tiny warm-started model: ``python -m outlast.assets.make_tiny --out DIR``.

What it is: a 0.22 M-parameter Llama over an 18-token character vocabulary, trained in two
supervised phases on `tiny_task`. Phase 1 teaches the step-by-step answer (90 % of its
demonstrations think aloud, so the skill is there); phase 2 makes it rare (12 % think aloud), so
the sampled accuracy falls to about 0.2: a direct answer is a guess, right one time in ten.
Reinforcement then has something to find: thinking pays. An under-trained phase 1 leaves nothing
to reinforce and such a model never learns.

Held-out problems are not shown here either. All seeds are fixed; equal library versions and one
thread give equal bytes. Takes one to three minutes on one core.
May import: `outlast.assets.tiny_task`; torch, transformers, tokenizers inside functions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.assets import tiny_task

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")
VOCABULARY = (*SPECIAL_TOKENS, *"0123456789+=;>")
PAD_ID, EOS_ID, BOS_ID, UNK_ID = range(4)
IGNORED_LABEL = -100
MODEL_SEED = 20_260_101
MAX_NEW_TOKENS = 12


@dataclass(frozen=True)
class Phase:
    """One supervised phase: the share of demonstrations that think, and the optimiser's work."""

    thinking_share: float
    steps: int
    lr: float
    batch_size: int = 64
    warmup_steps: int = 50


PHASES = (
    Phase(thinking_share=0.90, steps=2_800, lr=4e-3),
    Phase(thinking_share=0.12, steps=340, lr=1e-3),
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the character tokenizer: one token per character, no token added on its own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def build_model() -> LlamaForCausalLM:
    """Return the untrained model: hidden 96, two layers, three heads, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(MODEL_SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=3,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
            bos_token_id=BOS_ID,
        )
    )


def demonstration(rng: random.Random, thinking_share: float) -> tuple[list[int], list[int]]:
    """Return (token ids, labels) of one training demonstration; prompt labels are ignored."""
    problem = tiny_task.item(rng.randrange(tiny_task.TRAIN_SIZE), seed=0)
    thinks = rng.random() < thinking_share
    response = tiny_task.thinking(problem.prompt) if thinks else f">{problem.answer}"
    prompt_ids = [VOCABULARY.index(char) for char in problem.prompt]
    response_ids = [*(VOCABULARY.index(char) for char in response), EOS_ID]
    return prompt_ids + response_ids, [IGNORED_LABEL] * len(prompt_ids) + response_ids


def train_phase(model: LlamaForCausalLM, phase: Phase, *, seed: int) -> None:
    """Train one phase in place: AdamW, linear warm-up, then a cosine down to zero."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=phase.warmup_steps),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, phase.steps - phase.warmup_steps),
        ],
        milestones=[phase.warmup_steps],
    )
    rng = random.Random(seed)
    for step in range(phase.steps):
        rows = [demonstration(rng, phase.thinking_share) for _ in range(phase.batch_size)]
        width = max(len(ids) for ids, _ in rows)
        input_ids = torch.tensor([ids + [PAD_ID] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([row + [IGNORED_LABEL] * (width - len(row)) for _, row in rows])
        # Padding stands on the right, behind every causal position that counts: no mask needed.
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % 200 == 0:
            print(f"  step {step + 1:5d}/{phase.steps}  loss {loss.item():.4f}", flush=True)


def sampled_accuracy(model: LlamaForCausalLM, *, samples: int = 1_000, seed: int = 0) -> float:
    """Return the share of held-out problems answered right, one sample each, temperature 1."""
    import torch

    problems = [tiny_task.item(index, seed, held_out=True) for index in range(samples)]
    prompts = torch.tensor([[VOCABULARY.index(c) for c in p.prompt] for p in problems])
    torch.manual_seed(seed)
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    responses = (response_text(row) for row in output[:, prompts.shape[1] :].tolist())
    pairs = zip(responses, problems, strict=True)
    return sum(tiny_task.reward(text, problem.answer) for text, problem in pairs) / samples


def response_text(token_ids: list[int]) -> str:
    """Return the characters of a response up to its end-of-sequence token."""
    end = token_ids.index(EOS_ID) if EOS_ID in token_ids else len(token_ids)
    return "".join(VOCABULARY[token] for token in token_ids[:end])


def make(out: Path) -> float:
    """Train, save model and tokenizer under `out`, and return the sampled accuracy."""
    import torch

    torch.set_num_threads(1)
    model = build_model()
    started_s = time.perf_counter()
    for number, phase in enumerate(PHASES, start=1):
        print(f"phase {number}: {phase}", flush=True)
        train_phase(model, phase, seed=MODEL_SEED + number)
        print(f"  sampled accuracy {sampled_accuracy(model):.3f}", flush=True)
    print(f"trained in {time.perf_counter() - started_s:.0f} s", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    save_tokenizer(out)
    return sampled_accuracy(model)


def save_tokenizer(out: Path) -> None:
    """Save the tokenizer under the class name that old and new transformers both load."""
    build_tokenizer().save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Parse the command line, make the model, print its sampled accuracy."""
    parser = argparse.ArgumentParser(prog="python -m outlast.assets.make_tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the new checkpoint")
    out: Path = parser.parse_args().out
    print(f"{out}: sampled accuracy {make(out):.3f}")


if __name__ == "__main__":
    main()
