# fleet.sh: a throw-away fleet for a test: its own database, keys, port, coordinator and workers. Source it, then
#   fleet_up [WORKERS]      start everything          fleet_sweep ARGS... run a sweep without watching; sets $job
#   wait_for SECONDS COMMAND...   poll a condition    fleet_down          (also at exit)
# Everything lives in $dir, removed at the end unless KVF_KEEP is set.
set -euo pipefail
: "${KVF_SOURCE:?expected the source tree}" "${KVF_BUILD:?expected the build folder}"
for name in $(compgen -v KVFLEET_ || true); do unset "$name"; done
dir=$(mktemp -d /tmp/kvfleet-test.XXXXXX)
chmod 755 "$dir"
lease=${KVF_LEASE:-2s} heartbeat=${KVF_HEARTBEAT:-300ms}
port=$((20000 + RANDOM % 20000))
url=tcp://127.0.0.1:$port
kvfleet_bin=$KVF_BUILD/coordinator/client/kvfleet
coordinator_bin=$KVF_BUILD/coordinator/kvfleet-coordinator
worker_bin=$KVF_BUILD/worker/kvfleet-worker
model=$dir/tiny-reasoner
declare -A pid=()

fail() { echo "FAIL: $*" >&2; exit 1; }
note() { echo "-- $*"; }

