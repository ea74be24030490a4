"""The figures of a benchmark as the rows of one table, beside the bars of DESIGN 16.

Pure: the document in, text out. May import: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Row = tuple[str, str, str, bool | None]
"""(what, figure, bar, whether the bar is met; None without a bar)."""
Part = Mapping[str, Any]
"""What one measurement found; a key per figure, or per case and figure."""


def table_rows(found: Mapping[str, Any]) -> list[Row]:
    """Rows of every part that the document holds, in the order of `PARTS`."""
    return [row for part, rows in PARTS.items() if part in found for row in rows(found[part])]


def _cut(cut: Part) -> list[Row]:
    p99, share = cut["hold_p99_ms"], cut["second_share"]
    return [
        (
            f"cut hold, {cut['groups']:,.0f} groups, {cut['rows']:,.0f} rows, "
            f"{cut['cuts']:.0f} cuts",
            f"p50 {cut['hold_p50_ms']:.2f} ms, p99 {p99:.2f} ms "
            f"(of CPU {cut['hold_cpu_p50_ms']:.2f} and {cut['hold_cpu_p99_ms']:.2f} ms), "
            f"max {cut['hold_max_ms']:.2f} ms",
            "p99 <= 5 ms",
            p99 <= 5,
        ),
        (
            "first snapshot: save + encode and publish",
            f"{cut['first_save_s']:.2f} s + {cut['first_commit_s']:.2f} s, "
            f"{cut['first_bytes'] / 1e6:,.0f} MB",
            "-",
            None,
        ),
        (
            f"snapshot 1 s later, {cut['second_new_rows']:,.0f} new rows",
            f"{cut['second_save_s']:.2f} s + {cut['second_commit_s']:.2f} s, "
            f"{cut['second_bytes_new'] / 1e6:,.1f} MB new",
            "-",
            None,
        ),
        ("its new bytes, relative to a full image", f"1/{1 / share:.1f}", "<= 1/6", share <= 1 / 6),
    ]


def _append(append: Part) -> list[Row]:
    rows_per_s, of_disk = append["rows_per_s"], append["share_of_disk"]
    return [
        (
            f"durable append, 64-row batches of {append['row_bytes'] / 1e3:.0f} kB rows",
            f"{rows_per_s:,.0f} rows/s, {append['append_mb_per_s']:,.0f} MB/s, "
            f"{of_disk:.2f} of the disk's {append['disk_mb_per_s']:,.0f} MB/s",
            ">= 45,000 rows/s or 0.5",
            rows_per_s >= 45_000 or of_disk >= 0.5,
        ),
        (
            "verified load, page cache warm",
            f"{append['load_mb_per_s']:,.0f} MB/s, "
            f"{append['load_mb_per_cpu_s']:,.0f} MB per second of CPU",
            ">= 500 MB/s",
            append["load_mb_per_s"] >= 500,
        ),
    ]


def _torch(found: Part) -> list[Row]:
    return [
        (
            f"64 new rows beside {int(count):,}: snapshot against torch.save of all",
            f"{1e3 * figures['snapshot_s']:.1f} ms against "
            f"{1e3 * figures['torch_save_s']:.1f} ms: 1/{1 / figures['ratio']:.1f}",
            "-",
            None,
        )
        for count, figures in found.items()
    ]


def _transfer_queue(found: Part) -> list[Row]:
    if "not_measured" in found:
        return [("against TransferQueue", f"NOT MEASURED: {found['not_measured']}", "-", None)]
    rows: list[Row] = []
    for count, f in found.items():
        what = f"64 new rows beside {int(count):,}, against TransferQueue's checkpoint"
        ratio, barred = f["hold_ratio"], count == "4096"
        rows += [
            (
                f"{what}: hold",
                f"{f['hold_ms']:.2f} ms against {f['their_stall_ms']:,.0f} ms: 1/{1 / ratio:,.0f}",
                "<= 1/50" if barred else "-",
                ratio <= 1 / 50 if barred else None,
            ),
            (
                "  longest wait of a put during the save",
                f"{f['stall_ms']:.1f} ms against {f['their_stall_ms']:,.0f} ms: "
                f"1/{1 / f['stall_ratio']:.1f}",
                "-",
                None,
            ),
            (
                "  total, bytes written",
                f"{1e3 * f['total_s']:.0f} ms against {1e3 * f['their_total_s']:,.0f} ms: "
                f"1/{1 / f['total_ratio']:.1f}; {f['bytes'] / 1e6:.1f} MB against "
                f"{f['their_bytes'] / 1e6:,.1f} MB: 1/{1 / f['bytes_ratio']:.1f}",
                "-",
                None,
            ),
        ]
    return rows


def _throughput(found: Part) -> list[Row]:
    (off, base), *others = found.items()
    rows: list[Row] = [
        (
            f"training with snapshots off ({off}), {base['steps']:.0f} steps, "
            f"{base['rounds']:.0f} rounds",
            f"{base['tokens_per_s']:,.0f} trained tokens/s "
            f"({base['tokens_per_s_min']:,.0f} to {base['tokens_per_s_max']:,.0f}), "
            f"{base['steps_per_s']:.2f} steps/s",
            "-",
            None,
        )
    ]
    for interval, f in others:
        lost = 1 - f["ratio"]
        rows.append(
            (
                f"throughput with a snapshot every {interval} s ({f['snapshots']:.0f} of them)",
                f"{100 * -lost:+.1f} % (rounds {100 * (f['ratio_min'] - 1):+.1f} to "
                f"{100 * (f['ratio_max'] - 1):+.1f} %), CPU {100 * (f['cpu_ratio'] - 1):+.1f} %",
                ">= -1 %" if interval == "10" else "-",
                lost <= 0.01 if interval == "10" else None,
            )
        )
    return rows


def _many(f: Part) -> list[Row]:
    return [
        (
            f"{f['snapshots']:.0f} snapshots, one every {f['interval_s']:g} s: "
            "new bytes each, first and last quarter",
            f"{f['bytes_first_quarter'] / 1e3:,.0f} kB, {f['bytes_last_quarter'] / 1e3:,.0f} kB: "
            f"x {f['bytes_growth']:.2f}",
            "-",
            None,
        ),
        (
            f"  largest size of saved state, first and second half (keep {f['keep_latest_k']})",
            f"{f['state_bytes_max_first_half'] / 1e6:.1f} MB, "
            f"{f['state_bytes_max_second_half'] / 1e6:.1f} MB; with logs "
            f"{f['all_bytes_max'] / 1e6:.1f} MB; at most {f['live_max']} snapshots",
            f"<= {f['keep_latest_k'] + 1} snapshots",
            f["live_max"] <= f["keep_latest_k"] + 1,
        ),
        (
            "  throughput against the same steps without",
            f"{100 * (f['ratio'] - 1):+.1f} % over {f['steps']} steps, {f['seconds']:.0f} s",
            "-",
            None,
        ),
    ]


def _goodput(found: Part) -> list[Row]:
    full = found.get("undisturbed")
    rows: list[Row] = []
    for name, f in found.items():
        share = ""
        if full is not None and f is not full:
            of_full = f["goodput_tokens_per_s"] / full["goodput_tokens_per_s"]
            share = f", {100 * of_full:.0f} % of undisturbed"
        rows.append(
            (
                f"goodput, {name}: {f['steps']} steps, {f['kills']} kills",
                f"{f['goodput_tokens_per_s']:,.0f} tokens/s{share}; generated again "
                f"{f['regenerated_tokens']:,} tokens; {f['wall_s']:.0f} s, of them "
                f"{f['restart_s']:.0f} s starts",
                "-",
                None,
            )
        )
    return rows


PARTS: Final[Mapping[str, Callable[[Part], list[Row]]]] = {
    "cut": _cut,
    "append": _append,
    "torch": _torch,
    "transfer_queue": _transfer_queue,
    "throughput": _throughput,
    "many": _many,
    "goodput": _goodput,
}
"""Name of a part -> its rows."""
