#!/usr/bin/env bash
# Keys: an unknown one gets nothing, a worker's key cannot submit, and the sweep beside them is not disturbed.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
"$kvfleet_bin" keys make-coordinator --keys "$dir/strange" >/dev/null
"$kvfleet_bin" keys make worker --role worker --keys "$dir/strange" >/dev/null
cp "$dir/keys/coordinator.public" "$dir/strange/"
disturbed_sweep strangers
code=0
timeout 60 "$worker_bin" --coordinator "$url" --keys "$dir/strange" --models "$model" >"$dir/stranger.log" 2>&1 || code=$?
[ $code = 77 ] || fail "a worker with an unknown key exits $code"
code=0
"$kvfleet_bin" cancel "$job" --coordinator "$url" --keys "$dir/keys" --key worker --timeout 5s >"$dir/role.log" 2>&1 || code=$?
[ $code = 77 ] || fail "a worker's key could cancel (exit $code): $(cat "$dir/role.log")"
expect_exact
[ "$(sql "SELECT count(*) FROM runs")" = 2 ] || fail "the stranger got in"
