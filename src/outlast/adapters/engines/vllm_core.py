"""vLLM's AsyncLLM as the engine uses it: one output loop, weights swapped while it stands still.

| loop | consumes             | produces          | waits for       | unblocked by            |
|------|----------------------|-------------------|-----------------|-------------------------|
| pump | vLLM's step outputs  | tokens in streams | the next output | vLLM's core (a process) |

The outputs of vLLM's core are read here and not through `AsyncLLM.generate`, which joins what a
slow reader left unread and so loses which step, hence which weights, decoded a token: a step's
output names its weight version. May import: torch, vllm (deferred), the vllm modules beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from outlast.adapters.engines.vllm_owner import Owner
from outlast.adapters.engines.vllm_settings import (
    check_names,
    child_environment,
    engine_arguments,
    prepare_environment,
)
from outlast.adapters.engines.vllm_stream import Finish, Stream
from outlast.adapters.engines.vllm_weights import SharedState, shared
from outlast.config.schema import GenerationSection
from outlast.errors import InfrastructureFailure, OutlastError, RecipeError
from outlast.model.ids import WeightVersion
from outlast.ports import SamplingParams
from outlast.rows import Int32

R = TypeVar("R")

CLOSE_S = 5.0
"""vLLM's processes get so long to end by themselves; then they are killed."""
TASKS = ("generate",)
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}


def launch(directory: Path, generation: GenerationSection, *, device: str) -> Any:
    """Start vLLM and load the model of `directory`: an AsyncLLM. Blocking, seconds to minutes.

    Call it outside the event loop. Raises RecipeError or InfrastructureFailure.
    """
    prepare_environment(device=device)
    arguments = engine_arguments(directory, generation, device=device)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.engine.async_llm import AsyncLLM

    if "weight_version" not in EngineCoreOutputs.__struct_fields__:
        raise RecipeError(
            "generation.engine: this vLLM does not name the weight version of its outputs; "
            "required: vllm >= 0.32"
        )
    known = frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs))
    check_names(arguments, known)
    try:
        with child_environment(threads=generation.threads, device=device):
            config = AsyncEngineArgs(**arguments).create_engine_config()
            config.outlast_owner = Owner.this()  # pickled along: each process then watches us
            return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except OutlastError:
        raise
    except Exception as error:  # boundary: vllm-start
        raise InfrastructureFailure(
            f"vLLM did not start with the model of {directory}: {error}; its log above names the "
            "cause (often a context that needs more memory: generation.vllm.max_model_len)"
        ) from error


