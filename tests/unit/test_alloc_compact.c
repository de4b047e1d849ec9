/* Properties of one compaction on random layers: what always stays, how much stays, and what must not matter. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/compact.h"
#include "alloc/score.h"
#include "tests/unit/random.h"

#ifdef __SANITIZE_ADDRESS__
enum { LAYERS_TRIED = 100 }; /* slow here: the other build tries them all */
#else
enum { LAYERS_TRIED = 1000 };
#endif
enum { MOST_HEADS = 4, MOST_GROUP = 3, MOST_DIM = 24, MOST_WINDOW = 10, MOST_ENTRIES = 96 };

static float next_value(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += (float)(next_bits() >> 40) * 0x1p-24f - 0.5f;
    return 2.0f * sum;
}

/* ---- one random layer ---- */

struct layer {
    int heads, group, d, window, sinks;
    int entries[MOST_HEADS];
    float keys[MOST_HEADS][MOST_ENTRIES * MOST_DIM];
    float queries[MOST_WINDOW * MOST_HEADS * MOST_GROUP * MOST_DIM];
    int32_t positions[MOST_HEADS][MOST_ENTRIES];
    int64_t budget;
    const float *key_at[MOST_HEADS];
    const int32_t *position_at[MOST_HEADS];
};

/* Keys repeat around a few centres, so that some are similar and some are not. equal: all heads of one length. */
static void layer_make(struct layer *layer, int equal)
{
    memset(layer, 0, sizeof *layer);
    layer->heads = next_int(1, MOST_HEADS);
    layer->group = next_int(1, MOST_GROUP);
    layer->d = next_int(1, MOST_DIM);
    layer->window = next_int(1, MOST_WINDOW);
    layer->sinks = next_int(0, 3) == 0 ? next_int(1, 5) : 0;
    int least = layer->window + layer->sinks + 1, held = 0;
    for (int h = 0; h < layer->heads; h++) {
        int n = equal && h > 0 ? layer->entries[0] : next_int(least, MOST_ENTRIES);
        float centre[4][MOST_DIM];
        for (int c = 0; c < 4; c++)
            for (int k = 0; k < layer->d; k++) centre[c][k] = next_value();
        layer->entries[h] = n;
        held += n;
        for (int j = 0; j < n; j++) {
            int c = next_int(0, 3);
            layer->positions[h][j] = (j > 0 ? layer->positions[h][j - 1] : -1) + next_int(1, 3);
            for (int k = 0; k < layer->d; k++) layer->keys[h][j * layer->d + k] = centre[c][k] + 0.7f * next_value();
        }
    }
    for (int i = 0; i < layer->window * layer->heads * layer->group * layer->d; i++)
        layer->queries[i] = 2.0f * next_value();
    layer->budget = next_int(layer->heads * least, held + layer->heads);
}

static struct compact_input layer_input(struct layer *layer)
{
    for (int h = 0; h < layer->heads; h++) {
        layer->key_at[h] = layer->keys[h];
        layer->position_at[h] = layer->positions[h];
    }
    return (struct compact_input){.kv_heads = layer->heads,
                                  .group = layer->group,
                                  .head_dim = layer->d,
                                  .keys = layer->key_at,
                                  .positions = layer->position_at,
                                  .entries = layer->entries,
                                  .queries = layer->queries,
                                  .query_rows = layer->window,
                                  .layer_budget = layer->budget,
                                  .random_key = 77};
}

static int held_of(const struct layer *layer)
{
    int held = 0;
    for (int h = 0; h < layer->heads; h++) held += layer->entries[h];
    return held;
}

static struct policy policy_of(const char *text, const struct layer *layer)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_OK, "%s", err.text);
    policy.window_tokens = layer->window;
    policy.sinks_tokens = layer->sinks;
    return policy;
}

/* A result of its own, since kept lists live in the work area until the next call. */
struct result {
    int noop, count[MOST_HEADS];
    int32_t kept[MOST_HEADS][MOST_ENTRIES];
};

