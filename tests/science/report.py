"""Tables and plots of the study: report.py RESULTS_DIR, which holds rows/ and maps/ and gets tables.md and plots/.

Definitions. Accuracy: correct of all samples, Wilson interval 95 %. Memory: pages in use, mean over a sample's decode steps,
averaged over samples. Paired tests are on the same problems: exact McNemar where every problem was run once; where it was
run several times, a sign-flip permutation test on each problem's difference in accuracy (20,000 flips, seeded), since
repeats of one problem are not independent. Holm's step-down correction inside each table.
"""
import csv
import gzip
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "kvfleet", "font.size": 9, "figure.autolayout": True})
import matplotlib.pyplot as plt  # noqa: E402

FLIPS = 20000


class Cell:
    """The samples of one policy, budget and interval in one setting."""

    def __init__(self):
        self.correct, self.finish = {}, defaultdict(int)
        self.tokens, self.mean_bytes, self.peak_bytes, self.compactions = [], [], [], []

    def add(self, row):
        self.correct[row["problem"], int(row["repeat"])] = row["verdict"] == "correct"
        self.finish[row["finish"]] += 1
        self.tokens.append(int(row["tokens"]))
        self.mean_bytes.append(int(row["kv_mean_bytes"]))
        self.peak_bytes.append(int(row["kv_peak_bytes"]))
        self.compactions.append(int(row["compactions"]))

    n = property(lambda self: len(self.correct))
    right = property(lambda self: sum(self.correct.values()))
    accuracy = property(lambda self: self.right / self.n)
    kib = property(lambda self: float(np.mean(self.mean_bytes)) / 1024)
    peak_kib = property(lambda self: float(np.mean(self.peak_bytes)) / 1024)

    def wilson(self, z=1.959963984540054):
        p, n = self.accuracy, self.n
        middle, root = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - root) / (1 + z * z / n)), min(1.0, (middle + root) / (1 + z * z / n))


def read(rows):
    """{setting: {(policy, budget, interval): Cell}}; units of one setting (narrow, narrow-knobs, ...) share its cells."""
    settings = defaultdict(lambda: defaultdict(Cell))
    for path in sorted(rows.rglob("*.csv.gz")):
        setting = path.parent.relative_to(rows).as_posix()
        setting = setting.removesuffix("-knobs").removesuffix("-interval")
        with gzip.open(path, "rt", newline="") as lines:
            for row in csv.DictReader(lines):
                key = row["policy"], int(row["budget"] or 0), int(row["interval"] or 0)
                settings[setting][key].add(row)
    return settings


def mcnemar(gained, lost):
    n, low = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(low + 1)) / 2**n)


def compare(a, b):
    """a against b on the samples that both have: (difference in points, gained, lost, p)."""
    keys = sorted(a.correct.keys() & b.correct.keys())
    difference = np.array([int(a.correct[k]) - int(b.correct[k]) for k in keys])
    gained, lost = int((difference > 0).sum()), int((difference < 0).sum())
    if len({repeat for _, repeat in keys}) == 1:
        p = mcnemar(gained, lost)
    else:
        problems = sorted({problem for problem, _ in keys})
        index = {problem: i for i, problem in enumerate(problems)}
        total = np.zeros(len(problems))
        np.add.at(total, [index[problem] for problem, _ in keys], difference)
        signs = np.random.default_rng(1).integers(0, 2, (FLIPS, len(problems))) * 2 - 1
        # the observed assignment counts as one of the flips, so that p is never 0
        p = (1 + int((np.abs(signs @ total) >= abs(total.sum()) - 1e-9).sum())) / (FLIPS + 1)
    return 100 * difference.mean(), gained, lost, p


def holm(p):
    adjusted, running = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = running
    return adjusted


def show_p(p):
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def accuracy_table(cells):
    rows = []
    for policy, budget, interval in sorted(cells, key=lambda k: (k[0] != "full", k[0], k[1], k[2])):
        c = cells[policy, budget, interval]
        low, high = c.wilson()
        rows.append([f"`{policy}`", budget or "-", interval or "-", c.n, f"{100 * c.accuracy:.1f}", f"{100 * low:.1f}-{100 * high:.1f}",
                     f"{c.kib:.0f}", f"{c.peak_kib:.0f}", f"{np.mean(c.tokens):.0f}", c.finish["length"], f"{np.mean(c.compactions):.1f}"])
    return table(["policy", "budget", "interval", "samples", "accuracy %", "95 %", "KV mean KiB", "KV peak KiB", "tokens", "truncated",
                  "compactions"], rows)


