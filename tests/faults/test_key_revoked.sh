#!/usr/bin/env bash
# A key that is taken back while its owner is connected: a worker's leases are lent again at once and its run ends, also
# when the database was away at that moment; a client is told.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
lease=60s # nothing here may have to expire
fleet_up 1
undisturbed
for name in second third; do
    "$kvfleet_bin" keys make "$name" --role worker --keys "$dir/keys" >/dev/null 2>&1
    worker_up "$name" --key "$name"
done
"$kvfleet_bin" keys make guest --role client --keys "$dir/keys" >/dev/null 2>&1
kill -HUP "${pid[coordinator]}"
joined() { [ "$(sql "SELECT count(*) FROM v_worker WHERE state = 'alive'")" = "$1" ]; }
run_of() { sql "SELECT $2 FROM v_worker WHERE worker = '$1'"; }
has_left() { [ "$(run_of "$1" "state || ', ' || coalesce(end_reason, '')")" = "gone, key revoked" ]; }
take_back() {
    rm "$dir/keys/authorized/$1.public"
    kill -HUP "${pid[coordinator]}"
}
wait_for 30 joined 3
# a job that nobody can work on, so that whoever watches it stays
cp -r "$model" "$dir/other"
echo >>"$dir/other/config.json"
waiting=$(kv submit --model "$dir/other" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full --limit 1)
disturbed_sweep "key revoked"
wait_for 30 eval '[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND run_id = $(run_of second run_id)")" -gt 0 ]'
"$kvfleet_bin" watch "$waiting" --coordinator "$url" --keys "$dir/keys" --key guest --timeout 60s >/dev/null 2>"$dir/watch.log" &
pid[watch]=$!
wait_for 30 test -s "$dir/watch.log"

rm "$dir/keys/authorized/guest.public"
take_back second
wait_for 20 has_left second
[ "$(sql "SELECT count(*) FROM leases WHERE run_id = $(run_of second run_id) AND state NOT IN ('done', 'released')")" = 0 ] ||
    fail "a lease of the revoked worker is not over"
wait_for 20 grep -q 'coordinator_away.*why="denied"' "$dir/second.log"
code=0
wait "${pid[watch]}" || code=$?
[ $code = 77 ] && grep -q "not authorized any more" "$dir/watch.log" || fail "watch with a revoked key: exit $code: $(cat "$dir/watch.log")"
expect_exact
[ "$(sql "SELECT count(*) FROM leases WHERE state = 'expired'")" = 0 ] || fail "a lease had to expire"

note "while the database is away"
"$KVF_SOURCE"/deploy/pgcluster stop "$dir/pg" immediate
take_back third
wait_for 20 grep -q 'coordinator_away.*why="denied"' "$dir/third.log"
"$KVF_SOURCE"/deploy/pgcluster start "$dir/pg"
wait_for 30 has_left third
joined 1 || fail "$(sql "SELECT worker, state, end_reason FROM v_worker")"