static void layer_compact(const struct policy *policy, struct layer *layer, struct result *result)
{
    struct compact_input input = layer_input(layer);
    struct compact_work *work = compact_work_new(layer->heads, layer->group, layer->d, layer->window, MOST_ENTRIES);
    ck_assert_ptr_nonnull(work);
    const int32_t *kept[MOST_HEADS];
    struct kvf_err err = {.text = ""};
    memset(result, 0, sizeof *result);
    int rc = compact_layer(policy, &input, NULL, work, kept, result->count, &result->noop, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    for (int h = 0; h < layer->heads && !result->noop; h++)
        memcpy(result->kept[h], kept[h], (size_t)result->count[h] * sizeof kept[h][0]);
    compact_work_destroy(&work);
    ck_assert_ptr_null(work);
}

static void results_equal(const struct result *a, const struct result *b)
{
    ck_assert_mem_eq(a, b, sizeof *a);
}

/* ---- what holds for every policy ---- */

static const char *const evicting[] = {"streaming", "snapkv", "rkv", "reasonalloc", "reasonalloc-relative", "random"};
enum { EVICTING = sizeof evicting / sizeof evicting[0] };

START_TEST(totals_bounds_and_what_always_stays)
{
    struct layer layer;
    struct result result, again;
    int compacted = 0;
    state = 101;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, round % 2);
        struct policy policy = policy_of(evicting[_i], &layer);
        layer_compact(&policy, &layer, &result);
        layer_compact(&policy, &layer, &again);
        results_equal(&result, &again);
        int held = held_of(&layer), total = 0, fits = 1;
        for (int h = 0; h < layer.heads; h++)
            fits &= layer.entries[h] <= layer.budget / layer.heads + (h < layer.budget % layer.heads);
        int pooled = policy.router == ROUTER_REASONALLOC;
        ck_assert_int_eq(result.noop, pooled ? held <= layer.budget : fits);
        if (result.noop) continue;
        compacted++;
        for (int h = 0; h < layer.heads; h++) {
            int n = layer.entries[h], count = result.count[h];
            const int32_t *kept = result.kept[h];
            int least = layer.window + layer.sinks + 1, share = (int)layer.budget / layer.heads;
            int floor_share = (int)ceil(policy.mu * (double)layer.budget / layer.heads);
            total += count;
            ck_assert_int_le(count, n);
            ck_assert_int_ge(count, n < least ? n : least);
            if (pooled && floor_share * layer.heads <= layer.budget && floor_share >= least)
                ck_assert_int_ge(count, floor_share < n ? floor_share : n);
            if (!pooled) {
                int own = share + (h < layer.budget % layer.heads);
                ck_assert_int_eq(count, own < n ? own : n);
            }
            for (int k = 0; k < count; k++) {
                ck_assert_int_ge(kept[k], 0);
                ck_assert_int_lt(kept[k], n);
                ck_assert(k == 0 || kept[k] > kept[k - 1]);
            }
            for (int k = 0; k < layer.sinks; k++) ck_assert_int_eq(kept[k], k);
            for (int k = 1; k <= layer.window; k++) ck_assert_int_eq(kept[count - k], n - k);
        }
        if (pooled) ck_assert_int_eq(total, layer.budget);
    }
    ck_assert_int_gt(compacted, LAYERS_TRIED / 2);
}
END_TEST

START_TEST(permuted_heads_get_permuted_results)
{
    struct layer layer, mixed;
    struct result result, other;
    int compared = 0;
    state = 202;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, round % 2);
        layer.budget -= layer.budget % layer.heads; /* what is left over goes to the first heads */
        struct policy policy = policy_of(evicting[_i], &layer);
        if (strcmp(policy.name, "random") == 0) return; /* keyed by head */
        mixed = layer;
        int heads = layer.heads, row = layer.group * layer.d;
        for (int h = 0; h < heads; h++) {
            int from = heads - 1 - h;
            mixed.entries[h] = layer.entries[from];
            memcpy(mixed.keys[h], layer.keys[from], sizeof layer.keys[from]);
            memcpy(mixed.positions[h], layer.positions[from], sizeof layer.positions[from]);
            for (int w = 0; w < layer.window; w++)
                memcpy(mixed.queries + (w * heads + h) * row, layer.queries + (w * heads + from) * row,
                       (size_t)row * sizeof(float));
        }
        layer_compact(&policy, &layer, &result);
        layer_compact(&policy, &mixed, &other);
        ck_assert_int_eq(result.noop, other.noop);
        /* Heads of equal demand and bounds are told apart by index only: not comparable. */
        int distinct = 1;
        for (int h = 0; h < heads; h++)
            for (int g = 0; g < h; g++)
                distinct &= policy.router == ROUTER_UNIFORM || abs(result.count[h] - result.count[g]) > 1;
        if (!distinct) continue;
        compared++;
        for (int h = 0; h < heads; h++) {
            ck_assert_int_eq(result.count[h], other.count[heads - 1 - h]);
            ck_assert_mem_eq(result.kept[h], other.kept[heads - 1 - h], sizeof result.kept[h]);
        }
    }
    ck_assert_int_gt(compared, LAYERS_TRIED / 4);
}
END_TEST

