/* The same request gives the same tokens and the same logits' bits alone, in any batch, beside any neighbours, with any
 * prefill chunk and number of threads: for every preset and some policies that carry something from one compaction to
 * the next, with compaction on, greedy and drawn; for every kernel set and both kinds of cache. */
#include "tests/unit/engine_tiny.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* slow: the other build runs all policies, sets and arrangements */
#else
#define SANITIZED 0
#endif
#define PROMPTS      48
#define MAX_POLICIES 48
#define MAX_SAMPLES  (2 * MAX_POLICIES)

static const char *policies[MAX_POLICIES] = {
    "dynamic:ema=0.5,smooth=0.5,prompt=at-prefill",
    "cake:ema=0.5,sinks=2",
    "h2o+pyramid",
    "snapkv+cake+ada:floor=protect",
    "rkv:stop-after-think=1",
};
static int policy_count; /* `full` is number 0 */

static void policies_list(void)
{
    int own = 0;
    while (policies[own] != NULL) own++;
    while (policy_preset_name(policy_count) != NULL) policy_count++;
    if (policy_count + own > MAX_POLICIES) abort();
    memmove(policies + policy_count, policies, (size_t)own * sizeof *policies);
    for (int i = 0; i < policy_count; i++) policies[i] = policy_preset_name(i);
    policy_count += own;
}

static int policy_of(const char *name)
{
    int i = 0;
    while (strcmp(policies[i], name) != 0) i++;
    return i;
}

/* Which policies are run: every `step`th from `first` on; greedy and then drawn, or every other one drawn. */
static struct {
    int first, step, both;
} selected;

static int selected_count(void)
{
    return (policy_count - selected.first + selected.step - 1) / selected.step;
}

static int sample_count(void)
{
    return selected.both ? 2 * selected_count() : selected_count();
}

static int sample_policy(int index)
{
    return selected.first + index % selected_count() * selected.step;
}

static struct request sample_of(const struct tiny_prompts *prompts, int index, const struct wave_profile *profile,
                                int max_new_tokens)
{
    struct request request = tiny_request(prompts, index % PROMPTS, policies[sample_policy(index)], 48, profile);
    if (request.prompt_tokens > 52) request.prompt_tokens = 52; /* enough for a compaction before the output is long */
    request.id = (uint64_t)index;
    request.seed = 1000 + (uint64_t)index;
    request.interval_tokens = 16;
    if (selected.both ? index >= selected_count() : index % 2) {
        request.sampling = (struct sampling){.temperature = 1.0, .top_p = 0.95, .top_k = index % 2 ? 20 : 0};
    }
    request.max_new_tokens = max_new_tokens;
    request.ignore_stop = 1;
    return request;
}

/* Neighbours: other prompts, other budgets, other lengths. */
static struct request neighbour_of(const struct tiny_prompts *prompts, int index, const struct wave_profile *profile)
{
    struct request request =
        tiny_request(prompts, index % PROMPTS, policies[index * 3 % policy_count], 48 + index % 5, profile);
    request.id = (uint64_t)index;
    request.max_new_tokens = 10 + index * 7 % 60;
    return request;
}

struct arrangement {
    int batch, threads, chunk;
    int first;      /* which sample is submitted first */
    int neighbours; /* submitted in between */
    int widest;     /* sequences that decode at once at some step, at least */
};
static const struct arrangement arrangements[] = {
    {2, 1, 256, 3, 0, 2},
    {7, 2, 31, 8, 5, 7},
    {32, 2, 256, 11, 40, 32},
    {32, 1, 24, 0, 18, 8},
};

static void arrangement_check(const char *kernels, const struct arrangement *how, const struct completion *alone,
                              int max_new_tokens)
{
    char what[128];
    snprintf(what, sizeof what, "%s, batch %d, %d threads, chunk %d", kernels, how->batch, how->threads, how->chunk);
    struct engine *engine = tiny_open(kernels, how->batch, how->threads, how->chunk, 128 << 20);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith.jsonl", PROMPTS);
    int samples = sample_count(), neighbour = samples, last = samples + how->neighbours;
    for (int i = 0; i < samples || neighbour < last; i++) {
        struct request request;
        if (i < samples) {
            request = sample_of(&prompts, (how->first + i) % samples, &profile, max_new_tokens);
            tiny_submit(engine, &request);
        }
        for (int n = 0; n < 2 && neighbour < last; n++) {
            request = neighbour_of(&prompts, neighbour++, &profile);
            tiny_submit(engine, &request);
        }
    }
    tiny_run(engine);
    struct completion completion;
    int seen = 0, widest = 0;
    while (engine_poll(engine, &completion)) {
        if (completion.id < (uint64_t)samples) {
            const struct completion *expected = &alone[completion.id];
            tiny_same(&completion, expected, what);
            ck_assert_int_eq(completion.compactions, expected->compactions);
            ck_assert_int_eq(completion.evicted_entries, expected->evicted_entries);
            ck_assert_int_eq(completion.kv_live_peak_bytes, expected->kv_live_peak_bytes);
            seen++;
        }
        if (completion.batch_max > widest) widest = completion.batch_max;
        completion_free(&completion);
    }
    ck_assert_int_eq(seen, samples);
    ck_assert_int_ge(widest, how->widest);
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}

