#!/usr/bin/env bash
# deploy/quickstart with everything that it starts replaced by scripts: what it passes on, and what it does about a worker
# that ends.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
tree=$dir/tree
mkdir -p "$tree/deploy" "$tree/models/tiny-reasoner" "$tree/build/worker" "$tree/build/coordinator/client" "$dir/bin"
cp "$KVF_SOURCE/deploy/quickstart" "$tree/deploy/"
script() { # PATH, text on stdin
    { echo '#!/bin/bash'; cat; } >"$1"
    chmod +x "$1"
}
for name in deploy/install-packages deploy/pgcluster deploy/migrate; do script "$tree/$name" <<<'exit 0'; done
for name in cmake psql; do script "$dir/bin/$name" <<<'exit 0'; done
script "$tree/build/coordinator/kvfleet-coordinator" <<'END'
while [ "$1" != --ready-file ]; do shift; done
echo ready >"$2"
exec -a kvfleet-coordinator sleep 1000
END
script "$tree/build/worker/kvfleet-worker" <<END
[ -z "\${KVFLEET_MAX_BATCH:-}" ] || { echo "KVFLEET_MAX_BATCH arrived"; exit 1; }
case "\$*" in *"--kv-type f16"*) echo "kv type: expected f32 or bf16, got 'f16'"; exit 64 ;; esac
echo "\$*" >>"$dir/workers"
echo "1,worker,host,\$\$,alive,cpu" >>"$dir/joined"
exec -a kvfleet-worker sleep 1000
END
script "$tree/build/coordinator/client/kvfleet" <<END
[ "\$1" != workers ] || cat "$dir/joined" 2>/dev/null
END
quickstart() { # ENVIRONMENT... -- FLAG
    local code=0 settings=()
    while [ "$1" != -- ]; do settings+=("$1"); shift; done
    shift
    env PATH="$dir/bin:$PATH" "${settings[@]}" "$tree/deploy/quickstart" "$@" >"$dir/out" 2>"$dir/err" || code=$?
    return $code
}
down() { quickstart -- --down; rm -f "$dir/workers" "$dir/joined"; }
trap 'down; at_exit' EXIT

note "K and V as KVFLEET_KV_TYPE says, bf16 without it; no other setting of the shell reaches a worker"
quickstart KVFLEET_MAX_BATCH=7 KVFLEET_WORKERS=2 -- --up || fail "$(cat "$dir/err")"
[ "$(grep -c -- '--kv-type bf16' "$dir/workers")" = 2 ] || fail "without KVFLEET_KV_TYPE: $(cat "$dir/workers")"
quickstart KVFLEET_KV_TYPE=f32 KVFLEET_WORKERS=1 -- --up || fail "$(cat "$dir/err")"
[ "$(tail -n 1 "$dir/workers" | grep -c -- '--kv-type f32')" = 1 ] || fail "KVFLEET_KV_TYPE=f32: $(cat "$dir/workers")"
down

note "a worker that ends is an error with its last words, not a sweep that waits"
code=0
quickstart KVFLEET_KV_TYPE=f16 KVFLEET_WORKERS=1 -- --up || code=$?
[ $code = 1 ] || fail "exit $code with a worker that ended"
grep -q "worker1 ended" "$dir/err" && grep -q "got 'f16'" "$dir/err" || fail "the error is: $(cat "$dir/err")"

note "--help is no misuse"
quickstart -- --help && grep -q KVFLEET_KV_TYPE "$dir/out" || fail "--help"
code=0
quickstart -- --bogus || code=$?
[ $code = 64 ] && [ ! -s "$dir/out" ] || fail "--bogus: exit $code, $(cat "$dir/out")"