def paired_table(cells, pairs):
    """pairs: (key a, key b); those that are not both measured are left out."""
    pairs = [(a, b) for a, b in pairs if a in cells and b in cells]
    found = [compare(cells[a], cells[b]) for a, b in pairs]
    rows = []
    for (a, b), (points, gained, lost, p), corrected in zip(pairs, found, holm([f[3] for f in found])):
        same = "same" if b[1:] == a[1:] or not b[1] else f"{b[1]}/{b[2]}"
        rows.append([f"`{a[0]}`", f"{a[1]}/{a[2]}", f"`{b[0]}`", same, f"{100 * cells[a].accuracy:.1f}", f"{points:+.1f}", gained, lost,
                     show_p(p), ("**" if corrected < 0.05 else "") + show_p(corrected) + ("**" if corrected < 0.05 else ""),
                     f"{cells[a].kib / cells[b].kib:.3f}"])
    return table(["policy", "b/interval", "against", "at", "accuracy %", "points", "gained", "lost", "p", "p, Holm", "KV mean ratio"],
                 rows) if rows else "not measured\n"


def questions(cells):
    budgets = sorted({key[1] for key in cells if key[0] == "rkv" and key[2] == 32})
    policies = sorted({key[0] for key in cells})

    def each(*names):
        return [((a, b, 32), (base, b, 32)) for a, base in names for b in budgets]

    yield "ReasonAlloc against uniform R-KV", each(("reasonalloc", "rkv"), ("reasonalloc-relative", "rkv"))
    yield "The parts: layers alone, heads alone, both", each(
        ("layer-only", "rkv"), ("head-only", "rkv"), ("reasonalloc", "layer-only"), ("reasonalloc", "head-only"))
    yield "Relative against raw scores", each(("head-only-relative", "head-only"), ("reasonalloc-relative", "reasonalloc"))
    others = ["ada-rkv", "pyramid-rkv", "dynamic", "snapkv", "h2o", "tova", "random", "streaming"]
    yield "Everything else against uniform R-KV", each(*[(other, "rkv") for other in others])
    full = [key for key in cells if key[0] == "full"]
    yield "What is still lost against full cache", [
        ((p, b, 32), full[0]) for p in ("rkv", "reasonalloc", "reasonalloc:sinks=4") for b in budgets if full and b >= 192]
    knobs = [p for p in policies if ":" in p]

    def base_of(policy):
        return policy.split(":")[0]

    def knob(*words):
        chosen = [p for p in knobs if p.split(":", 1)[1].split("=")[0] in words]
        return [((p, b, 32), (base_of(p), b, 32)) for p in chosen for b in budgets]

    yield "Floor, smoothing and demand of heads (default mu 0.25, beta 0.5, count, no memory)", [
        pair for pair in knob("mu", "beta", "utility", "smooth", "scores")]
    yield "Smoothing and demand of layers (default gamma 0.5, head mean)", knob("gamma", "demand")
    yield "Sinks (default none)", knob("sinks")
    yield "The prompt kept, or compressed at once", knob("protect-prompt", "prompt")
    yield "R-KV's own ranking against random, the prompt kept by both", [
        ((f"{p}:protect-prompt=1", b, 32), ("random:protect-prompt=1", b, 32)) for p in ("rkv", "reasonalloc", "snapkv", "streaming")
        for b in budgets]
    yield "Interval at equal peak (budget + interval), against interval 32", [
        ((policy, b, i), (policy, b + i - 32, 32)) for policy in ("rkv", "reasonalloc", "reasonalloc:sinks=4")
        for _, b, i in sorted(k for k in cells if k[0] == policy and k[2] != 32)]


