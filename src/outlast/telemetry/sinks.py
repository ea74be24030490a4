"""Sinks that keep the event stream: JSON lines for tools, TensorBoard for eyes.

Observation never changes semantics: a sink only appends to memory on the event loop, a thread of
its own does the writing, and neither file is ever fsynced or read back by the run.
May import: `telemetry`, tensorboard (an extra, imported when its sink is made; no torch).
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

from outlast.errors import RecipeError
from outlast.telemetry.events import AnyEvent
from outlast.telemetry.metrics import Histogram, MetricsView, Point, Sample

logger = logging.getLogger("outlast.telemetry")

DIRECTORY = "telemetry"
FLUSH_S = 1.0
QUEUED_MAX = 100_000
"""TensorBoard's own queue blocks when full; events between two of its writes never come near."""


def telemetry_file(run_dir: Path, incarnation: int) -> Path:
    """Where the events of one incarnation are kept."""
    return run_dir / DIRECTORY / f"inc_{incarnation:06d}.jsonl"


def encode_line(event: AnyEvent, wall: float) -> bytes:
    """``{"wall":1700000000.5,"event":"StepFinished",...}`` and a newline."""
    stamp = msgspec.json.encode(round(wall, 6))
    return b'{"wall":' + stamp + b"," + msgspec.json.encode(event)[1:] + b"\n"


class JsonlSink:
    """Appends one JSON object per event; on disk within a second, and at `close`."""

    def __init__(self, path: Path, *, flush_s: float = FLUSH_S) -> None:
        """Create the file. Raises OSError when it cannot be made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lost = 0
        """Lines that could not be written (a full disk); the run went on."""
        self._file = path.open("ab", buffering=0)
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._flush_s = flush_s
        self._thread = threading.Thread(target=self._run, name="outlast-telemetry", daemon=True)
        self._thread.start()

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        line = encode_line(event, wall)
        with self._lock:
            self._lines.append(line)

    def close(self) -> None:
        """Write what is left and end the thread. Idempotent."""
        self._closing.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while not self._closing.wait(self._flush_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        if not lines:
            return
        # A write that failed half-way left half a line: end it, so that it spoils no other.
        data = (b"\n" if self.lost else b"") + b"".join(lines)
        try:
            self._write(data)
        except OSError as error:
            if not self.lost:
                logger.warning("telemetry lines are lost: %s: %s", self.path, error)
            self.lost += len(lines)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


class TensorBoardSink:
    """Writes the metrics view below a directory that `tensorboard --logdir` reads."""

    def __init__(self, directory: Path) -> None:
        """Raises RecipeError when tensorboard is not installed."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise RecipeError(
                "telemetry.tensorboard: found true, but tensorboard is not installed. "
                "Run `pip install 'outlast[tensorboard]'`, or set telemetry.tensorboard=false"
            ) from error
        self._event, self._summary = event_pb2.Event, summary_pb2
        self._writer = EventFileWriter(str(directory), max_queue_size=QUEUED_MAX, flush_secs=5)
        self._view = MetricsView()

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        by_step: dict[int, list[Sample]] = {}
        for sample in self._view(event):
            by_step.setdefault(sample.step, []).append(sample)
        for step, samples in by_step.items():
            values = [self._value(sample) for sample in samples]
            summary = self._summary.Summary(value=values)
            self._writer.add_event(self._event(wall_time=wall, step=step, summary=summary))

    def close(self) -> None:
        """Write what is left. Idempotent."""
        self._writer.close()

    def _value(self, sample: Sample) -> object:
        if isinstance(sample, Point):
            return self._summary.Summary.Value(tag=sample.name, simple_value=sample.value)
        return self._summary.Summary.Value(tag=sample.name, histo=self._histogram(sample))

    def _histogram(self, sample: Histogram) -> object:
        low, high = min(sample.values), max(sample.values)
        steps = range(low, high + 1)
        return self._summary.HistogramProto(
            min=low,
            max=high,
            num=len(sample.values),
            sum=sum(sample.values),
            sum_squares=sum(value * value for value in sample.values),
            bucket_limit=[step + 0.5 for step in steps],
            bucket=[sample.values.count(step) for step in steps],
        )