START_TEST(same_alone_and_in_any_batch)
{
    const char *kernels = engine_kernel_set(_i / 2);
    tiny_kv_type = _i % 2 ? "bf16" : "f32";
    if (kernels == NULL) return;
    /* The best set in full; the others still a compaction of each policy. */
    int plain = strcmp(kernels, "plain") == 0, max_new_tokens = _i == 0 ? 36 : 20;
    size_t first = _i == 0 ? 0 : 1, count = _i == 0 ? sizeof arrangements / sizeof *arrangements : 2;
    selected.first = plain ? _i % 2 : 0;
    selected.step = plain ? 2 : 1;
    selected.both = _i == 0;
    if (SANITIZED) {
        if (_i > 0) return;
        selected.both = 0;
        selected.step = 3;
        max_new_tokens = 20;
        count = 2;
    }
    struct engine *engine = tiny_open(kernels, 1, 1, 256, 0);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith.jsonl", PROMPTS);
    struct completion alone[MAX_SAMPLES];
    for (int i = 0; i < sample_count(); i++) {
        struct request request = sample_of(&prompts, i, &profile, max_new_tokens);
        alone[i] = tiny_alone(engine, &request);
        ck_assert_int_eq(alone[i].output_tokens, max_new_tokens);
        ck_assert_int_eq(alone[i].batch_max, 1);
        ck_assert_int_eq(alone[i].compactions > 0, sample_policy(i) != 0);
    }
    for (size_t a = first; a < count; a++) {
        arrangement_check(kernels, &arrangements[a], alone, max_new_tokens);
    }
    for (int i = 0; i < sample_count(); i++) completion_free(&alone[i]);
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}
END_TEST

/* Nothing is evicted while everything fits in the budget, so that any policy gives what full cache gives. */
START_TEST(budget_of_the_whole_length_is_full_cache)
{
    struct engine *engine = tiny_open("auto", 8, 1, 0, 0);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith-narrow.jsonl", 1);
    struct request request = tiny_request(&prompts, 0, "full", 1, NULL);
    request.max_new_tokens = 150;
    struct completion full = tiny_alone(engine, &request);
    ck_assert_int_eq(full.finish, FINISH_LENGTH);
    for (int p = 1; p < policy_count; p += SANITIZED ? 4 : 1) {
        request = tiny_request(&prompts, 0, policies[p], full.prompt_tokens + full.output_tokens, &profile);
        request.max_new_tokens = 150;
        request.interval_tokens = 1;
        struct completion completion = tiny_alone(engine, &request);
        tiny_same(&completion, &full, policies[p]);
        ck_assert_int_eq(completion.compactions, 0);
        ck_assert_double_eq(completion.budget_achieved, -1.0);
        completion_free(&completion);
    }
    completion_free(&full);
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}
END_TEST

/* Policies differ from each other, or the tests above would prove nothing. */
START_TEST(policies_differ)
{
    struct engine *engine = tiny_open("auto", 8, 1, 0, 0);
    struct wave_profile profile = tiny_profile(engine);
    struct tiny_prompts prompts = tiny_prompts(engine, "data/chain-arith.jsonl", 1);
    uint64_t hash[MAX_POLICIES];
    for (int p = 0; p < policy_count; p++) {
        struct request request = tiny_request(&prompts, 0, policies[p], 64, &profile);
        struct completion completion = tiny_alone(engine, &request);
        hash[p] = completion.output_hash;
        if (p > 0) ck_assert_uint_ne(hash[p], hash[0]);
        completion_free(&completion);
    }
    ck_assert_uint_ne(hash[policy_of("streaming")], hash[policy_of("snapkv")]);
    ck_assert_uint_ne(hash[policy_of("rkv")], hash[policy_of("reasonalloc")]);
    ck_assert_uint_ne(hash[policy_of("tova")], hash[policy_of("h2o")]);
    ck_assert_uint_ne(hash[policy_of("vatp")], hash[policy_of("lava")]);
    tiny_prompts_free(&prompts);
    engine_close(&engine);
}
END_TEST

int main(void)
{
    tiny_require();
    policies_list();
    Suite *suite = suite_create("engine invariance");
    TCase *tc = tcase_create("invariance");
    tcase_set_timeout(tc, 900);
    tcase_add_loop_test(tc, same_alone_and_in_any_batch, 0, 6);
    tcase_add_test(tc, budget_of_the_whole_length_is_full_cache);
    if (!SANITIZED) tcase_add_test(tc, policies_differ);
    suite_add_tcase(suite, tc);
    return tiny_suite(suite);
}
