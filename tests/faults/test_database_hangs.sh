#!/usr/bin/env bash
# PostgreSQL takes statements and answers none: SIGHUP changes nothing about that, SIGTERM ends the coordinator at once,
# and the next one loses nothing.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
disturbed_sweep "database hangs"

# Two tables that a sweep on its way does not touch are locked, so that one question and one request get stuck in the
# database, one on each of the coordinator's connections.
ours="application_name LIKE 'kvfleet-coordinator%'"
client=(--coordinator "$url" --keys "$dir/keys" --timeout 60s)
stuck() { [ "$(sql "SELECT count(*) FROM pg_stat_activity WHERE $ours AND wait_event_type = 'Lock'")" -ge "$1" ]; }
unlock() { sql "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'locker'" >/dev/null; }
locked() { [ "$(sql "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE application_name = 'locker' AND mode = 'AccessExclusiveLock' AND granted")" = 2 ]; }
hang() {
    PGAPPNAME=locker "$psql_bin" -XAtq "$(conninfo kvfleet_owner)" -c BEGIN -c 'LOCK TABLE cells, problems' \
        -c 'SELECT pg_sleep(600)' >/dev/null 2>&1 &
    wait_for 30 locked
    "$kvfleet_bin" status "${client[@]}" >/dev/null 2>&1 &
    pid[status]=$!
    wait_for 30 stuck 1
    "$kvfleet_bin" cancel 999999 "${client[@]}" >/dev/null 2>&1 &
    pid[cancel]=$!
    wait_for 30 stuck 2
}

answered() {
    local code=0
    wait "${pid[status]}" || fail "$1: the question got no answer"
    wait "${pid[cancel]}" || code=$?
    [ $code = 64 ] || fail "$1: cancel of a job that does not exist: exit $code"
}

note "SIGHUP"
hang
kill -HUP "${pid[coordinator]}"
unlock
wait_for 30 grep -q keys_reloaded "$dir/coordinator.log"
answered SIGHUP
! grep -q database_down "$dir/coordinator.log" || fail "SIGHUP ended a wait for the database"

note "SIGTERM"
hang
backends=$(sql "SELECT pid FROM pg_stat_activity WHERE $ours")
kill -STOP $backends
kill -TERM "${pid[coordinator]}"
wait_for 10 gone "${pid[coordinator]}" # the shortest limit on a statement is 15 s
code=0
wait "${pid[coordinator]}" || code=$?
[ $code = 0 ] || fail "SIGTERM: exit $code"
kill -CONT $backends
unlock
coordinator_up
answered SIGTERM # by the next one
expect_exact
