/* Admission by budget: however policy, scores, shapes and prompts fall, the pages of a sequence never exceed
 * kv_pages_needed(kv_entries_bound). The pool has exactly that many, so that one more is refused.
 *
 * Keys, queries and values are random or hostile: one head's scores above all others', heads that take turns, all
 * entries alike, attention that is all on one entry. */
#include <math.h>
#include "alloc/plan.h"
#include "tests/unit/kv_fixture.h"
#include "tests/unit/random.h"

enum { TAME, ONE_HEAD, TURNS, EQUAL, ONE_ENTRY, KINDS };

static const char *const policies[] = {
    "streaming",
    "rkv",
    "head-only",
    "head-only-relative:mu=0,beta=8",
    "head-only:utility=mass,mu=0",
    "reasonalloc:mu=0,smooth=0.5,gamma=8,clip-low=0,clip-high=1024",
    "ada-rkv:alpha=0",
    "ada-snapkv:floor=protect,alpha=0",
    "dynamic:mu=0,gamma=8,clip-low=0,clip-high=1024,ema=0.5",
    "cake",
    "vatp+dynamic+reasonalloc:mu=0",
    "lava+cake+ada:alpha=0",
    "pyramid-rkv:pyramid-beta=50",
    "snapkv+wave+reasonalloc:mu=0,prompt=at-prefill",
    "dynamic:mu=0,prompt=at-prefill",
    "h2o+cake",
    "tova",
    "random:prompt=at-prefill,sinks=1",
};
#define POLICIES ((int)(sizeof policies / sizeof *policies))

static float noise(void)
{
    return (float)(next_bits() >> 40) * 0x1p-23f - 1.0f;
}

static void rows_make(int kind, const struct kv_shape *shape, int layer, int position, float *key, float *value,
                      float *query)
{
    int heads = shape->kv_heads, dim = shape->head_dim, width = heads * shape->group * dim;
    for (int i = 0; i < heads * dim; i++) {
        int head = i / dim;
        float scale = 1.0f;
        if (kind == ONE_HEAD) scale = head == layer % heads ? 30.0f : 1e-3f;
        if (kind == TURNS) scale = head == position / 20 % heads ? 20.0f : 0.1f;
        key[i] = kind == EQUAL ? 0.25f : scale * noise();
        value[i] = kind == EQUAL ? 1.0f : scale * noise();
        if (kind == ONE_ENTRY) key[i] = position % 37 == 3 ? 40.0f : noise();
    }
    for (int i = 0; i < width; i++) query[i] = kind == EQUAL || kind == ONE_ENTRY ? 0.5f : 3.0f * noise();
}

static void tokens_put(struct kv_pool *pool, const struct kv_shape *shape, struct kv_seq *seq, int kind, int tokens)
{
    static float key[64], value[64], query[256];
    for (int t = 0; t < tokens; t++) {
        int position = kv_tokens_seen(seq);
        for (int l = 0; l < shape->layers; l++) {
            rows_make(kind, shape, l, position, key, value, query);
            kv_put(pool, seq, l, 1, position, key, value, query);
            for (int h = 0; h < shape->kv_heads; h++) { /* as attention would, after a fashion */
                struct kv_view view = kv_head(pool, seq, l, h);
                for (int e = 0; view.mass != NULL && e < view.entries; e++) view.mass[e] += fabsf(noise());
            }
        }
    }
}

