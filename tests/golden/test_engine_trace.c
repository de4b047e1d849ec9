/* 700 decode steps of golden/compress/trace.jsonl through the page cache: the same entries stay at every compaction,
 * and the keys and values read back are those that were put, bit by bit. Every policy of ours, every kernel set that
 * this machine runs. */
#include <check.h>
#include <inttypes.h>

#include "alloc/plan.h"
#include "engine/cpu/ops.h"
#include "engine/kv/kv.h"
#include "tests/golden/golden.h"

#define LAYERS      2
#define HEADS       3
#define GROUP       2
#define DIM         16
#define STEPS       700
#define WINDOW      8
#define BUDGET      48
#define INTERVAL    32
#define QUERY_HEADS (HEADS * GROUP)

static json_t *lines; /* [0]: parameters; then one a policy and compaction */

static const struct traced {
    const char *name;   /* in the trace */
    const char *preset; /* as users spell it */
} traced[] = {
    {"snapkv", "snapkv"},
    {"rkv", "rkv"},
    {"streaming", "streaming"},
    {"reasonalloc_raw", "reasonalloc"},
    {"reasonalloc_relative", "reasonalloc-relative"},
    {"pyramid_rkv", "pyramid-rkv"},
};

/* ---- the generator of the README ---- */

static float keys[STEPS][LAYERS][HEADS][DIM], values[STEPS][LAYERS][HEADS][DIM],
    queries[STEPS][LAYERS][QUERY_HEADS][DIM];

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t hash(uint64_t tag, uint64_t l, uint64_t h, uint64_t t, uint64_t i)
{
    const uint64_t parts[] = {tag, l, h, t, i};
    uint64_t x = strtoull(golden_text(json_array_get(lines, 0), "seed"), NULL, 10);
    for (int p = 0; p < 5; p++) x = mix(x + 0x9E3779B97F4A7C15u * (parts[p] + 1));
    return x;
}

static int noise_of(int tag, int l, int h, uint64_t t, int i)
{
    uint64_t x = hash((uint64_t)tag, (uint64_t)l, (uint64_t)h, t, (uint64_t)i);
    return (int16_t)x + (int16_t)(x >> 16) + (int16_t)(x >> 32) + (int16_t)(x >> 48);
}

static int table_at(const char *name, int l, int h)
{
    return (int)json_integer_value(
        json_array_get(json_array_get(json_object_get(json_array_get(lines, 0), name), (size_t)l), (size_t)h));
}

static float key_at(int l, int h, int t, int i)
{
    if (t < 2) return (float)(6 * noise_of(2, l, h, 1000, i) + noise_of(3, l, h, (uint64_t)t, i)) / 262144.0f;
    uint64_t cluster = hash(1, (uint64_t)l, (uint64_t)h, (uint64_t)t / 5, 0) % (uint64_t)table_at("ncl", l, h);
    return (float)(4 * noise_of(2, l, h, cluster, i) + table_at("noise", l, h) * noise_of(3, l, h, (uint64_t)t, i)) /
           262144.0f;
}

static float query_at(int l, int q, int t, int i)
{
    int h = q / GROUP;
    uint64_t cluster = hash(4, (uint64_t)l, (uint64_t)q, (uint64_t)t / 24, 0) % (uint64_t)table_at("ncl", l, h);
    return (float)(8 * noise_of(2, l, h, cluster, i) + 6 * noise_of(5, l, q, (uint64_t)t, i) +
                   4 * noise_of(2, l, h, 1000, i)) /
           262144.0f;
}

static void generate(void)
{
    for (int t = 0; t < STEPS; t++) {
        for (int l = 0; l < LAYERS; l++) {
            for (int i = 0; i < DIM; i++) {
                for (int h = 0; h < HEADS; h++) {
                    keys[t][l][h][i] = key_at(l, h, t, i);
                    values[t][l][h][i] = (float)noise_of(6, l, h, (uint64_t)t, i) / 131072.0f;
                }
                for (int q = 0; q < QUERY_HEADS; q++) queries[t][l][q][i] = query_at(l, q, t, i);
            }
        }
    }
}