def plot(name, cells, chosen, path, title):
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    full = next((c for key, c in cells.items() if key[0] == "full"), None)
    if full:
        low, high = full.wilson()
        axes.axhspan(100 * low, 100 * high, color="0.88", zorder=0)
        axes.plot([full.kib], [100 * full.accuracy], "k*", ms=10, label="full")
    markers = "osD^vPX<>hd*p8"
    for at, policy in enumerate(chosen):
        points = sorted((key[1], c) for key, c in cells.items() if key[0] == policy and key[2] == 32)
        if not points:
            continue
        x, y = [c.kib for _, c in points], [100 * c.accuracy for _, c in points]
        bounds = [c.wilson() for _, c in points]
        error = [[v - 100 * b[0] for v, b in zip(y, bounds)], [100 * b[1] - v for v, b in zip(y, bounds)]]
        axes.errorbar(x, y, yerr=np.maximum(error, 0), marker=markers[at % len(markers)], ms=4, lw=1.2, elinewidth=0.7, capsize=2,
                      color=plt.get_cmap("tab20")(at * 2 % 20 + (at >= 10)), label=policy)
    axes.set(xlabel="KV cache, mean live KiB a sample", ylabel="accuracy, % (95 % Wilson)", title=title, ylim=(-2, 102))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def head_budgets(maps, plots):
    """maps/POLICY.jsonl: one kv_map a line. Entries of each head right after each compaction, largest head first."""
    series = {}
    for path in sorted(maps.glob("*.jsonl")):
        shares = defaultdict(list)
        for line in path.read_text().splitlines():
            kv_map = json.loads(line)
            after = [e for e, is_after in zip(kv_map["entries"], kv_map["after"]) if is_after]
            for refresh, entries in enumerate(after):
                heads = np.sort(np.array(entries), axis=1)[:, ::-1]
                shares[refresh].append((heads / heads.mean(axis=1, keepdims=True)).mean(axis=0))
        series[path.stem] = [(refresh + 1, len(found), np.mean(found, axis=0)) for refresh, found in sorted(shares.items())]
    if not series:
        return "not measured\n"
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    rows = []
    for at, (policy, points) in enumerate(series.items()):
        for head in range(len(points[0][2])):
            axes.plot([p[0] for p in points], [p[2][head] for p in points], "-o", ms=3, color=f"C{at}",
                      alpha=1 - 0.3 * head, label=policy if head == 0 else None)
        rows += [[f"`{policy}`", refresh, n, " / ".join(f"{v:.2f}" for v in heads)] for refresh, n, heads in points
                 if refresh in (1, 2, 4, 6, 8)]
    axes.set(xlabel="compaction", ylabel="entries of a head / mean of its layer", title="Heads of a layer, largest to smallest")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(plots / "head-budgets.svg", metadata={"Date": None})
    plt.close(figure)
    return table(["policy", "compaction", "sequences", "largest / middle / smallest head, of the layer's mean"], rows)


def main():
    results = Path(sys.argv[1])
    plots = results / "plots"
    plots.mkdir(exist_ok=True)
    settings = read(results / "rows")
    paper = ["rkv", "snapkv", "layer-only", "head-only", "head-only-relative", "reasonalloc", "reasonalloc-relative"]
    around = ["rkv", "reasonalloc", "ada-rkv", "pyramid-rkv", "dynamic", "snapkv", "h2o", "tova", "random", "streaming"]
    text = ["# Tables\n", "Written by `tests/science/run --report` from `rows/`. " + " ".join(__doc__.split("\n\n")[1].split()) + "\n"]
    for name in sorted(settings):
        cells = settings[name]
        text += [f"## {name}\n"]
        for question, pairs in questions(cells):
            if not any(a in cells and b in cells for a, b in pairs):
                continue
            text += [f"### {name}: {question}\n", paired_table(cells, pairs)]
        text += [f"### {name}: every cell\n", accuracy_table(cells)]
        plot(name, cells, paper, plots / f"{name}-parts.svg", f"{name}: ReasonAlloc and its parts")
        plot(name, cells, around, plots / f"{name}-policies.svg", f"{name}: policies")
    text += ["## Head budgets over compactions\n", head_budgets(results / "maps", plots)]
    (results / "tables.md").write_text("\n".join(text))


main()