START_TEST(lambda_one_is_snapkv)
{
    struct layer layer;
    struct result result, other;
    state = 303;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, round % 2);
        struct policy rkv = policy_of("rkv:lambda=1", &layer), snapkv = policy_of("snapkv", &layer);
        layer_compact(&rkv, &layer, &result);
        layer_compact(&snapkv, &layer, &other);
        results_equal(&result, &other);
    }
}
END_TEST

/* ReasonAlloc with its two allocators switched off is R-KV, bit for bit: by the router, and by beta 0. */
START_TEST(uniform_reasonalloc_is_rkv)
{
    struct layer layer;
    struct result result, other;
    state = 404;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, 1);
        struct policy rkv = policy_of("rkv", &layer), reasonalloc = policy_of("reasonalloc", &layer);
        layer_compact(&rkv, &layer, &result);
        reasonalloc.router = ROUTER_UNIFORM;
        layer_compact(&reasonalloc, &layer, &other);
        results_equal(&result, &other);
        /* With beta 0 the layer, not each head, decides whether there is anything to do. */
        layer.budget -= layer.budget % layer.heads;
        layer_compact(&rkv, &layer, &result);
        reasonalloc = policy_of(round % 4 < 2 ? "reasonalloc:beta=0" : "reasonalloc-relative:beta=0", &layer);
        layer_compact(&reasonalloc, &layer, &other);
        results_equal(&result, &other);
    }
}
END_TEST

/* One set of entries for all heads: what is left over of the budget stays unused, no head keeps one more. */
START_TEST(shared_entries_stay_shared)
{
    struct layer layer;
    struct result result;
    int compacted = 0;
    state = 450;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, 1);
        for (int h = 1; h < layer.heads; h++) memcpy(layer.positions[h], layer.positions[0], sizeof layer.positions[0]);
        const struct policy policy = policy_of("tova", &layer);
        layer_compact(&policy, &layer, &result);
        for (int h = 1; h < layer.heads && !result.noop; h++) {
            ck_assert_int_eq(result.count[h], layer.budget / layer.heads);
            ck_assert_mem_eq(result.kept[h], result.kept[0], sizeof result.kept[0]);
            compacted++;
        }
    }
    ck_assert_int_gt(compacted, LAYERS_TRIED / 4);
}
END_TEST

START_TEST(full_and_large_budgets_do_nothing)
{
    struct layer layer;
    struct result result;
    state = 505;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, 0);
        struct policy full = policy_of("full", &layer);
        layer_compact(&full, &layer, &result);
        ck_assert_int_eq(result.noop, 1);
        layer.budget = (int64_t)layer.heads * MOST_ENTRIES;
        struct policy policy = policy_of(evicting[round % EVICTING], &layer);
        layer_compact(&policy, &layer, &result);
        ck_assert_int_eq(result.noop, 1);
    }
}
END_TEST

START_TEST(random_depends_on_position_only)
{
    struct layer layer;
    struct result large, small;
    state = 606;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, 1);
        int n = layer.entries[0], always = layer.window + layer.sinks;
        if (n < always + 3) continue;
        struct policy policy = policy_of("random", &layer);
        int large_budget = next_int(always + 2, n - 1), small_budget = next_int(always + 1, large_budget - 1);
        layer.budget = (int64_t)layer.heads * small_budget;
        layer_compact(&policy, &layer, &small);
        struct layer middle = layer;
        middle.budget = (int64_t)layer.heads * large_budget;
        layer_compact(&policy, &layer, &small);
        layer_compact(&policy, &middle, &large);
        /* In two steps or in one, with other keys: the same positions. */
        struct layer rest = layer;
        struct result two_steps;
        for (int h = 0; h < layer.heads; h++) {
            rest.entries[h] = large.count[h];
            for (int k = 0; k < large.count[h]; k++) rest.positions[h][k] = layer.positions[h][large.kept[h][k]];
            for (int i = 0; i < large.count[h] * layer.d; i++) rest.keys[h][i] = next_value();
        }
        layer_compact(&policy, &rest, &two_steps);
        for (int h = 0; h < layer.heads; h++) {
            ck_assert_int_eq(two_steps.count[h], small.count[h]);
            for (int k = 0; k < small.count[h]; k++)
                ck_assert_int_eq(rest.positions[h][two_steps.kept[h][k]], layer.positions[h][small.kept[h][k]]);
        }
    }
    float low = 0.0f, high = 0.0f;
    for (int i = 0; i < 100000; i++) {
        float value = score_random(5, i % 7, i);
        ck_assert(value >= 0.0f && value < 1.0f);
        *(value < 0.25f ? &low : &high) += 1.0f;
    }
    ck_assert_float_eq_tol(low, 25000.0f, 700.0f); /* five standard deviations */
}
END_TEST

