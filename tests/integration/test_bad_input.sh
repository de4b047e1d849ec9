#!/usr/bin/env bash
# Bad input gets one clear line that says what and where, and an exit code; nothing crashes.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
bad=0
# refused CODE "WORDS|..." COMMAND...: exits with CODE, prints exactly one printable line on stderr that holds every word.
refused() {
    local code=$1 words=$2 got=0 word
    shift 2
    "$@" >"$dir/out" 2>"$dir/err" </dev/null || got=$?
    if [ $got -ne "$code" ]; then
        echo "exit $got, expected $code: $*"; cat "$dir/err"; bad=1
        return
    fi
    ! LC_ALL=C grep -q '[[:cntrl:]]' "$dir/err" || { echo "control bytes on stderr: $*"; cat -v "$dir/err"; bad=1; }
    [ "$(wc -l <"$dir/err")" -eq 1 ] || { echo "expected one line on stderr: $*"; cat "$dir/err"; bad=1; }
    IFS='|'
    for word in $words; do
        grep -qF -- "$word" "$dir/err" || { echo "the line lacks '$word': $*"; cat "$dir/err"; bad=1; }
    done
    unset IFS
}
cp -r "$KVF_SOURCE/models/tiny-reasoner" "$model"
rm -f "$model/wave-profile.json"
data=$KVF_SOURCE/data/chain-arith-narrow.jsonl
submit() { # FLAGS...: these, and of a job that is right what they do not say
    local own=() right=(--model "$model" --dataset "$data" --policy rkv --budget 96 --interval 32) i
    for ((i = 0; i < ${#right[@]}; i += 2)); do [[ " $* " == *" ${right[i]} "* ]] || own+=("${right[@]:i:2}"); done
    kv submit "${own[@]}" "$@"
}

note "policies and budgets"
refused 64 "magic|full" submit --policy magic
refused 64 "budget|8" submit --budget 8
refused 64 "budget" submit --budget banana
refused 64 "lambda|2" submit --policy rkv:lambda=2
refused 64 "interval|0" submit --interval 0
refused 64 "frobnicate" kv frobnicate
refused 64 "--no-such-flag" kv submit --no-such-flag
refused 64 "dataset" kv submit --model "$model" --policy rkv --budget 96

refused 64 'flag --job: expected it once, got "1" and "2"' kv results --job 1 --job 2
refused 64 "--raw and --template exclude each other" "$kvfleet_bin" generate --model "$model" --raw --template kvfleet-tiny hello
refused 64 "--raw and --template exclude each other" env KVFLEET_RAW=1 "$kvfleet_bin" generate --model "$model" --template raw hello

note "what a terminal would obey is shown escaped"
escape=$'\e[31m' shown='\x1b[31m'
refused 64 "policy '$shown' is unknown" submit --policy "$escape"
refused 64 "unknown command '$shown'" kv "$escape"
refused 64 "unknown flag --$shown" kv submit "--$escape"
refused 64 "expected an integer, got \"$shown\"" submit --interval "$escape"
refused 64 "got '$shown' too" "$kvfleet_bin" generate --model "$model" hello "$escape"
refused 64 "$shown" "$worker_bin" --coordinator "$url" --models "$dir/$escape" --keys "$dir"
refused 64 "$shown" "$coordinator_bin" --lease "$escape"
refused 64 "$shown" "$kvfleet_bin" generate --model "$dir/$escape" hello

note "data sets"
head -3 "$data" >"$dir/ok.jsonl"
{ cat "$dir/ok.jsonl"; echo '{"id": "x", "problem"'; } >"$dir/not-json.jsonl"
{ cat "$dir/ok.jsonl"; echo '{"id": "x", "problem": "p"}'; } >"$dir/no-answer.jsonl"
{ cat "$dir/ok.jsonl"; printf '{"id": "x", "problem": "\xff", "answer": "1"}\n'; } >"$dir/not-utf8.jsonl"
{ cat "$dir/ok.jsonl"; head -1 "$dir/ok.jsonl"; } >"$dir/twice.jsonl"
: >"$dir/empty.jsonl"
refused 64 "not-json.jsonl:4" submit --dataset "$dir/not-json.jsonl"
refused 64 "no-answer.jsonl:4|answer" submit --dataset "$dir/no-answer.jsonl"
refused 64 "not-utf8.jsonl:4|UTF-8" submit --dataset "$dir/not-utf8.jsonl"
refused 64 "twice.jsonl:4|chain-arith-narrow-0001" submit --dataset "$dir/twice.jsonl"
refused 64 "empty.jsonl" submit --dataset "$dir/empty.jsonl"
refused 64 "nowhere.jsonl" submit --dataset "$dir/nowhere.jsonl"

note "models"
broken() { # NAME WORDS: a copy of the model in $dir/NAME, changed by the commands on stdin
    rm -rf "${dir:?}/$1"
    cp -r "$model" "$dir/$1"
    (cd "$dir/$1" && bash -e)
    refused 64 "$2" "$kvfleet_bin" generate --model "$dir/$1" "mod 10: a=3. Find a."
}
broken no-weights "model.safetensors" <<<'rm model.safetensors'
broken cut-weights "model.safetensors" <<<'truncate -s 100000 model.safetensors'
broken wrong-shape "expected" <<<"sed -i 's/\"intermediate_size\": 512/\"intermediate_size\": 500/' config.json"
broken other-arch "GPT2LMHeadModel" <<<"sed -i 's/LlamaForCausalLM/GPT2LMHeadModel/' config.json"
broken no-merges "merges" <<<"sed -i 's/\"merges\": \[\]/\"merge\": []/' tokenizer.json"
refused 64 "nowhere" "$kvfleet_bin" generate --model "$dir/nowhere" hello
refused 64 "context|2048" "$kvfleet_bin" generate --model "$model" --raw "$(head -c 5000 /dev/zero | tr '\0' a)"
refused 64 "profile" "$kvfleet_bin" generate --model "$model" --policy reasonalloc --budget 96 --interval 32 hello
refused 64 "profile" submit --policy reasonalloc
refused 64 'model folder "/no/where": No such file' submit --model /no/where
refused 64 "ok.jsonl: expected a model folder, got a file" submit --model "$dir/ok.jsonl"
refused 64 "nonsense|kvfleet-tiny" submit --template nonsense
cp -r "$model" "$dir/other-chat"
sed -i 's/<|assistant|>/<|model|>/g' "$dir/other-chat/tokenizer_config.json"
refused 64 "chat template" kv submit --model "$dir/other-chat" --dataset "$data" --policy full
cp "$KVF_SOURCE/tests/wave-profile.json" "$dir/other.json"
sed -i 's/"model_hash": "..../"model_hash": "0000/' "$dir/other.json"
refused 64 "0000|$("$kvfleet_bin" generate --model "$model" --max-new-tokens 1 --json hello 2>/dev/null | grep -o '"model_hash": "[0-9a-f]*' | cut -d'"' -f4)" \
    "$kvfleet_bin" generate --model "$model" --policy reasonalloc --budget 96 --interval 32 --profile "$dir/other.json" hello

note "an output that cannot be written"
full() { bash -c '"$0" "$@" >/dev/full' "$kvfleet_bin" "$@"; }
refused 70 "cannot write the output" full policies
refused 70 "cannot write the output" full policies --json
refused 70 "cannot write the output" full generate --model "$model" --max-new-tokens 4 --json --log-level error hello

note "settings files"
echo nonsense >"$dir/odd.conf"
for program in "$coordinator_bin" "$worker_bin" "$kvfleet_bin status"; do
    refused 64 "nowhere.conf|No such file" $program --config "$dir/nowhere.conf"
    refused 64 "directory" $program --config "$dir"
    refused 64 "odd.conf:1|nonsense" $program --config "$dir/odd.conf"
done

note "fleet"
keys_up
refused 69 "$url" timeout 60 "$kvfleet_bin" status --coordinator "$url" --keys "$dir/keys" --timeout 2s
refused 75 "database" "$coordinator_bin" --bind "$url" --keys "$dir/keys" --db "host=$dir/nowhere dbname=kvfleet" --db-wait 1s --log-level error
# what else is wrong is said without a database
refused 78 "coordinator.secret" "$coordinator_bin" --bind "$url" --keys "$dir/no-keys" --db "host=$dir/nowhere dbname=kvfleet" --db-wait 1s --log-level error
refused 64 "nonsense" "$coordinator_bin" --bind nonsense --keys "$dir/keys" --db "host=$dir/nowhere dbname=kvfleet" --db-wait 1s --log-level error
database_up
coordinator_up
refused 78 "$url|in use" "$coordinator_bin" --bind "$url" --keys "$dir/keys" --db "host=$dir/nowhere dbname=kvfleet" --db-wait 1s --log-level error
refused 70 "cannot write the output" full status --json --coordinator "$url" --keys "$dir/keys"
refused 78 "another coordinator" "$coordinator_bin" --bind "tcp://127.0.0.1:$((port + 1))" --keys "$dir/keys" --db "$(conninfo kvfleet_coordinator)" --log-level error
deploy="$KVF_SOURCE/deploy/pgcluster"
"$deploy" start "$dir/pg2" && "$KVF_SOURCE/deploy/migrate" "$("$deploy" conninfo "$dir/pg2")" >/dev/null
"$psql_bin" -XAtq "$("$deploy" conninfo "$dir/pg2")" -c "INSERT INTO schema_migrations VALUES (99, '0099_later.sql', '')"
refused 78 "99|newer" "$coordinator_bin" --bind "tcp://127.0.0.1:$((port + 1))" --keys "$dir/keys" --db "$("$deploy" conninfo "$dir/pg2" kvfleet_coordinator)" --log-level error
"$deploy" stop "$dir/pg2" immediate
"$kvfleet_bin" keys make-coordinator --keys "$dir/strange" >/dev/null
"$kvfleet_bin" keys make client --role client --keys "$dir/strange" >/dev/null
cp "$dir/keys/coordinator.public" "$dir/strange/"
refused 77 "key" timeout 60 "$kvfleet_bin" status --coordinator "$url" --keys "$dir/strange" --timeout 10s
refused 64 "12345" kv results --job 12345
refused 64 "12345" kv watch 12345
refused 64 "12345|no such job" kv cancel 12345
[ $bad -eq 0 ]