wait_for() { # SECONDS COMMAND...: a deadline for a condition, not a pause
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "FAIL: waited too long for: $*" >&2; tail -n 5 "$dir"/*.log >&2; return 1; }
        sleep 0.05
    done
}
gone() { ! kill -0 "$1" 2>/dev/null; }

kv() { "$kvfleet_bin" "$@" --coordinator "$url" --keys "$dir/keys"; }
psql_bin=/usr/lib/postgresql/15/bin/psql # not Debian's wrapper, which takes 50 ms of Perl a call
sql() { "$psql_bin" -XAtq "$("$KVF_SOURCE"/deploy/pgcluster conninfo "$dir/pg" kvfleet_owner)" -c "$1"; }
conninfo() { "$KVF_SOURCE"/deploy/pgcluster conninfo "$dir/pg" "$1"; }

database_up() {
    "$KVF_SOURCE"/deploy/pgcluster start "$dir/pg"
    "$KVF_SOURCE"/deploy/migrate "$(conninfo kvfleet_owner)" >/dev/null
}
keys_up() {
    "$kvfleet_bin" keys make-coordinator --keys "$dir/keys" >/dev/null
    "$kvfleet_bin" keys make worker --role worker --keys "$dir/keys" >/dev/null
    "$kvfleet_bin" keys make client --role client --keys "$dir/keys" >/dev/null
}
coordinator_up() { # [FLAGS...]
    rm -f "$dir/ready"
    "$coordinator_bin" --bind "$url" --keys "$dir/keys" --db "$(conninfo kvfleet_coordinator)" \
        --db-read "$(conninfo kvfleet_reader)" --lease "$lease" --heartbeat "$heartbeat" --ready-file "$dir/ready" "$@" \
        >>"$dir/coordinator.log" 2>&1 &
    pid[coordinator]=$!
    wait_for 30 test -e "$dir/ready"
}
worker_up() { # NAME [FLAGS...]
    local name=$1
    shift
    "$worker_bin" --coordinator "$url" --keys "$dir/keys" --models "$model" --threads 1 "$@" >>"$dir/$name.log" 2>&1 &
    pid[$name]=$!
}
fleet_up() { # [WORKERS]
    mkdir -p "$model"
    cp "$KVF_SOURCE"/models/tiny-reasoner/*.json "$KVF_SOURCE"/models/tiny-reasoner/*.safetensors "$model"
    [ ! -e "$KVF_SOURCE/tests/wave-profile.json" ] || cp "$KVF_SOURCE/tests/wave-profile.json" "$model"
    database_up
    keys_up
    coordinator_up
    local i
    for i in $(seq "${1:-2}"); do worker_up "worker$i"; done
}
fleet_down() {
    local name
    for name in "${!pid[@]}"; do
        kill -CONT "${pid[$name]}" 2>/dev/null || true
        kill -KILL "${pid[$name]}" 2>/dev/null || true
        wait "${pid[$name]}" 2>/dev/null || true
    done
    pid=()
    [ ! -d "$dir/pg" ] || "$KVF_SOURCE"/deploy/pgcluster stop "$dir/pg" immediate || true
}
at_exit() {
    local code=$?
    fleet_down
    if [ $code -ne 0 ] && [ $code -ne 77 ]; then
        for file in "$dir"/*.log; do [ ! -e "$file" ] || { echo "---- $(basename "$file")"; tail -15 "$file"; }; done
    fi
    [ -n "${KVF_KEEP:-}" ] || rm -rf "$dir"
}
trap at_exit EXIT

# The sweep of the fault tests: three cells that compact, one that does not.
fault_policies=full,snapkv,rkv,random fault_budgets=96 fault_limit=${KVF_FAULT_LIMIT:-32}
fleet_sweep() {
    job=$(kv submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy "$fault_policies" \
        --budget "$fault_budgets" --interval 32 --limit "$fault_limit" --max-new-tokens 500 "$@")
}
done_samples() { sql "SELECT count(*) FROM results WHERE job_id = $job"; }
total_samples() { sql "SELECT n_samples FROM jobs WHERE job_id = $job"; }
done_at_least() { [ "$(done_samples 2>/dev/null || echo 0)" -ge "$1" ]; }
job_ended() { [[ $(sql "SELECT state FROM jobs WHERE job_id = $job" 2>/dev/null) =~ ^(done|done_with_errors|cancelled)$ ]]; }

# What must not depend on faults: every column of the table that is not a time, and each sample's output.
table_digest() {
    sql "SELECT policy, coalesce(budget_tokens, 0), samples, correct, wrong, unanswered, truncated, errors, diff_lost,
                diff_gained, mean_output_tokens, kv_live_mean_bytes, kv_live_peak_bytes, compactions_mean, evicted_mean
         FROM v_cell WHERE job_id = $1 ORDER BY ordinal"
    sql "SELECT md5(string_agg(policy || problem_no || repeat || output_hash || verdict || finish, ',' ORDER BY cell_id,
                problem_no, repeat)) FROM v_sample WHERE job_id = $1"
}
# Every sample there exactly once, nothing else, no lease left open, and the table of the undisturbed run in $reference.
expect_exact() {
    wait_for 120 job_ended
    [ "$(sql "SELECT state FROM jobs WHERE job_id = $job")" = done ] || fail "job $job ended as $(sql "SELECT state FROM jobs WHERE job_id = $job")"
    [ "$(done_samples)" = "$(total_samples)" ] || fail "$(done_samples) results for $(total_samples) samples"
    [ "$(sql "SELECT count(*) FROM samples s LEFT JOIN results r USING (job_id, sample_id) WHERE s.job_id = $job AND r.sample_id IS NULL")" = 0 ] ||
        fail "samples without a result"
    [ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = 'active'")" = 0 ] || fail "a lease is still active"
    table_digest "$job" >"$dir/table.$job"
    diff -u "$reference" "$dir/table.$job" || fail "the table differs from the undisturbed run"
}
# The undisturbed run, made once per build and kept beside it: the table does not depend on the fleet.
undisturbed() {
    reference=$KVF_BUILD/undisturbed-$fault_limit.table
    [ ! -s "$reference" ] || [ "$reference" -ot "$worker_bin" ] || return 0
    fleet_sweep --title undisturbed
    wait_for 180 job_ended
    table_digest "$job" >"$reference.new"
    mv "$reference.new" "$reference"
}
# Starts the sweep and waits until it is in full swing.
disturbed_sweep() {
    fleet_sweep --title "$1"
    wait_for 60 done_at_least $((fault_limit / 2))
    ! job_ended || fail "the sweep was over before the fault"
}
