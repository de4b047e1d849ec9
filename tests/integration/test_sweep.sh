#!/usr/bin/env bash
# A sweep through a real fleet: the table, its JSON and CSV, samples, failures, watch, cancel, resume, exit codes.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
sweep() { kv sweep --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --interval 32 --limit 8 "$@"; }

note "sweep prints the table and exits 0"
sweep --policy full,rkv,reasonalloc --budget 96,160 >"$dir/table" 2>"$dir/talk"
[ "$(sql "SELECT count(*) FROM results")" = 40 ] || fail "expected 5 cells x 8 samples"
grep -q reasonalloc "$dir/table" || fail "the table lacks reasonalloc"
kv results --job 1 >"$dir/table2"
diff "$dir/table" "$dir/table2" || fail "results prints another table than sweep"

note "--json and --csv hold the same figures as v_cell"
kv results --job 1 --json >"$dir/json"
kv results --job 1 --csv >"$dir/csv"
python3 - "$dir/json" "$dir/csv" <<'PY'
import csv, json, sys
doc = json.load(open(sys.argv[1]))
rows = doc["cells"] if isinstance(doc, dict) else doc
table = list(csv.DictReader(open(sys.argv[2])))
assert len(rows) == len(table) == 5, (len(rows), len(table))
for a, b in zip(rows, table):
    for key, text in b.items():
        value = a[key]
        if value is None:
            assert text == "", (key, text)
        elif isinstance(value, bool):
            assert text == str(value).lower(), (key, value, text)
        elif isinstance(value, (int, float)):
            assert abs(float(text) - value) <= 1e-9 * max(1, abs(value)), (key, value, text)
        else:
            assert text == value, (key, value, text)
full = rows[0]
assert full["policy"] == "full" and full["budget_tokens"] is None and full["diff_full"] is None and full["compactions_mean"] == 0
assert full["kv_ratio"] == 1 and full["accuracy"] >= 0.97, full
for r in rows[1:]:
    assert r["samples"] == 8 and 0 < r["kv_ratio"] < 1 and r["compactions_mean"] > 0 and r["evicted_mean"] > 0, r
    assert 0 < r["mcnemar_p"] <= 1 and r["diff_pairs"] == 8, r
    assert r["correct"] + r["wrong"] + r["unanswered"] + r["truncated"] + r["errors"] == r["samples"], r
assert rows[1]["kv_live_mean_bytes"] < rows[2]["kv_live_mean_bytes"] < full["kv_live_mean_bytes"]
assert any(r["pareto"] for r in rows)
PY

note "a sample shows prompt, thinking, answer, grade and why it ended"
sample=$(sql "SELECT min(sample_id) FROM results")
kv results --job 1 --sample "$sample" >"$dir/sample"
for word in "mod 10" "</think>\|hinking" "stop" "correct"; do
    grep -q "$word" "$dir/sample" || fail "the sample lacks $word"
done
kv results --job 1 --failures >"$dir/failures"

note "--policy and --budget choose cells, by any spelling of the policy"
chosen() { kv results --job 1 --csv "$@" 2>"$dir/err" | sed 1d | cut -d, -f2,3 | tr '\n' ' '; }
[ "$(chosen --policy rkv)" = "rkv,96 rkv,160 " ] || fail "--policy rkv: $(chosen --policy rkv)"
[ "$(chosen --budget 160)" = "rkv,160 reasonalloc,160 " ] || fail "--budget 160: $(chosen --budget 160)"
[ "$(chosen --policy rkv:lambda=0.1 --budget 96)" = "rkv,96 " ] || fail "rkv:lambda=0.1 is not rkv"
[ "$(kv results --job 1 --samples --csv --policy rkv:lambda=0.1 --budget 96 | sed 1d | cut -d, -f2,3 | sort | uniq -c | tr -s ' ')" = " 8 rkv,96" ] ||
    fail "--samples of one cell"
for wrong in "--policy rkv|policy rkv fits 2 cells, expected one: give --policy and --budget" \
    "--policy rkv --budget 77|it has no cell of policy rkv budget 77"; do
    ! kv results --job 1 --samples ${wrong%|*} >"$dir/out" 2>"$dir/err" || fail "--samples ${wrong%|*} was taken"
    grep -qF "${wrong#*|}" "$dir/err" || fail "--samples ${wrong%|*}: $(cat "$dir/err")"
done

note "a table without full says why it compares nothing; one that leaves it out compares"
missing="as the job has no cell of policy full"
kv results --job 1 --policy rkv --budget 96 >"$dir/chosen"
! grep -q "$missing" "$dir/chosen" "$dir/table" || fail "job 1 has a cell of policy full"
sweep --policy rkv --budget 96 >"$dir/alone" 2>/dev/null
[ "$(grep -c "$missing" "$dir/alone")" = 1 ] || fail "no word about vs full: $(cat "$dir/alone")"

