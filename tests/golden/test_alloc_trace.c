/* The 700-step trace of golden/compress replayed on alloc/ alone: every kept entry of every compaction, and the hash of
 * the keys and values that stay. The generated inputs are checked against the hashes of the reference first. */
#include <check.h>
#include <inttypes.h>

#include "alloc/compact.h"
#include "alloc/plan.h"
#include "tests/golden/golden.h"

enum { LAYERS = 2, HEADS = 3, GROUP = 2, DIM = 16, STEPS = 700, WINDOW = 8, BUDGET = 48, INTERVAL = 32, MOST = 512 };

static json_t *rows;
static float key_of[LAYERS][HEADS][STEPS][DIM], value_of[LAYERS][HEADS][STEPS][DIM];
static float query_of[LAYERS][HEADS * GROUP][STEPS][DIM];

/* ---- the generator of the README: integers, then one division by a power of two ---- */

static uint64_t seed;

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static uint64_t hash_of(uint64_t tag, uint64_t l, uint64_t h, uint64_t t, uint64_t i)
{
    const uint64_t parts[] = {tag, l, h, t, i};
    uint64_t x = seed;
    for (int k = 0; k < 5; k++) x = mix(x + UINT64_C(0x9E3779B97F4A7C15) * (parts[k] + 1));
    return x;
}

static int gauss(uint64_t tag, uint64_t l, uint64_t h, uint64_t t, uint64_t i)
{
    uint64_t bits = hash_of(tag, l, h, t, i);
    int sum = 0;
    for (int k = 0; k < 64; k += 16) sum += (int16_t)(uint16_t)(bits >> k);
    return sum;
}

static uint64_t fnv(uint64_t state, const void *data, size_t len)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < len; i++) state = (state ^ bytes[i]) * UINT64_C(1099511628211);
    return state;
}
#define FNV_START UINT64_C(14695981039346656037)

static void inputs_generate(void)
{
    static const uint64_t clusters[LAYERS][HEADS] = {{3, 12, 40}, {2, 24, 6}};
    static const int noise[LAYERS][HEADS] = {{1, 2, 3}, {1, 3, 2}};
    seed = strtoull(golden_text(json_array_get(rows, 0), "seed"), NULL, 10);
    for (uint64_t l = 0; l < LAYERS; l++)
        for (uint64_t t = 0; t < STEPS; t++)
            for (uint64_t i = 0; i < DIM; i++) {
                for (uint64_t h = 0; h < HEADS; h++) {
                    int k = t < 2 ? 6 * gauss(2, l, h, 1000, i) + gauss(3, l, h, t, i)
                                  : 4 * gauss(2, l, h, hash_of(1, l, h, t / 5, 0) % clusters[l][h], i) +
                                        noise[l][h] * gauss(3, l, h, t, i);
                    key_of[l][h][t][i] = (float)k / 262144.0f;
                    value_of[l][h][t][i] = (float)gauss(6, l, h, t, i) / 131072.0f;
                }
                for (uint64_t q = 0; q < HEADS * GROUP; q++) {
                    uint64_t h = q / GROUP;
                    int sum = 8 * gauss(2, l, h, hash_of(4, l, q, t / 24, 0) % clusters[l][h], i) +
                              6 * gauss(5, l, q, t, i) + 4 * gauss(2, l, h, 1000, i);
                    query_of[l][q][t][i] = (float)sum / 262144.0f;
                }
            }
}

static void hash_expect(uint64_t got, const json_t *object, const char *key, const char *what)
{
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, got);
    ck_assert_msg(strcmp(text, golden_text(object, key)) == 0, "%s: hash %s, expected %s", what, text,
                  golden_text(object, key));
}

START_TEST(inputs_equal_reference)
{
    const json_t *hashes = json_object_get(json_array_get(rows, 0), "fnv_all");
    hash_expect(fnv(FNV_START, key_of, sizeof key_of), hashes, "K", "keys");
    hash_expect(fnv(FNV_START, value_of, sizeof value_of), hashes, "V", "values");
    hash_expect(fnv(FNV_START, query_of, sizeof query_of), hashes, "Q", "queries");
}
END_TEST

/* ---- the replay ---- */

struct head_cache {
    int n;
    int32_t position[MOST];
    float key[MOST][DIM];
};
static struct head_cache cache[LAYERS][HEADS];

static void layer_compact(const struct policy *policy, int l, int t, int64_t layer_budget, struct compact_work *work)
{
    static float queries[WINDOW][HEADS * GROUP][DIM];
    const float *keys[HEADS];
    const int32_t *positions[HEADS], *kept[HEADS];
    int entries[HEADS], count[HEADS], noop;
    for (int w = 0; w < WINDOW; w++)
        for (int q = 0; q < HEADS * GROUP; q++)
            memcpy(queries[w][q], query_of[l][q][t - WINDOW + 1 + w], sizeof queries[w][q]);
    for (int h = 0; h < HEADS; h++) {
        keys[h] = cache[l][h].key[0];
        positions[h] = cache[l][h].position;
        entries[h] = cache[l][h].n;
    }
    struct compact_input input = {.kv_heads = HEADS,
                                  .group = GROUP,
                                  .head_dim = DIM,
                                  .keys = keys,
                                  .positions = positions,
                                  .entries = entries,
                                  .queries = queries[0][0],
                                  .query_rows = WINDOW,
                                  .layer_budget = layer_budget};
    struct kvf_err err = {.text = ""};
    int rc = compact_layer(policy, &input, NULL, work, kept, count, &noop, &err);
    ck_assert_msg(rc == KVF_OK, "t %d layer %d: %s", t, l, err.text);
    for (int h = 0; h < HEADS && !noop; h++) {
        struct head_cache *head = &cache[l][h];
        for (int k = 0; k < count[h]; k++) {
            head->position[k] = head->position[kept[h][k]];
            memmove(head->key[k], head->key[kept[h][k]], sizeof head->key[k]);
        }
        head->n = count[h];
    }
}

