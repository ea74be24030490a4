"""The live display of `train`: a sink that shows the run, on a terminal or as plain lines.

The fold is fed on the event loop and drawn by rich's own refresh thread four times a second, under
one short lock; neither can hold the run up for longer than a line takes.
May import: `telemetry`, `cli`, rich.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from outlast.cli import format as fmt
from outlast.cli import report
from outlast.telemetry import events
from outlast.telemetry.events import AnyEvent, SkipReason
from outlast.telemetry.progress import Progress, StepView
from outlast.telemetry.sinks import encode_line

NOTES_MAX = 5
REFRESH_PER_S = 4
LABEL_WIDTH = 8
FIGURE_WIDTH = 12
SPARK_WIDTH = 40

Clock = Callable[[], float]


class Display(Protocol):
    """A telemetry sink with a beginning and an end."""

    def __call__(self, event: AnyEvent, wall: float, /) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


def open_display(*, as_json: bool = False, stream: TextIO | None = None) -> Display:
    """The display that fits where output goes: live on a terminal, lines elsewhere, or JSON."""
    out = sys.stdout if stream is None else stream
    if as_json:
        return JsonLines(out)
    console = Console(file=out)
    return LiveDisplay(console) if console.is_terminal else PlainLines(out)


class _Quiet:
    """A display that needs no opening and no closing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        return None


class Silent(_Quiet):
    """Shows nothing: `telemetry.console: false`."""

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        pass


_TOLD = (
    events.RunStarted
    | events.Restored
    | events.StepFinished
    | events.StepReplayed
    | events.CheckpointPublished
    | events.SnapshotPublished
    | events.SnapshotSkipped
    | events.IntervalChosen
    | events.ValidationFinished
    | events.Stalled
    | events.Warned
    | events.RunEnded
)


class JsonLines(_Quiet):
    """One JSON object per line and noteworthy event; the lines of the telemetry file."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        if isinstance(event, _TOLD):
            self._out.write(encode_line(event, wall).decode())
            self._out.flush()


class PlainLines(_Quiet):
    """One line per step, and what somebody should know: for pipes, CI and log files."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._progress = Progress()

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        self._progress(event, wall)
        line = self._line(event, wall)
        if line is not None:
            self._out.write(line + "\n")
            self._out.flush()

    def _line(self, event: AnyEvent, wall: float) -> str | None:
        match event:
            case events.RunStarted():
                return report.start_line(event)
            case events.Restored():
                return report.restore_report(event)
            case events.StepFinished():
                assert self._progress.last_step is not None
                return report.step_line(self._progress.last_step, self._progress, now=wall)
            case events.ValidationFinished() | events.StepReplayed() | events.IntervalChosen():
                return report.note(event)
            case events.SnapshotPublished() if event.final:
                return report.note(event)
            case events.RunEnded() if self._progress.started is not None:
                return report.end_line(self._progress, now=wall)
            case _:
                return report.trouble(event)


@dataclass(frozen=True, slots=True)
class _Note:
    """A line about something that happened."""

    wall: float
    text: str
    kind: type
    alarming: bool