note "a list for a program is whole, for a person a page"
listed() { kv results --job "$long" --samples "$@"; }
long=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full --limit 60 2>/dev/null)
kv watch "$long" >/dev/null 2>&1
[ "$(listed --csv 2>"$dir/list.err" | wc -l)" = 61 ] || fail "--samples --csv: expected a head line and 60 rows"
[ ! -s "$dir/list.err" ] || fail "--samples --csv: $(cat "$dir/list.err")"
listed --json | python3 -c 'import json, sys; d = json.load(sys.stdin); assert (len(d["samples"]), d["next"]) == (60, None), (len(d["samples"]), d["next"])'
[ "$(listed --csv --limit 7 2>"$dir/list.err" | wc -l)" = 8 ] || fail "--samples --csv --limit 7: expected a head line and 7 rows"
grep -q "there are more: --after" "$dir/list.err" || fail "--limit 7: no word that there are more"
[ "$(listed 2>"$dir/list.err" | grep -c chain-arith-narrow)" = 50 ] || fail "--samples: expected a page of 50 rows"
grep -q "there are more: --after" "$dir/list.err" || fail "the table's page: no word that there are more"
[ "$(listed --limit 0 2>/dev/null | grep -c chain-arith-narrow)" = 60 ] || fail "--samples --limit 0: expected 60 rows"

for list in "results --job $long --samples" "status" "workers"; do
    kv $list --json >"$dir/list.json" 2>/dev/null
    kv $list --csv >"$dir/list.csv" 2>/dev/null
    python3 - "$dir/list.json" "$dir/list.csv" <<'PY' || fail "$list: --csv lacks what --json has"
import csv, json, sys
def flat(row, outer=""):
    for key, value in row.items():
        yield from flat(value, outer + key + ".") if isinstance(value, dict) else [(outer + key, value)]
doc = json.load(open(sys.argv[1]))
rows = [dict(flat(row)) for row in next(value for value in doc.values() if isinstance(value, list))]
table = list(csv.reader(open(sys.argv[2])))
assert table[0] == list(rows[0]), (table[0], list(rows[0]))
assert len(table) == len(rows) + 1
def shown(value):
    if isinstance(value, (bool, list)): return json.dumps(value, separators=(",", ":"))
    return "" if value is None else str(value)
for row, line in zip(rows, table[1:]):
    for (key, value), text in zip(row.items(), line):
        assert text == shown(value) or float(text) == value, (key, value, text)
PY
done
# the head line does not depend on whether there are rows
[ "$(listed --csv --after 9007199254740991)" = "$(listed --csv --limit 1 2>/dev/null | head -n 1)" ] ||
    fail "the head line without rows: $(listed --csv --after 9007199254740991)"

note "without --policy: full and the default policy"
unnamed=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --budget 128 --interval 32 --limit 1 2>/dev/null)
cells=$(sql "SELECT string_agg(policy, ' ' ORDER BY cell_id) FROM cells WHERE job_id = $unnamed")
[ "$cells" = "full reasonalloc:sinks=4" ] || fail "the default policies are '$cells'"
kv watch "$unnamed" >/dev/null 2>&1 || fail "the default policies did not run"

note "submit returns an id at once, watch follows, cancel keeps what is done"
job=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full --limit 512 2>/dev/null)
[[ $job =~ ^[0-9]+$ ]] || fail "submit printed '$job'"
wait_for 30 done_at_least 8
again=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full --limit 512 --resume 2>/dev/null)
[ "$again" = "$job" ] || fail "--resume gave job $again, not $job"
kv watch "$job" >"$dir/watch" 2>&1 &
watcher=$!
behind=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full --limit 1 2>/dev/null)
kv watch "$behind" >"$dir/behind" 2>&1 &
behind_watcher=$!
wait_for 10 grep -q "^job $behind: 0/1 sample (0 %), waiting: job $job runs first$" "$dir/behind"
kv cancel "$job" >/dev/null 2>&1
code=0
wait $watcher || code=$?
[ $code = 130 ] || fail "watch of a cancelled job exits $code"
wait $behind_watcher || fail "the job behind the cancelled one: $(cat "$dir/behind")"
kept=$(done_samples)
[ "$kept" -ge 8 ] || fail "cancel dropped results"
kv results --job "$job" >/dev/null || [ $? = 130 ] || fail "results of a cancelled job"
wait_for 10 eval '[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = '\''active'\''")" = 0 ]'

note "two runs give identical results, at temperature too"
for i in 1 2; do
    kv sweep --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy reasonalloc,random --budget 96 \
        --interval 32 --limit 6 --repeats 2 --temperature 0.6 --top-p 0.95 >/dev/null 2>&1
    sql "SELECT md5(string_agg(output_hash::text, ',' ORDER BY cell_id, problem_no, repeat)) FROM v_sample WHERE job_id = (SELECT max(job_id) FROM jobs)"
done >"$dir/twice"
[ "$(sort -u "$dir/twice" | wc -l)" = 1 ] || fail "two runs differ: $(cat "$dir/twice")"
[ "$(sql "SELECT count(DISTINCT output_hash) FROM v_sample WHERE job_id = (SELECT max(job_id) FROM jobs) AND problem_no = 0 AND policy = 'random'")" -ge 1 ] || fail "no outputs"

note "status, workers"
[ "$(kv status "$job" --csv)" = "$(kv status --csv | sed -n "1p;/^$job,/p")" ] || fail "status JOB --csv: $(kv status "$job" --csv)"
kv status "$job" | grep -qx "title  *tiny-reasoner on chain-arith-narrow" || fail "status JOB cuts the title: $(kv status "$job")"
kv status | grep -q cancelled || fail "status lacks the cancelled job"
[ "$(kv workers --json | python3 -c 'import json,sys; d=json.load(sys.stdin); print(len(d["workers"] if isinstance(d, dict) else d))')" = 2 ] || fail "workers does not list two"