static void compaction_expect(const json_t *row, int t)
{
    char what[96];
    uint64_t hash = FNV_START;
    ck_assert_int_eq(golden_int(row, "t"), t);
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++) {
            const json_t *want = json_array_get(json_array_get(json_object_get(row, "kept"), (size_t)l), (size_t)h);
            const struct head_cache *head = &cache[l][h];
            ck_assert_msg(head->n == (int)json_array_size(want), "%s t %d layer %d head %d: %d entries, expected %zu",
                          golden_text(row, "policy"), t, l, h, head->n, json_array_size(want));
            for (int k = 0; k < head->n; k++) {
                int64_t position = json_integer_value(json_array_get(want, (size_t)k));
                ck_assert_msg(head->position[k] == position, "%s t %d layer %d head %d: position %d, expected %" PRId64,
                              golden_text(row, "policy"), t, l, h, head->position[k], position);
                hash = fnv(hash, head->key[k], sizeof head->key[k]);
                hash = fnv(hash, value_of[l][h][position], sizeof value_of[l][h][position]);
            }
        }
    snprintf(what, sizeof what, "%s t %d: cache", golden_text(row, "policy"), t);
    hash_expect(hash, row, "fnv_cache", what);
}

static void trace_replay(const char *reference, const char *preset)
{
    const json_t *params = json_array_get(rows, 0);
    struct policy policy;
    ck_assert_int_eq(policy_parse(preset, &policy, NULL), KVF_OK);
    struct wave_profile profile = {.layers = LAYERS, .kv_heads = HEADS};
    for (size_t l = 0; l < LAYERS; l++)
        profile.demand[l] = golden_number(json_array_get(json_object_get(params, "D"), l));
    int64_t layer_budget[LAYERS];
    struct kvf_err err = {.text = ""};
    ck_assert_int_eq(layer_plan_build(&policy, &profile, LAYERS, HEADS, BUDGET, layer_budget, &err), KVF_OK);
    if (policy.plan == PLAN_WAVE)
        for (size_t l = 0; l < LAYERS; l++)
            ck_assert_int_eq(layer_budget[l], json_integer_value(json_array_get(
                                                  json_object_get(json_object_get(params, "layer_plan"), "B"), l)));
    if (policy.plan == PLAN_PYRAMID) ck_assert(layer_budget[0] == 261 && layer_budget[1] == 27);
    struct compact_work *work = compact_work_new(HEADS, GROUP, DIM, WINDOW, MOST);
    size_t row = 1;
    int compactions = 0;
    memset(cache, 0, sizeof cache);
    for (int t = 0; t < STEPS; t++) {
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++) {
                struct head_cache *head = &cache[l][h];
                ck_assert_int_lt(head->n, MOST);
                head->position[head->n] = t;
                memcpy(head->key[head->n++], key_of[l][h][t], sizeof head->key[0]);
            }
        if (t + 1 < BUDGET + INTERVAL || (t + 1 - BUDGET) % INTERVAL != 0) continue;
        for (int l = 0; l < LAYERS; l++) layer_compact(&policy, l, t, layer_budget[l], work);
        while (row < json_array_size(rows) && strcmp(golden_text(json_array_get(rows, row), "policy"), reference) != 0)
            row++;
        ck_assert_msg(row < json_array_size(rows), "%s: no more compactions in the reference", reference);
        compaction_expect(json_array_get(rows, row++), t);
        compactions++;
    }
    ck_assert_int_eq(compactions, 20);
    compact_work_destroy(&work);
}

static const struct {
    const char *reference, *preset;
} replays[] = {
    {"rkv", "rkv"},
    {"snapkv", "snapkv"},
    {"streaming", "streaming"},
    {"reasonalloc_raw", "reasonalloc"},
    {"reasonalloc_relative", "reasonalloc-relative"},
    {"pyramid_rkv", "pyramid-rkv"},
};

START_TEST(trace_equals_reference)
{
    trace_replay(replays[_i].reference, replays[_i].preset);
}
END_TEST

int main(void)
{
    rows = golden_lines(golden_path("compress/trace.jsonl"));
    inputs_generate();
    printf("trace: not compared: rkv_reference_order, which keeps entries in the order of their scores\n");
    Suite *suite = suite_create("trace");
    TCase *tc = tcase_create("golden");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, inputs_equal_reference);
    tcase_add_loop_test(tc, trace_equals_reference, 0, (int)(sizeof replays / sizeof replays[0]));
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    json_decref(rows);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