/* One sequence; returns its compactions. *fullest: the largest share of the bound that it used. */
static int sequence_run(const char *name, int kind, double *fullest)
{
    struct kvf_err err = {""};
    struct policy policy;
    ck_assert_msg(policy_parse(name, &policy, &err) == 0, "%s", err.text);
    const struct kv_shape shape = {.layers = next_int(1, 5),
                                   .kv_heads = next_int(1, 4),
                                   .group = next_int(1, 2),
                                   .head_dim = 8,
                                   .window_tokens = 8,
                                   .max_entries = 640,
                                   .max_sequences = 1,
                                   .half = next_int(0, 1)};
    struct wave_profile profile = {.layers = shape.layers, .kv_heads = shape.kv_heads, .window_tokens = 8, .rho = 0.9};
    for (int l = 0; l < shape.layers; l++) profile.demand[l] = l == shape.layers / 2 ? 1000.0 : 1e-3;
    const struct kv_schedule schedule = {next_int(1, 150), next_int(14, 90), next_int(1, 50)};
    int64_t layer_budget[5];
    int rc =
        layer_plan_build(&policy, &profile, shape.layers, shape.kv_heads, schedule.budget_tokens, layer_budget, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    double memory[5 + 5 * 4] = {0};
    int length = schedule.prompt_tokens + next_int(1, 400), compactions = 0;

    /* The largest pool that could be needed tells the bound; then one of just that size. */
    struct kv_pool *pool = fixture_pool(&shape, 20 * 40);
    int64_t pages = kv_pages_needed(pool, kv_entries_bound(&policy, &schedule, length));
    kv_pool_destroy(&pool);
    pool = fixture_pool(&shape, pages);
    struct kv_seq *seq;
    ck_assert_int_eq(kv_pool_prepare(pool, &policy, &err), 0);
    ck_assert_int_eq(kv_seq_open(pool, &policy, &seq, &err), 0);
    while (kv_tokens_seen(seq) < length) {
        int tokens = kv_tokens_seen(seq) == 0 ? schedule.prompt_tokens : 1;
        ck_assert_msg(kv_reserve(pool, seq, tokens) == 0, "%s: %d tokens do not fit in %d pages", name,
                      kv_tokens_seen(seq) + tokens, (int)pages);
        tokens_put(pool, &shape, seq, kind, tokens);
        if (!kv_compaction_due(seq, &policy, &schedule)) continue;
        struct kv_due due = {.seq = seq,
                             .policy = &policy,
                             .layer_budget = layer_budget,
                             .budget_tokens = schedule.budget_tokens,
                             .memory = memory};
        kv_compact(pool, &due, 1, NULL, NULL);
        ck_assert_msg(due.rc == 0, "%s", due.err.text);
        ck_assert_int_le(kv_seq_entries(seq), (int64_t)shape.layers * shape.kv_heads * schedule.budget_tokens);
        compactions++;
    }
    double share = (double)kv_pool_peak_pages(pool) / (double)pages;
    if (share > *fullest) *fullest = share;
    fixture_check(pool);
    kv_pool_destroy(&pool);
    return compactions;
}

START_TEST(pages_stay_within_the_bound)
{
    int compactions = 0;
    double fullest = 0;
    state = 4711 + (uint64_t)_i;
    for (int i = 0; i < 30; i++) compactions += sequence_run(policies[_i], i % KINDS, &fullest);
    ck_assert_int_gt(compactions, 30);
    ck_assert_double_gt(fullest, 0.8); /* the bound is not loose */
    ck_assert_double_le(fullest, 1.0);
}
END_TEST

START_TEST(bound_of_a_schedule)
{
    const struct {
        const char *name;
        int prompt, budget, interval, longest, bound;
    } rows[] = {
        {"rkv", 10, 100, 30, 1000, 130},
        {"rkv", 100, 100, 30, 1000, 130},
        {"rkv", 101, 100, 30, 1000, 131},
        {"rkv", 500, 100, 30, 1000, 530},
        {"rkv", 500, 100, 30, 520, 520},
        {"rkv:prompt=at-prefill", 101, 100, 30, 1000, 130},
        {"rkv:prompt=at-prefill", 500, 100, 30, 1000, 500},
        {"rkv:stop-after-think=1", 10, 100, 30, 1000, 1000},
        {"full", 10, 100, 30, 1000, 1000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct policy policy;
        const struct kv_schedule schedule = {rows[i].prompt, rows[i].budget, rows[i].interval};
        ck_assert_int_eq(policy_parse(rows[i].name, &policy, NULL), 0);
        ck_assert_int_eq(kv_entries_bound(&policy, &schedule, rows[i].longest), rows[i].bound);
    }
}
END_TEST

/* A score that is no number is an error of its layer. */
START_TEST(refusal_names_the_layer)
{
    static const char *const names[] = {"rkv", "dynamic"};
    const struct kv_shape shape = {.layers = 4,
                                   .kv_heads = 2,
                                   .group = 1,
                                   .head_dim = 8,
                                   .window_tokens = 8,
                                   .max_entries = 100,
                                   .max_sequences = 1};
    const int64_t layer_budget[4] = {40, 40, 40, 40};
    static float key[16], value[16], query[16];
    struct policy policy;
    ck_assert_int_eq(policy_parse(names[_i], &policy, NULL), 0);
    struct kv_pool *pool = fixture_pool(&shape, 4 * 2 * 7);
    struct kv_seq *seq = fixture_open(pool);
    state = 7;
    ck_assert_int_eq(kv_reserve(pool, seq, 60), 0);
    for (int t = 0; t < 60; t++) {
        for (int l = 0; l < 4; l++) {
            rows_make(TAME, &shape, l, t, key, value, query);
            if (l == 2 && t == 30) key[9] = NAN;
            kv_put(pool, seq, l, 1, t, key, value, query);
        }
    }
    struct kv_due due = {.seq = seq, .policy = &policy, .layer_budget = layer_budget, .budget_tokens = 20};
    kv_compact(pool, &due, 1, NULL, NULL);
    ck_assert_int_eq(due.rc, KVF_EINVAL);
    ck_assert_msg(strstr(due.err.text, "layer 2") != NULL && strstr(due.err.text, policy.name) != NULL, "%s",
                  due.err.text);
    /* An online plan measures first, and then touches nothing. */
    ck_assert_int_eq(kv_seq_entries(seq), _i == 1 ? 4 * 2 * 60 : 3 * 40 + 2 * 60);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine kv bound");
    TCase *tc = tcase_create("bound");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, pages_stay_within_the_bound, 0, POLICIES);
    tcase_add_test(tc, bound_of_a_schedule);
    tcase_add_loop_test(tc, refusal_names_the_layer, 0, 2);
    suite_add_tcase(suite, tc);
    return fixture_main(suite);
}