/* A score that is not finite decides nothing: the layer is refused, and the line says where. Scorers that read no keys
 * do not notice. */
START_TEST(broken_keys_are_an_error)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    struct layer layer;
    struct result result, before;
    int refusals = 0;
    state = 707;
    for (int round = 0; round < LAYERS_TRIED; round++) {
        layer_make(&layer, 1);
        struct policy policy = policy_of(evicting[_i], &layer);
        layer_compact(&policy, &layer, &before);
        int h = next_int(0, layer.heads - 1);
        /* Before the window: SnapKV reads no key of it. */
        layer.keys[h][next_int(0, (layer.entries[h] - layer.window) * layer.d - 1)] = bad[round % 4];
        struct compact_input input = layer_input(&layer);
        struct compact_work *work = compact_work_new(layer.heads, layer.group, layer.d, layer.window, MOST_ENTRIES);
        const int32_t *kept[MOST_HEADS];
        struct kvf_err err = {.text = ""};
        const int rc = compact_layer(&policy, &input, NULL, work, kept, result.count, &result.noop, &err);
        const int reads_keys = strcmp(policy.name, "streaming") != 0 && strcmp(policy.name, "random") != 0;
        char head[32];
        snprintf(head, sizeof head, "head %d,", h);
        if (before.noop || !reads_keys) {
            ck_assert_int_eq(rc, KVF_OK);
            ck_assert_int_eq(result.noop, before.noop);
        } else if (rc != KVF_OK) {
            refusals++;
            ck_assert_int_eq(rc, KVF_EINVAL);
            ck_assert_msg(strstr(err.text, policy.name) != NULL && strstr(err.text, head) != NULL, "%s", err.text);
        } else {
            /* An infinite logit below all others is a probability of 0; a NaN never is anything. */
            ck_assert(round % 4 != 0);
        }
        compact_work_destroy(&work);
    }
    if (_i != 0 && _i != EVICTING - 1) ck_assert_int_gt(refusals, LAYERS_TRIED / 8);
}
END_TEST

START_TEST(wrong_calls_are_refused)
{
    static struct layer layer;
    state = 808;
    do layer_make(&layer, 1);
    while (layer.entries[0] < layer.window + layer.sinks + 5);
    struct policy policy = policy_of("rkv", &layer);
    layer.budget = (int64_t)layer.heads * (layer.window + layer.sinks + 1);
    struct compact_input good = layer_input(&layer), input = good;
    struct compact_work *work = compact_work_new(layer.heads, layer.group, layer.d, layer.window, MOST_ENTRIES);
    ck_assert_int_gt(compact_work_bytes(work), MOST_ENTRIES * layer.d * (int)sizeof(float));
    const int32_t *kept[MOST_HEADS];
    int count[MOST_HEADS], noop;
    struct kvf_err err = {.text = ""};
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err), KVF_OK);
    input.layer_budget--;
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "budget"));
    input = good;
    input.head_dim++;
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err), KVF_EINVAL);
    input = good;
    input.kv_heads++;
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err), KVF_EINVAL);
    input = good;
    int entries[MOST_HEADS];
    memcpy(entries, layer.entries, sizeof entries);
    entries[layer.heads - 1] = MOST_ENTRIES + 1;
    input.entries = entries;
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, NULL), KVF_EINVAL);
    input = good;
    input.query_rows = 0; /* nothing to score with */
    ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err), KVF_EINVAL);
    compact_work_destroy(&work);
    ck_assert_ptr_null(compact_work_new(0, 1, 1, 1, 1));
    ck_assert_ptr_null(compact_work_new(1, 1, 1, 1, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compact");
    TCase *tc = tcase_create("properties");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, totals_bounds_and_what_always_stays, 0, EVICTING);
    tcase_add_loop_test(tc, permuted_heads_get_permuted_results, 0, EVICTING);
    tcase_add_test(tc, lambda_one_is_snapkv);
    tcase_add_test(tc, uniform_reasonalloc_is_rkv);
    tcase_add_test(tc, shared_entries_stay_shared);
    tcase_add_test(tc, full_and_large_budgets_do_nothing);
    tcase_add_test(tc, random_depends_on_position_only);
    tcase_add_loop_test(tc, broken_keys_are_an_error, 0, EVICTING);
    tcase_add_test(tc, wrong_calls_are_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
