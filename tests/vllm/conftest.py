"""Everything here needs vLLM, which has an environment of its own: `make vllm`."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; run `make vllm`")
