"""What `make bench` has found: ratios first, as a table, a page, a picture and JSON."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from circumstances import circumstances, described

DOCS = Path(__file__).resolve().parent.parent / "docs"
NAMES = {
    "socket": "socket that discards",
    "pika": "pika callback that counts",
    "tutorial": "tutorial's receiver, lines to a file, no acks",
    "pika_to_parquet": "pika script, Parquet with pyarrow",
    "naive": "naive Spark source, Parquet",
    "receiver": "**this receiver**, synced and acked",
    "parquet": "**this source**, Parquet",
    "noop": "**this source**, noop",
    "console": "**this source**, `logs.parse`, lines to a file",
    "arrow_to_parquet": "Spark alone: Arrow files to Parquet",
}
Rounds = list[dict[str, float]]


def show(found: dict[str, Any]) -> None:
    for line in (*_bars(found), "", *_sides(found["full_load"]["200"])):
        print(line.replace("**", ""))


def write(found: dict[str, Any], rabbitmq: str) -> None:
    content = {**circumstances(rabbitmq), **found}
    (DOCS / "benchmarks.json").write_text(json.dumps(content, indent=1) + "\n")
    _fill(DOCS / "benchmarks.md", found, described(rabbitmq))
    _draw(found)
    print(f"{DOCS / 'benchmarks.md'}, .json and .png are written")


def _fill(page: Path, found: dict[str, Any], where: str) -> None:
    """Put the figures between their marks; what is written around them stays."""
    loads, text = found["full_load"], page.read_text()
    parts = {
        "where": [f"{where}; {found['minutes']:.0f} minutes."],
        "bars": _bars(found),
        "sides of 200": _sides(loads["200"]),
        "sides of 2000": _sides(loads["2000"]),
        "sides of 20": _sides(loads["20"]),
        "backlogs": _backlogs(found["backlogs"]),
        "subscribers": _subscribers(found["subscribers"]),
        "latencies": _latencies(found["latency"]),
    }
    for name, lines in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = "\n".join([before + begin, "", *lines, "", end + after])
    page.write_text(text)


# ── figures ─────────────────────────────────────────────────────────────────────────────────────


def _cpu_us(of: dict[str, float]) -> float:
    return of["cpu_seconds"] / of["messages"] * 1e6


def _rate(of: dict[str, float]) -> float:
    return of["messages"] / of["seconds"]


def _median(rounds: Rounds, figure: Any) -> float:
    return statistics.median(map(figure, rounds))


def _ratio(figure: Any, of: Rounds, to: Rounds) -> float:
    """Of each round, and then the median: a machine is faster in one minute than in the next."""
    return statistics.median(figure(a) / figure(b) for a, b in zip(of, to, strict=True))


def _times_one(several: dict[str, Any], count: str) -> float:
    """The CPU of so many subscribers over that of one; each has as many messages."""

    def cpu_seconds(of: str) -> float:
        return _median(several[of]["rounds"], lambda each: each["cpu_seconds"])

    return cpu_seconds(count) / cpu_seconds(min(several, key=int))


def _against_bars(found: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """What is measured, what it came to, and which side of which bar it is to be on."""
    load = found["full_load"]["200"]
    largest = found["backlogs"][max(found["backlogs"], key=int)]
    several, latency = found["subscribers"], found["latency"]
    most = max(several, key=int)
    started = [s for each in several.values() for s in each["start_seconds"][1:]]
    trigger = latency["rate_micro_batch_trigger_ms"]
    return [
        ("receiver, CPU per message / pika callback's",
         _ratio(_cpu_us, load["receiver"], load["pika"]), "at most", 0.25),
        ("publish to Parquet, all columns, whole process tree / pika callback's",
         _ratio(_cpu_us, load["parquet"], load["pika"]), "at most", 1.0),
        (f"drain of {int(largest['socket'][0]['messages']):,} from a named queue to Parquet / "
         "rate of the discarding socket",
         _ratio(_rate, largest["parquet"], largest["socket"]), "at least", 0.9),
        ("publish to committed Parquet, 10 a second, p50 / trigger of `rate-micro-batch`",
         latency["publish_to_committed_ms"]["10"]["p50"] / trigger, "at most", 1.25),
        (f"{most} subscribers, CPU / that of one", _times_one(several, most), "at most", 8.5),
        ("from `start()` to subscribed, warm session, s (the slowest)",
         max(started, default=0.0), "at most", 2.0),
        ("idle query, cores", several[most]["idle_share"] / int(most), "at most", 0.02),
    ]  # fmt: skip


def _bars(found: dict[str, Any]) -> list[str]:
    lines = ["| | measured | bar | |", "|---|--:|--:|---|"]
    for what, value, side, bar in _against_bars(found):
        is_met = value <= bar if side == "at most" else value >= bar
        lines.append(f"| {what} | {value:.3g} | {side} {bar} | {'met' if is_met else 'not met'} |")
    return lines


def _sides(load: dict[str, Rounds]) -> list[str]:
    lines = [
        "| | CPU / pika's | rate / socket's | CPU, µs a message | messages a second | peak, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for kind, rounds in load.items():
        lines.append(
            f"| {NAMES[kind]} | {_ratio(_cpu_us, rounds, load['pika']):.2f} "
            f"| {_ratio(_rate, rounds, load['socket']):.2f} | {_median(rounds, _cpu_us):.1f} "
            f"| {_median(rounds, _rate):,.0f} "
            f"| {max(each['peak_mib'] for each in rounds):,.0f} |"
        )
    return lines


def _backlogs(backlogs: dict[str, dict[str, Rounds]]) -> list[str]:
    lines = [
        "| backlog | rate / socket's | CPU, µs a message | messages a second |",
        "|--:|--:|--:|--:|",
    ]
    for size, sides in backlogs.items():
        ours = sides["parquet"]
        lines.append(
            f"| {int(size):,} | {_ratio(_rate, ours, sides['socket']):.2f} "
            f"| {_median(ours, _cpu_us):.1f} | {_median(ours, _rate):,.0f} |"
        )
    return lines


def _subscribers(several: dict[str, Any]) -> list[str]:
    lines = [
        "| subscribers | CPU / that of one | CPU, µs a message and subscriber | idle, cores each "
        "| memory, MiB | start, s: first, slowest of the others |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for count, each in several.items():
        first, *others = each["start_seconds"]
        lines.append(
            f"| {count} | {_times_one(several, count):.2f} "
            f"| {_median(each['rounds'], _cpu_us):.1f} "
            f"| {each['idle_share'] / int(count):.4f} | {each['memory_mib']:,.0f} "
            f"| {first:.1f}, {max(others, default=float('nan')):.1f} |"
        )
    return lines


def _latencies(latency: dict[str, Any]) -> list[str]:
    trigger = latency["rate_micro_batch_trigger_ms"]
    lines = [
        "| messages a second | p50 / Spark's trigger | p50, ms | p95, ms | p99, ms |",
        "|--:|--:|--:|--:|--:|",
    ]
    for rate, found in latency["publish_to_committed_ms"].items():
        lines.append(
            f"| {int(rate):,} | {found['p50'] / trigger:.2f} | {found['p50']:,.0f} "
            f"| {found['p95']:,.0f} | {found['p99']:,.0f} |"
        )
    return [*lines, "", f"A trigger of `rate-micro-batch` took {trigger:.0f} ms."]


# ── picture ─────────────────────────────────────────────────────────────────────────────────────


def _draw(found: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(13, 8), layout="constrained")
    load = found["full_load"]["200"]
    kinds = list(load)[::-1]
    names = [NAMES[kind].replace("**", "").replace("`", "") for kind in kinds]
    colours = ["#c44e52" if "**" in NAMES[kind] else "#8c9aa8" for kind in kinds]
    cpu = [_ratio(_cpu_us, load[kind], load["pika"]) for kind in kinds]
    rate = [_ratio(_rate, load[kind], load["socket"]) for kind in kinds]
    for axis, values, title in (
        (axes[0][0], cpu, "CPU per message, whole process tree; bare pika callback = 1"),
        (axes[0][1], rate, "messages a second; discarding socket = 1"),
    ):
        bars_drawn = axis.barh(names, values, color=colours)
        axis.bar_label(bars_drawn, fmt="%.2f", padding=3, fontsize=8)
        axis.set_title(title, loc="left", fontsize=10)
        axis.axvline(1, color="0.5", linewidth=1)
        axis.tick_params(labelsize=8)
    several = found["subscribers"]
    counts = [int(count) for count in several]
    ratios = [_times_one(several, count) for count in several]
    axes[1][0].plot(counts, ratios, marker="o", color="#c44e52")
    axes[1][0].plot(counts, counts, color="0.6", linewidth=1, linestyle="--")
    axes[1][0].set_title("CPU by number of subscribers; one = 1", loc="left", fontsize=10)
    latency = found["latency"]["publish_to_committed_ms"]
    for at, colour in (("p50", "#c44e52"), ("p95", "#dd8452"), ("p99", "#8c9aa8")):
        values = [each[at] for each in latency.values()]
        axes[1][1].plot(list(latency), values, marker="o", label=at, color=colour)
    trigger = found["latency"]["rate_micro_batch_trigger_ms"]
    axes[1][1].axhline(trigger, color="0.5", linewidth=1, label="a trigger of rate-micro-batch")
    axes[1][1].set_ylim(bottom=0)
    axes[1][1].legend(fontsize=8)
    title = "publish to committed Parquet, ms, by messages a second"
    axes[1][1].set_title(title, loc="left", fontsize=10)
    figure.savefig(DOCS / "benchmarks.png", dpi=90)
