"""The single-turn environment: the port's contract, its rewards, and the boundary around them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import outlast.assets
from outlast.adapters.environments import SingleTurnEnvironment, build_environment
from outlast.adapters.environments.rewards import last_number, load_reward
from outlast.adapters.prompts import build_prompts
from outlast.config.schema import DatasetSection, EnvironmentSection
from outlast.errors import DataFailure, InfrastructureFailure, RecipeError
from outlast.ports import PromptItem
from tests.contracts.environment_contract import (
    ScriptedGenerate,
    check_environment,
    receipt,
    request,
    run,
)

HERE = __name__
EOS = 1


class CharTokenizer:
    """One token per character; id 1 ends a response. Its chat template names the roles."""

    eos_token_id: int | None = EOS
    chat_template: str | None = "<{role}>{content}"

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(i) for i in token_ids if i != EOS)

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: Any) -> list[int]:
        assert how == {"tokenize": True, "add_generation_prompt": True, "return_dict": False}
        if conversation[-1]["role"] != "user":
            raise ValueError("the last message must be the user's")
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in conversation) + "<ai>")


def make(**fields: Any) -> SingleTurnEnvironment:
    return build_environment(EnvironmentSection(**fields), CharTokenizer())


def response(text: str) -> ScriptedGenerate:
    return ScriptedGenerate([*(ord(c) for c in text), EOS])


ITEM = PromptItem("3+5+2+7=", fields={"answer": "7"})


@pytest.mark.parametrize("reward", ["tiny", "last_number", f"{HERE}:user_reward"])
def test_contract(reward: str) -> None:
    ids = [*(ord(c) for c in "8;0;7>7"), EOS]
    check_environment(lambda: make(reward=reward), item=ITEM, ids=ids)


def test_contract_with_the_tokenizer_of_the_tiny_model() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(outlast.assets.__file__).parent / "tiny")
    item = build_prompts(DatasetSection()).item(0)
    ids = [*tokenizer.encode(f">{item.fields['answer']}"), tokenizer.eos_token_id]

    def environment() -> SingleTurnEnvironment:
        return build_environment(EnvironmentSection(), tokenizer)

    check_environment(environment, item=item, ids=ids)
    assert run(environment(), item, ScriptedGenerate(ids)).reward == 1.0
    assert run(environment(), item, ScriptedGenerate(ids[1:])).reward == 0.0


def test_template_and_stop_token() -> None:
    script = response(">7")
    rollout = run(make(template="{x} Q: {prompt}\nA: "), ITEM, script)
    assert "".join(map(chr, script.prompts[0])) == "{x} Q: 3+5+2+7=\nA: "
    assert script.sampling[0].stop_token_ids == (EOS,)
    assert rollout.reward == 1.0 and rollout.loss_mask.all() and not rollout.mask_sample


def test_chat_takes_messages_or_text_and_a_system_prompt() -> None:
    environment = make(chat=True, system_prompt="Add.", reward="last_number")
    script = response("it is 7")
    run(environment, ITEM, script)
    run(environment, PromptItem(None, ({"role": "user", "content": "Hi"},), {"answer": 7}), script)
    texts = ["".join(map(chr, ids)) for ids in script.prompts]
    assert texts == ["<system>Add.<user>3+5+2+7=<ai>", "<system>Add.<user>Hi<ai>"]


def test_unusable_prompts_are_data_failures() -> None:
    chat = PromptItem(None, ({"role": "assistant", "content": "Hi"},), {"answer": "7"})
    for environment, item, message in (
        (make(), chat, "environment.chat is false"),
        (make(chat=True), chat, "template refuses the messages .*ValueError: the last message"),
        (make(template="{prompt}"), PromptItem("", fields={}), "has no tokens"),
    ):
        script = response("7")
        with pytest.raises(DataFailure, match=message):
            run(environment, item, script)
        assert not script.prompts, "nothing is generated for an unusable prompt"


def test_shape_keeps_raw_rewards_and_drops_masked_samples() -> None:
    shaped = make().shape([receipt(0, 0.25), receipt(1, 1.0, mask_sample=True)])
    assert shaped == ((0.25, 1.0), (True, False))


# ------------------------------------------------------------------------------------ rewards


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#### 1,234", 1234),
        ("so x = -12.50.", -12.5),
        ("10-5", 5),
        ("lists 1,2,3", 3),
        ("1,000,000.5 dollars", 1000000.5),
        ("2024-01", 1),
        ("no digits", None),
    ],
)
def test_last_number(text: str, value: float | None) -> None:
    found = last_number(text)
    assert (None if found is None else float(found)) == value


def test_last_number_compares_values() -> None:
    environment = make(reward="last_number")
    item = PromptItem("q", fields={"answer": "#### 1,000"})
    assert run(environment, item, response("that is 1000.0")).reward == 1.0
    assert run(environment, item, response("that is 1001")).reward == 0.0
    assert run(environment, item, response("none")).reward == 0.0
    with pytest.raises(DataFailure, match="the answer 'x' contains no number"):
        run(environment, PromptItem("q", fields={"answer": "x"}), response("1"))


def test_reasoning_gym_scores_the_entry() -> None:
    section = DatasetSection(source="reasoning_gym", name="chain_sum", size=3)
    item = build_prompts(section).item(2)
    environment = make(reward="reasoning_gym")
    answer = item.fields["answer"]
    assert run(environment, item, response(f"<answer> {answer} </answer>.")).reward == 1.0
    assert run(environment, item, response(f"{answer}\n")).reward == 1.0
    assert run(environment, item, response("<answer>x</answer>")).reward < 1.0
    assert environment.identity["reward_digest"].startswith("0.")


def user_reward(response: str, fields: Mapping[str, object]) -> float:
    return float(len(response))


async def async_reward(response: str, fields: Mapping[str, object]) -> float:
    await asyncio.sleep(0)
    return 2.5


def thread_reward(response: str, fields: Mapping[str, object]) -> float:
    return float(threading.current_thread() is not threading.main_thread())


def raises(response: str, fields: Mapping[str, object]) -> float:
    raise KeyError("oops")


def exits(response: str, fields: Mapping[str, object]) -> float:
    sys.exit(3)


def stops(response: str, fields: Mapping[str, object]) -> float:
    return next(iter(()))


def nan(response: str, fields: Mapping[str, object]) -> float:
    return math.nan


def text(response: str, fields: Mapping[str, object]) -> Any:
    return "a lot"


def nothing(response: str, fields: Mapping[str, object]) -> Any:
    return None


def sleeps(response: str, fields: Mapping[str, object]) -> float:
    time.sleep(0.5)
    return 1.0


async def async_sleeps(response: str, fields: Mapping[str, object]) -> float:
    await asyncio.sleep(60)
    return 1.0


async def async_raises(response: str, fields: Mapping[str, object]) -> float:
    raise OSError("judge unreachable")


async def cancels_itself(response: str, fields: Mapping[str, object]) -> float:
    raise asyncio.CancelledError


def infrastructure(response: str, fields: Mapping[str, object]) -> float:
    raise InfrastructureFailure("judge is down")


@pytest.mark.parametrize(
    ("function", "value"), [("user_reward", 2.0), ("async_reward", 2.5), ("thread_reward", 1.0)]
)
def test_user_rewards(function: str, value: float) -> None:
    assert run(make(reward=f"{HERE}:{function}"), ITEM, response("ab")).reward == value


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "failed: KeyError: 'oops'"),
        ("exits", "failed: SystemExit: 3"),
        ("stops", "failed: "),
        ("nan", "returned nan; a finite number is required"),
        ("text", "failed: ValueError: could not convert"),
        ("nothing", "failed: TypeError"),
        ("sleeps", r"took longer than environment\.reward_timeout_s \(0\.05 s\)"),
        ("async_sleeps", r"took longer than environment\.reward_timeout_s \(0\.05 s\)"),
        ("async_raises", "failed: OSError: judge unreachable"),
        ("cancels_itself", "cancelled itself"),
    ],
)
def test_whatever_a_user_reward_does_wrong_is_a_data_failure(function: str, message: str) -> None:
    environment = make(reward=f"{HERE}:{function}", reward_timeout_s=0.05)
    with pytest.raises(DataFailure, match=rf"{function} on prompt '3\+5\+2\+7=' {message}"):
        run(environment, ITEM, response("7"))


def test_a_reward_may_say_that_infrastructure_failed() -> None:
    with pytest.raises(InfrastructureFailure, match="judge is down"):
        run(make(reward=f"{HERE}:infrastructure"), ITEM, response("7"))


def test_cancellation_passes_through_a_reward() -> None:
    async def play() -> None:
        environment = make(reward=f"{HERE}:async_sleeps")
        script = response("7")
        task = asyncio.ensure_future(environment.rollout(request(ITEM, script)))
        await script.ended.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())


def test_blocking_rewards_do_not_block_the_loop() -> None:
    async def play() -> float:
        environment = make(reward=f"{HERE}:sleeps")
        began = time.monotonic()
        rollouts = [environment.rollout(request(ITEM, response("7"))) for _ in range(8)]
        await asyncio.gather(*rollouts)
        return time.monotonic() - began

    assert asyncio.run(play()) < 8 * 0.5 / 2


# ----------------------------------------------------------------------------------- identity


def test_identity_covers_what_rollouts_mean() -> None:
    base = make()
    changed = [
        make(template="Q {prompt}"),
        make(chat=True),
        make(chat=True, system_prompt="Add."),
        make(reward="last_number"),
        make(reward=f"{HERE}:user_reward"),
    ]
    identities = {tuple(sorted(e.identity.items())) for e in [base, *changed]}
    assert len(identities) == 6
    assert base.identity == make(reward_timeout_s=1.0).identity, "a deadline changes no rollout"


def test_the_digest_of_a_user_reward_follows_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def score(response, fields):\n    return 1.0\n"
    (tmp_path / "my_reward_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    digest = load_reward("my_reward_module:score").digest
    assert digest == hashlib.sha256(source.encode()).hexdigest()
    assert (
        load_reward("math:floor").digest == "unknown" or len(load_reward("math:floor").digest) == 64
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": "unknown"}, "'unknown'; tiny, last_number, reasoning_gym or module:function"),
        ({"reward": "no.such:thing"}, "cannot be loaded: ModuleNotFoundError"),
        ({"reward": f"{HERE}:absent"}, "cannot be loaded: AttributeError"),
        ({"reward": f"{HERE}:HERE"}, "is a str; a function"),
        ({"template": "no placeholder"}, r"must contain \{prompt\}"),
        ({"system_prompt": "x"}, r"system_prompt needs environment\.chat: true"),
    ],
)
def test_mistakes_are_recipe_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make(**fields)


def test_chat_without_a_template_is_refused() -> None:
    tokenizer = CharTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RecipeError, match="the tokenizer has no chat template"):
        build_environment(EnvironmentSection(chat=True), tokenizer)