/* ---- FNV-1a 64 ---- */

static uint64_t fnv_add(uint64_t fnv, const float *row)
{
    unsigned char bytes[DIM * sizeof *row];
    memcpy(bytes, row, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) fnv = (fnv ^ bytes[i]) * 0x100000001b3u;
    return fnv;
}

#define FNV_START 0xcbf29ce484222325u

static void fnv_assert(uint64_t fnv, const char *expected, const char *what)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, fnv);
    ck_assert_msg(strcmp(text, expected) == 0, "%s: fnv expected %s, got %s", what, expected, text);
}

START_TEST(generator_gives_the_three_hashes)
{
    const json_t *expected = json_object_get(json_array_get(lines, 0), "fnv_all");
    uint64_t k = FNV_START, v = FNV_START, q = FNV_START;
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < HEADS; h++) {
            for (int t = 0; t < STEPS; t++) {
                k = fnv_add(k, keys[t][l][h]);
                v = fnv_add(v, values[t][l][h]);
            }
        }
        for (int h = 0; h < QUERY_HEADS; h++) {
            for (int t = 0; t < STEPS; t++) q = fnv_add(q, queries[t][l][h]);
        }
    }
    fnv_assert(k, golden_text(expected, "K"), "K");
    fnv_assert(v, golden_text(expected, "V"), "V");
    fnv_assert(q, golden_text(expected, "Q"), "Q");
}
END_TEST

/* ---- the trace ---- */

static void plan_build(const struct policy *policy, int64_t *layer_budget)
{
    const json_t *head = json_array_get(lines, 0);
    struct wave_profile profile = {.layers = LAYERS, .kv_heads = HEADS, .window_tokens = WINDOW, .rho = 0.93};
    struct kvf_err err = {""};
    for (int l = 0; l < LAYERS; l++) {
        profile.demand[l] = json_number_value(json_array_get(json_object_get(head, "D"), (size_t)l));
    }
    int rc = layer_plan_build(policy, &profile, LAYERS, HEADS, BUDGET, layer_budget, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    for (int l = 0; l < LAYERS; l++) {
        json_int_t wave =
            json_integer_value(json_array_get(json_object_get(json_object_get(head, "layer_plan"), "B"), (size_t)l));
        if (policy->plan != PLAN_PYRAMID)
            ck_assert_int_eq(layer_budget[l], policy->plan == PLAN_WAVE ? wave : HEADS * BUDGET);
    }
}

/* The line of one policy's compaction after step t, or NULL. */
static const json_t *line_of(const char *policy, int t)
{
    for (size_t i = 1; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (golden_int(line, "t") == t && strcmp(golden_text(line, "policy"), policy) == 0) return line;
    }
    return NULL;
}

static void cache_compare(const struct kv_pool *pool, const struct kv_seq *seq, const json_t *line)
{
    static float k[STEPS][DIM], v[STEPS][DIM];
    static int32_t positions[STEPS];
    char what[128];
    uint64_t fnv = FNV_START;
    int64_t entries = 0;
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < HEADS; h++) {
            const json_t *kept = json_array_get(json_array_get(json_object_get(line, "kept"), (size_t)l), (size_t)h);
            snprintf(what, sizeof what, "%s t=%d layer %d head %d", golden_text(line, "policy"), golden_int(line, "t"),
                     l, h);
            int count = kv_head(pool, seq, l, h).entries;
            ck_assert_msg(count == (int)json_array_size(kept), "%s: expected %zu entries, got %d", what,
                          json_array_size(kept), count);
            kv_read_head(pool, seq, l, h, k[0], v[0], positions);
            for (int e = 0; e < count; e++) {
                int expected = (int)json_integer_value(json_array_get(kept, (size_t)e));
                ck_assert_msg(positions[e] == expected, "%s entry %d: expected position %d, got %d", what, e, expected,
                              positions[e]);
                fnv = fnv_add(fnv_add(fnv, k[e]), v[e]);
            }
            entries += count;
        }
    }
    fnv_assert(fnv, golden_text(line, "fnv_cache"), what);
    ck_assert_int_eq(entries, kv_seq_entries(seq));
}

