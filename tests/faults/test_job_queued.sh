#!/usr/bin/env bash
# A job that was accepted is `queued` until its samples are made and loaded. Killed there, with its client gone too, the
# coordinator goes on with it by itself.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 0
ours="application_name LIKE 'kvfleet-coordinator%'"
state_is() { [ "$("$psql_bin" -XAtq "$(conninfo kvfleet_reader)" -c 'SELECT state FROM v_job')" = "$1" ]; }
terminate() { sql "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE $1" >/dev/null; }
holds() { [ "$(sql "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE application_name = 'locker' AND relation = '$1'::regclass AND granted")" = 1 ]; }
stuck() { [ "$(sql "SELECT count(*) FROM pg_stat_activity WHERE $ours AND wait_event_type = 'Lock'")" = 1 ]; }
lock() { # TABLE MODE: until the locker is terminated
    PGAPPNAME=locker "$psql_bin" -XAtq "$(conninfo kvfleet_owner)" -c BEGIN -c "LOCK TABLE $1 IN $2 MODE" \
        -c 'SELECT pg_sleep(600)' >/dev/null 2>&1 &
    wait_for 30 holds "$1"
}

note "no sample can be made"
lock samples SHARE
"$kvfleet_bin" submit --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" --policy full,rkv --budget 96 \
    --interval 32 --limit 4 --coordinator "$url" --keys "$dir/keys" >"$dir/submit.log" 2>&1 &
pid[submit]=$!
wait_for 30 stuck
state_is queued || fail "accepted, and the state is $(sql 'SELECT state FROM jobs')"
kill -KILL "${pid[coordinator]}" "${pid[submit]}"
terminate "$ours"
terminate "application_name = 'locker'"
[ "$(sql 'SELECT count(*) FROM samples')" = 0 ] || fail "there are samples already"

note "they are made and cannot be loaded"
lock grades "ACCESS EXCLUSIVE"
coordinator_up
wait_for 30 stuck
job=$(sql 'SELECT job_id FROM jobs')
[ "$(sql 'SELECT count(*) FROM samples')" = "$(total_samples)" ] || fail "it is loaded without all its samples"
state_is queued || fail "not loaded, and the state is $(sql 'SELECT state FROM jobs')"
terminate "application_name = 'locker'"
wait_for 30 state_is running

note "and run"
worker_up worker1
wait_for 60 job_ended
state_is done || fail "the job ended as $(sql 'SELECT state FROM jobs')"
[ "$(done_samples)" = "$(total_samples)" ] || fail "$(done_samples) results for $(total_samples) samples"