class LiveDisplay:
    """A calm panel at the bottom of the terminal; reports and the end are printed above it."""

    def __init__(self, console: Console, *, clock: Clock = time.time) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress()
        self._notes: list[_Note] = []
        self._lock = threading.Lock()
        self._live = Live(
            self,
            console=console,
            refresh_per_second=REFRESH_PER_S,
            vertical_overflow="crop",
            redirect_stderr=sys.stderr.isatty(),  # else a log file would end up on the screen
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._live.stop()

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        with self._lock:
            self._progress(event, wall)
            text = report.note(event)
            if text is not None:
                self._note(_Note(wall, text, type(event), report.trouble(event) is not None))
        if isinstance(event, events.Restored):
            self._console.print(Text(report.restore_report(event) + "\n"), soft_wrap=True)

    def _note(self, note: _Note) -> None:
        """Keep the newest notes; of what happens all the time (saves) only the last one."""
        old = [n for n in self._notes if n.alarming or note.alarming or n.kind is not note.kind]
        self._notes = [*old, note][-NOTES_MAX:]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            yield Group(*self._body(options.max_width))

    # ---------------------------------------------------------------------------- the panel

    def _body(self, width: int) -> list[Table | Text]:
        progress, now = self._progress, self._clock()
        if progress.started is None:
            waiting = "" if progress.ended else "outlast  looking at what stands on disk"
            return [Text(waiting, style="dim")]
        if _loading(progress):
            return [_title(progress, width), Text(""), Text("loading", style="dim")]
        grid = Table.grid(padding=(0, 2), pad_edge=False)
        grid.add_column(min_width=LABEL_WIDTH, style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for label, cell in self._rows(progress, now=now, width=width):
            grid.add_row(label, cell)
        body: list[Table | Text] = [_title(progress, width), Text(""), grid]
        if self._notes:
            body += [Text(""), *(_note_line(note) for note in self._notes)]
        if progress.ended is not None:
            end = report.end_line(progress, now=progress.last_wall or now)
            body += [Text(""), Text(end, style="bold")]
        return body

    def _rows(
        self, progress: Progress, *, now: float, width: int
    ) -> list[tuple[str, Text | Table]]:
        rows: list[tuple[str, Text | Table]] = [("step", _step_cell(progress, width))]
        step, gauges = progress.last_step, progress.gauges
        if progress.rewards:
            rows.append(("reward", _reward_cell(progress, width)))
        if step is not None:
            rows.append(("pace", _pace_cell(step)))
        if gauges is not None:
            rows.append(("rollouts", _rollouts_cell(progress, gauges)))
        rows.append(("saved", _saved_cell(progress, now)))
        if gauges is not None and progress.ended is None:
            rows.append(("kill now", _cost_cell(gauges)))
        return rows


def _loading(progress: Progress) -> bool:
    """A later life that has not said yet where it goes on from."""
    later = progress.started is not None and progress.started.incarnation > 1
    return later and not progress.restored and not progress.gauges and not progress.last_step


def _title(progress: Progress, width: int) -> Text:
    started = progress.started
    title = Text("outlast", style="bold cyan")
    if started is not None:
        life = f"run {started.run} · incarnation {started.incarnation}"
        title.append(f"  {started.recipe}", style="default not bold")
        title.append(" " * max(2, width - title.cell_len - len(life)))
        title.append(life, style="dim not bold")
    title.truncate(width, overflow="ellipsis")
    title.no_wrap = True
    return title


def _step_cell(progress: Progress, width: int) -> Table:
    target = progress.started.steps_target if progress.started else 0
    done = min(progress.version, target) if target else progress.version
    cell = Table.grid(padding=(0, 2))
    bar = ProgressBar(
        total=max(1, target),
        completed=done,
        width=min(SPARK_WIDTH, max(10, width - 50)),
        complete_style="cyan",
        finished_style="green",
    )
    left = ""
    if progress.pace_s and target > done:
        left = f"{fmt.duration((target - done) * progress.pace_s)} left"
    cell.add_row(
        f"{progress.version} of {target}".ljust(FIGURE_WIDTH - 2), bar, Text(left, style="dim")
    )
    return cell


def _reward_cell(progress: Progress, width: int) -> Text:
    rewards = list(progress.rewards)
    cell = Text(f"{rewards[-1]:.3f}".ljust(FIGURE_WIDTH), style="bold")
    spark = fmt.sparkline(rewards, min(SPARK_WIDTH, max(10, width - 40)))
    cell.append(spark, style="green not bold")
    if progress.validations:
        last = progress.validations[-1]
        cell.append(f"  validation {last.reward:.3f} at {last.version}", style="dim not bold")
    return cell


def _pace_cell(step: StepView) -> Text:
    idle = step.wait_s / step.seconds if step.seconds > 0 else 0.0
    cell = Text(f"{fmt.count(step.tokens_per_s)} tokens/s")
    cell.append(
        f" · step {fmt.duration(step.seconds)}, trainer idle {idle:.0%}"
        f" · staleness {step.lag_mean:.1f}, at most {step.lag_max}",
        style="dim",
    )
    return cell


def _rollouts_cell(progress: Progress, gauges: events.Gauges) -> Text:
    cell = Text(f"{gauges.inflight_siblings} in flight")
    cell.append(f" for {fmt.plural(gauges.open_groups, 'group')}", style="dim")
    cell.append(f" · {gauges.buffered_groups} buffered · {gauges.claimed_groups} in training")
    dropped = sum(progress.dropped.values())
    if dropped:
        cell.append(f" · {dropped} dropped", style="dim")
    return cell


def _saved_cell(progress: Progress, now: float) -> Text:
    if progress.saved_wall is None:
        restored = progress.restored.snapshot if progress.restored else None
        stands = f"; {restored} stands" if restored else ""
        return Text(f"nothing yet in this life{stands}", style="dim")
    snapshot, checkpoint = progress.snapshot, progress.checkpoint
    newest = max(snapshot.sequence if snapshot else 0, checkpoint.sequence if checkpoint else 0)
    if checkpoint is not None and checkpoint.sequence == newest:
        name = f"step_{checkpoint.version}"
    else:
        assert snapshot is not None
        name = snapshot.id
    cell = Text(f"{fmt.duration(max(0.0, now - progress.saved_wall))} ago")
    cell.append(f" · {name}", style="dim")
    for reason, times in progress.skipped_since_save.items():
        if reason != SkipReason.NO_MUTATIONS:
            cell.append(f" · since then {times} skipped: {reason}", style="yellow")
    return cell


def _cost_cell(gauges: events.Gauges) -> Text:
    cell = Text("would cost ", style="dim")
    style = "yellow" if gauges.at_risk_tokens else "green"
    return cell.append(report.cost(gauges), style=f"bold {style}")


def _note_line(note: _Note) -> Text:
    stamp = time.strftime("%H:%M:%S", time.localtime(note.wall))
    line = Text(f"{stamp}  ", style="dim", no_wrap=True, overflow="ellipsis")
    return line.append(note.text.splitlines()[0], style="yellow" if note.alarming else "dim")