static void trace_run(const struct traced *run, const struct compact_kernels *kernels)
{
    struct kvf_err err = {""};
    struct policy policy;
    int64_t layer_budget[LAYERS];
    ck_assert_msg(policy_parse(run->preset, &policy, &err) == 0, "%s", err.text);
    plan_build(&policy, layer_budget);

    /* No more pages than admission by budget sets aside for one such sequence: budget + interval entries a head. */
    const struct kv_shape shape = {LAYERS, HEADS, GROUP, DIM, WINDOW, STEPS, 1, 0, 1};
    const int64_t page_bytes = KV_PAGE_ENTRIES * (2 * DIM + 1) * (int64_t)sizeof(float);
    const int64_t pages = LAYERS * HEADS * (BUDGET + INTERVAL + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES;
    struct kv_pool *pool;
    struct kv_seq *seq;
    ck_assert_msg(kv_pool_new(&shape, pages * page_bytes, &pool, &err) == 0, "%s", err.text);
    ck_assert_int_eq(kv_pages_needed(pool, BUDGET + INTERVAL), pages);
    ck_assert_int_eq(kv_seq_open(pool, &policy, &seq, &err), 0);

    const struct kv_schedule schedule = {0, BUDGET, INTERVAL};
    size_t compactions = 0;
    int64_t evicted = 0;
    for (int t = 0; t < STEPS; t++) {
        ck_assert_msg(kv_reserve(pool, seq, 1) == 0, "%s t=%d: out of pages", run->name, t);
        for (int l = 0; l < LAYERS; l++) {
            kv_put(pool, seq, l, 1, t, keys[t][l][0], values[t][l][0], queries[t][l][0]);
        }
        const json_t *line = line_of(run->name, t);
        int due = kv_compaction_due(seq, &policy, &schedule);
        ck_assert_msg(due == (line != NULL), "%s t=%d: compaction due: expected %d, got %d", run->name, t, line != NULL,
                      due);
        if (!due) continue;
        struct kv_due now = {.seq = seq, .policy = &policy, .layer_budget = layer_budget};
        kv_compact(pool, &now, 1, kernels, NULL);
        ck_assert_msg(now.rc == 0, "%s", now.err.text);
        cache_compare(pool, seq, line);
        ck_assert_msg(kv_check(pool, &err) == 0, "%s", err.text);
        ck_assert_int_eq(now.stats.kept_entries, kv_seq_entries(seq));
        compactions++;
        evicted += now.stats.evicted_entries;
    }
    ck_assert_uint_eq(compactions, (STEPS - BUDGET) / INTERVAL);
    ck_assert_int_eq(evicted + kv_seq_entries(seq), (int64_t)STEPS * LAYERS * HEADS);

    kv_seq_close(pool, &seq);
    ck_assert_int_eq(kv_pool_free_pages(pool), pages);
    ck_assert_msg(kv_check(pool, &err) == 0, "%s", err.text);
    kv_pool_destroy(&pool);
}

START_TEST(trace_with_plain_kernels)
{
    trace_run(&traced[_i], NULL);
}
END_TEST

START_TEST(trace_with_every_kernel_set)
{
    for (int set = 0; cpu_ops_at(set) != NULL; set++) {
        const struct cpu_ops *ops = cpu_ops_at(set);
        trace_run(&traced[_i], &ops->compact);
    }
}
END_TEST

int main(void)
{
    lines = golden_lines(golden_path("compress/trace.jsonl"));
    generate();
    printf("trace: policy rkv_reference_order of the reference is not built here: not compared\n");

    int policies = (int)(sizeof traced / sizeof *traced);
    Suite *suite = suite_create("engine trace");
    TCase *tc = tcase_create("trace");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, generator_gives_the_three_hashes);
    tcase_add_loop_test(tc, trace_with_plain_kernels, 0, policies);
    tcase_add_loop_test(tc, trace_with_every_kernel_set, 0, policies);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    json_decref(lines);
    return failed != 0;
}
