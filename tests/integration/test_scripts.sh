#!/usr/bin/env bash
# The test scripts themselves: without the variables that they build paths from they stop at once, and what fleet.sh prints
# when a wait fails is the logs.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"

# Copies, run by bash alone: no program on the PATH and, under root, as nobody, so that a script which goes on does no harm.
tree=$dir/tree
mkdir -p "$tree/tests" "$dir/empty"
cp "$KVF_SOURCE/tests/fleet.sh" "$tree/tests"
as_nobody=()
[ "$(id -u)" -ne 0 ] || as_nobody=("$(command -v setpriv)" --reuid=65534 --regid=65534 --clear-groups)
stops() { # WORDS SCRIPT SETTING...: one line with WORDS, and no success
    local words=$1 script=$2 code=0
    shift 2
    cp "$script" "$tree/script.sh"
    (cd "$dir/empty" && "${as_nobody[@]}" /usr/bin/env -i PATH="$dir/empty" "$@" "$BASH" "$tree/script.sh") \
        >"$dir/out" 2>"$dir/err" </dev/null || code=$?
    [ $code -ne 0 ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF "$words" "$dir/err" ||
        fail "$script with '$*': exit $code, expected one line with '$words': $(head -3 "$dir/out" "$dir/err")"
}

note "no script goes on without KVF_SOURCE and KVF_BUILD"
scripts=0
for script in "$KVF_SOURCE"/tests/{faults,integration}/*.sh "$KVF_SOURCE"/tests/bench/*.sh; do
    scripts=$((scripts + 1))
    stops KVF_SOURCE "$script" KVF_BUILD="$dir/none"
    stops KVF_SOURCE "$script" KVF_BUILD="$dir/none" KVF_SOURCE=
    stops "$dir/none/tests/fleet.sh" "$script" KVF_BUILD="$dir/none" KVF_SOURCE="$dir/none"
    stops KVF_BUILD "$script" KVF_SOURCE="$tree"
    stops KVF_BUILD "$script" KVF_SOURCE="$tree" KVF_BUILD=
done
[ $scripts -ge 16 ] || fail "only $scripts scripts were tried"
stops KVF_BUILD "$KVF_SOURCE/tests/fleet.sh" KVF_SOURCE="$tree"
stops KVF_SOURCE "$KVF_SOURCE/tests/fleet.sh" KVF_BUILD="$dir/none"

note "a wait that fails shows the last lines of every log"
seq 1 7 >"$dir/first.log"
seq 11 17 >"$dir/second.log"
! wait_for 0 false 2>"$dir/err" || fail "a wait for false succeeded"
for line in 3 7 13 17; do grep -qx $line "$dir/err" || fail "no line $line: $(cat "$dir/err")"; done
! grep -qxE '2|12' "$dir/err" || fail "more than five lines of a log: $(cat "$dir/err")"

note "every policy of the study is one"
unit() { sed 's/,\([a-z0-9-]*=\)/;\1/g' <<<"$6" | tr ',;' '\n,'; } # a comma before key= is inside a policy
. "$KVF_SOURCE/tests/science/plan.sh" | sort -u >"$dir/policies"
[ "$(wc -l <"$dir/policies")" -ge 35 ] || fail "only $(wc -l <"$dir/policies") policies: $(cat "$dir/policies")"
while read -r policy; do
    "$kvfleet_bin" policies "$policy" >/dev/null 2>"$dir/err" || fail "$(cat "$dir/err")"
done <"$dir/policies"
