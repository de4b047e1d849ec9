#!/usr/bin/env bash
# generate --kv-map and --plot: map and text apart, sums that are the budget, a picture that parses, what is refused.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
prompt="mod 10: p=n-9; q=h-5; n=8; h=c-5; w=3; c=w*9; e=2. Find w,h,c,q,p."
profile=$KVF_SOURCE/tests/wave-profile.json
generate() { "$kvfleet_bin" generate --model "$KVF_SOURCE/models/tiny-reasoner" --profile "$profile" "$@" </dev/null; }
kept() { generate --policy reasonalloc --budget 64 --interval 32 --max-new-tokens 500 "$@" "$prompt"; }

note "text on stdout, figures and map on stderr"
kept >"$dir/plain" 2>"$dir/plain.err"
kept --kv-map --plot "$dir/map.svg" >"$dir/mapped" 2>"$dir/mapped.err"
cmp "$dir/plain" "$dir/mapped" || fail "the map changed the text"
timeless() { grep -v '^time to\|^decode'; }
diff <(timeless <"$dir/plain.err") <(head -n "$(wc -l <"$dir/plain.err")" "$dir/mapped.err" | timeless) || fail "the figures differ"
grep -q "budget 64 x 8 layers x 3 heads = 1536 entries; after every compaction 1536" "$dir/mapped.err" || fail "no budget line"
[ "$(grep -cE '^ +([0-9]+ +)?[0-9]+  [ .:=+*#%@-]+ +[0-9]+ +[0-9]+\.[0-9] +[0-9]+$' "$dir/mapped.err")" -ge 24 ] || fail "expected 24 rows"
! grep -q $'\033' "$dir/mapped.err" || fail "escape sequences in a pipe"
awk 'length > 80 {exit 1}' <(sed '1,/^$/d' "$dir/mapped.err") || fail "a line is wider than 80 columns"

note "JSON: every point, sums, the same tokens"
kept --json >"$dir/plain.json"
kept --json --kv-map --plot "$dir/json.svg" >"$dir/map.json" 2>"$dir/json.err"
[ ! -s "$dir/json.err" ] || fail "stderr of --json is not empty"
cmp "$dir/map.svg" "$dir/json.svg" || fail "two plots of one run differ"
python3 - "$dir/plain.json" "$dir/map.json" "$dir/map.svg" <<'PY'
import json, sys, xml.etree.ElementTree as tree
plain, mapped = (json.load(open(path)) for path in sys.argv[1:3])
assert "kv_map" not in plain and plain["output_hash"] == mapped["output_hash"]
kv = mapped["kv_map"]
assert len(kv["tokens"]) == len(kv["after"]) == len(kv["entries"]) == 2 + 2 * mapped["compactions"]
assert kv["after"].count(True) == mapped["compactions"] > 5
sums = [sum(map(sum, point)) for point in kv["entries"]]
for tokens, after, total, point in zip(kv["tokens"], kv["after"], sums, kv["entries"]):
    assert len(point) == 8 and all(len(heads) == 3 for heads in point)
    assert not after or total == 8 * 3 * 64, (tokens, total)
assert sums[0] == 24 * mapped["prompt_tokens"] == 24 * kv["tokens"][0]
assert any(len({n for heads in point for n in heads}) > 1 for point in kv["entries"]), "reasonalloc gives all heads the same"
svg = tree.parse(sys.argv[3]).getroot()
ns = "{http://www.w3.org/2000/svg}"
cells = [rect for rect in svg.iter(ns + "rect") if rect.get("class") == "cell"]
# one from the prompt on (70 tokens, first compaction at 96), one a compaction
assert len(cells) == 24 * (1 + mapped["compactions"]), (len(cells), mapped["compactions"])
assert len({rect.get("fill") for rect in cells}) > 10
lines = [line.get("class") for line in svg.iter(ns + "polyline")]
assert sorted(lines) == ["full", "live"], lines
text = " ".join("".join(t.itertext()) for t in svg.iter(ns + "text"))
for words in ("tiny-reasoner: reasonalloc", "budget 64 entries a head, interval 32 tokens", "tokens seen", "cache, MiB"):
    assert words in text, words
PY

note "rows"
kept --kv-map --kv-map-rows layers >/dev/null 2>"$dir/layers.err"
grep -q "entries of a layer" "$dir/layers.err" || fail "no rows of layers"

note "every preset runs, or says in one line why not"
while read -r policy; do
    code=0
    generate --policy "$policy" --budget 64 --interval 32 --max-new-tokens 40 --json --kv-map "$prompt" >"$dir/preset.json" 2>"$dir/preset.err" || code=$?
    case $code in
    0) python3 -c 'import json,sys; assert len(json.load(sys.stdin)["kv_map"]["tokens"]) >= 2' <"$dir/preset.json" || fail "$policy: no map" ;;
    64) [ "$(wc -l <"$dir/preset.err")" -eq 1 ] && grep -qF "$policy" "$dir/preset.err" || fail "$policy: $(cat "$dir/preset.err")" ;;
    *) fail "$policy: exit $code: $(cat "$dir/preset.err")" ;;
    esac
done < <("$kvfleet_bin" policies --json | python3 -c 'import json,sys; [print(p["name"]) for p in json.load(sys.stdin)["presets"]]')

note "refused before a token is decoded"
refused() { # WORDS COMMAND...
    local words=$1 code=0
    shift
    "$@" >"$dir/out" 2>"$dir/err" || code=$?
    [ $code -eq 64 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && [ ! -s "$dir/out" ] && grep -qF -- "$words" "$dir/err" ||
        fail "exit $code, expected 64 and one line with '$words': $(cat "$dir/err")"
}
refused "$dir/nowhere/map.svg: cannot write the plot: No such file" kept --plot "$dir/nowhere/map.svg"
mkdir "$dir/folder.svg"
refused "it is a folder" kept --plot "$dir/folder.svg"
refused "SVG is what is written" kept --plot "$dir/map.png"
refused "SVG is what is written" kept --plot "$dir/map"
refused "expected auto, heads or layers, got 'x'" kept --kv-map --kv-map-rows x
refused "with it" kept --kv-map-rows heads
echo old >"$dir/old.svg"
refused "budget" generate --policy rkv --budget 3 --plot "$dir/old.svg" "$prompt"
[ "$(cat "$dir/old.svg")" = old ] || fail "a refused run changed the plot that was there"
[ "$(ls "$dir" | grep -c 'svg\.')" = 0 ] || fail "temporary files stay behind: $(ls "$dir")"
