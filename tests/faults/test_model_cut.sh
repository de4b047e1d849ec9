#!/usr/bin/env bash
# A model file is shortened under the programs that have it mapped: one line that names it and an exit code instead of a
# SIGBUS; the worker's leases expire, another does its samples, the table is the same.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 1
undisturbed
cp -r "$model" "$dir/whole"
line="$model/model.safetensors: a mapped part of it is gone: the file was shortened, or its disk failed"
ends() { # PROGRAM CODE PID LOG: it ends by itself with that code, and the last line of its log says why
    local code=0
    wait_for 30 gone "$3"
    wait "$3" || code=$?
    [ $code -eq "$2" ] || fail "$1: exit $code, expected $2: $(tail -3 "$4")"
    [ "$(tail -1 "$4")" = "$1: $line" ] || fail "$1: the last line is not the reason: $(tail -3 "$4")"
}

note "worker"
disturbed_sweep "model cut"
truncate -s 4096 "$model/model.safetensors"
ends kvfleet-worker 70 "${pid[worker1]}" "$dir/worker1.log"
unset 'pid[worker1]'
cp "$dir/whole/model.safetensors" "$model/"
worker_up worker2
expect_exact
[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = 'expired'")" -ge 1 ] || fail "no lease expired"

note "generate"
# Stopped once the file is mapped for good: the tokens that are still to come read their embeddings from it.
"$kvfleet_bin" generate --model "$model" --max-new-tokens 1900 --raw "mod 10:" >"$dir/text" 2>"$dir/generate.log" &
pid[generate]=$!
until grep -q model.safetensors "/proc/${pid[generate]}/maps"; do
    ! gone "${pid[generate]}" || fail "generate ended before its model was mapped"
done
kill -STOP "${pid[generate]}"
truncate -s 4096 "$model/model.safetensors"
kill -CONT "${pid[generate]}"
ends kvfleet 64 "${pid[generate]}" "$dir/generate.log"
[ "$(wc -l <"$dir/generate.log")" = 1 ] || fail "generate: expected one line: $(cat "$dir/generate.log")"