class VllmCore:
    """A running AsyncLLM. Every method is called on one event loop."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._streams: dict[str, Stream] = {}
        self._numbers = itertools.count()
        self._versions: dict[str, int] = {}
        self._epoch = 0
        self._swap = asyncio.Lock()
        self._dead: asyncio.Future[InfrastructureFailure] = asyncio.Future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pumping = self._spawn(self._pump())

    @property
    def failure(self) -> InfrastructureFailure | None:
        """Why this engine will never answer again; None while it lives."""
        return self._dead.result() if self._dead.done() else None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence it holds."""
        return int(self._llm.vllm_config.model_config.max_model_len)

    # -------------------------------------------------------------------------------- requests

    async def add(
        self,
        stream: Stream,
        context: Int32,
        *,
        prefix: int,
        budget: int,
        sampling: SamplingParams,
        seed: int,
    ) -> None:
        """Queue a request for up to `budget` tokens after `context`; they come into `stream`."""
        from vllm.sampling_params import RequestOutputKind
        from vllm.sampling_params import SamplingParams as VllmSampling

        params = VllmSampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=budget,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # the request's own stop ids say where to end
            logprobs=0,  # of the sampled token
            detokenize=False,
            seed=stream_seed(seed, prefix) if sampling.temperature else None,
            output_kind=RequestOutputKind.DELTA,
        )
        async with self._swap:  # not between two versions: the salt names one of them
            await self._send(stream, context, params=params)

    async def _send(self, stream: Stream, context: Int32, *, params: Any) -> None:
        from vllm.inputs import tokens_input

        # Blocks cached under other weights must not serve this request: vLLM's reset of its prefix
        # cache does nothing while requests run, a salt of its own per version always works.
        prompt = tokens_input(context.tolist(), cache_salt=f"weights-{self._epoch}")
        request = self._llm.input_processor.process_inputs(
            str(next(self._numbers)), prompt, params, supported_tasks=TASKS
        )
        self._llm.input_processor.assign_request_id(request)
        stream.name = str(request.request_id)
        self._streams[stream.name] = stream
        try:
            await self._call(lambda: self._llm.engine_core.add_request_async(request))
        except BaseException:
            self.drop(stream)
            raise

    def drop(self, stream: Stream) -> None:
        """Let vLLM stop decoding for `stream`. Does nothing for one that has ended there."""
        if self._streams.pop(stream.name, None) is not None and self.failure is None:
            self._spawn(self._abort(stream.name))

    async def _abort(self, name: str) -> None:
        try:
            await self._llm.engine_core.abort_requests_async([name])
        except Exception as error:  # boundary: vllm-abort
            self._die(error)

    # --------------------------------------------------------------------------------- weights

    async def swap(self, state: Mapping[str, Tensor], version: WeightVersion) -> None:
        """Load `state` between two steps. What is decoded from now on carries `version`.

        Not interrupted when its caller is: a half-loaded model would serve nobody.
        """
        await asyncio.shield(self._spawn(self._swap_locked(state, version)))

    async def _swap_locked(self, state: Mapping[str, Tensor], version: WeightVersion) -> None:
        with contextlib.ExitStack() as stack:
            try:
                source = await asyncio.to_thread(stack.enter_context, shared(state))
            except OSError as error:
                raise InfrastructureFailure(
                    f"weights {version}: no copy in memory: {error}"
                ) from error
            async with self._swap:
                try:
                    await self._exchange(source, version)
                except InfrastructureFailure as failure:
                    self._die(failure)  # paused, or half its weights are the old ones
                    raise

    async def _exchange(self, source: SharedState, version: WeightVersion) -> None:
        core, epoch = self._llm.engine_core, self._epoch + 1
        label = f"{epoch}:{version.incarnation}:{version.version}"
        await self._call(lambda: core.pause_scheduler_async(mode="keep", clear_cache=False))
        load = (source.path, source.index)
        await self._call(lambda: core.collective_rpc_async("outlast_load", None, load, None))
        await self._call(lambda: core.set_weight_version_async(label))
        self._versions[label] = int(version.version)
        self._epoch = epoch
        await self._call(core.reset_prefix_cache_async)  # frees memory where nothing runs
        await self._call(core.resume_scheduler_async)

    # ------------------------------------------------------------------------- life and outputs

    async def close(self) -> None:
        """End vLLM's processes within bounds; open streams fail. Idempotent."""
        self._die(InfrastructureFailure("the vLLM engine was closed"))
        self._pumping.cancel()
        await asyncio.to_thread(self._llm.shutdown, CLOSE_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, work: Callable[[], Awaitable[R]]) -> R:
        """What vLLM answers, or InfrastructureFailure: its core's death leaves calls unanswered."""
        if self.failure is not None:
            raise self.failure
        answer = asyncio.ensure_future(work())
        waiting: set[asyncio.Future[Any]] = {answer, self._dead}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._dead.result()
            return answer.result()
        except InfrastructureFailure:
            raise
        except Exception as error:  # boundary: vllm-call
            raise InfrastructureFailure(f"vLLM refused a call: {error!r}") from error
        finally:
            answer.cancel()

    async def _pump(self) -> None:
        try:
            while True:
                self._deliver(await self._llm.engine_core.get_output_async())
        except Exception as error:  # boundary: vllm-pump
            self._die(error)

    def _deliver(self, outputs: Any) -> None:
        version = self._versions.get(outputs.weight_version)
        for output in outputs.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # dropped meanwhile
                continue
            if output.new_token_ids:
                if version is None:
                    raise RuntimeError(f"tokens of unknown weights {outputs.weight_version!r}")
                values = np.minimum(output.new_logprobs.logprobs[:, 0], 0.0)
                stream.add(output.new_token_ids, values.tolist(), version=version)
            if output.finish_reason is not None:
                del self._streams[output.request_id]
                self._end(stream, str(output.finish_reason))

    def _end(self, stream: Stream, reason: str) -> None:
        if reason in FINISHES:
            stream.finish(FINISHES[reason])
        else:
            stream.fail(InfrastructureFailure(f"vLLM ended request {stream.request_id}: {reason}"))

    def _die(self, cause: Exception) -> None:
        if self._dead.done():
            return
        failure = cause
        if not isinstance(failure, InfrastructureFailure):
            failure = InfrastructureFailure(f"the vLLM engine died: {cause!r}")
            failure.__cause__ = cause
        self._dead.set_result(failure)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(failure)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def stream_seed(seed: int, prefix: int) -> int:
    """vLLM's 63-bit seed for a response that continues after `prefix` tokens (blake2b).

    Its random stream runs from where a request begins, so a continued one needs another stream:
    with the same seed, token `prefix` would be drawn with the numbers of token 0 again.
    """
    digest = hashlib.blake2b(f"{seed}:{prefix}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
