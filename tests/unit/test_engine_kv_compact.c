/* Compaction in the page cache: schedule, what stays, real bytes, pages back in the pool. */
#include "alloc/plan.h"
#include "tests/unit/kv_fixture.h"

static const struct kv_shape shape = {
    .layers = 2, .kv_heads = 3, .group = 2, .head_dim = 16, .window_tokens = 8, .max_entries = 400, .max_sequences = 4};
#define LISTS    6
#define BUDGET   48
#define INTERVAL 32

static const char *const evicting[] = {"streaming", "snapkv", "rkv", "reasonalloc", "reasonalloc-relative", "random"};
#define EVICTING ((int)(sizeof evicting / sizeof *evicting))

static struct policy policy_of(const char *name)
{
    struct policy policy;
    struct kvf_err err = {""};
    ck_assert_msg(policy_parse(name, &policy, &err) == 0, "%s", err.text);
    return policy;
}

static void plan_of(const struct policy *policy, int budget, int64_t *layer_budget)
{
    const struct wave_profile profile = {
        .layers = 2, .kv_heads = 3, .window_tokens = 8, .rho = 0.93, .demand = {1.4, 0.6}};
    struct kvf_err err = {""};
    ck_assert_msg(layer_plan_build(policy, &profile, 2, 3, budget, layer_budget, &err) == 0, "%s", err.text);
}

static struct kv_compaction_stats compact(struct kv_pool *pool, struct kv_seq *seq, const struct policy *policy,
                                          int budget, uint64_t seed)
{
    int64_t layer_budget[2];
    struct kv_compaction_stats stats;
    struct kvf_err err = {""};
    plan_of(policy, budget, layer_budget);
    int64_t before = kv_seq_entries(seq);
    ck_assert_msg(fixture_compact(pool, seq, policy, layer_budget, seed, &stats, &err) == 0, "%s", err.text);
    ck_assert_int_eq(stats.kept_entries, kv_seq_entries(seq));
    ck_assert_int_eq(stats.evicted_entries, before - kv_seq_entries(seq));
    return stats;
}

static void positions_read(const struct kv_pool *pool, const struct kv_seq *seq, int32_t (*positions)[400], int *count)
{
    for (int i = 0; i < LISTS; i++) {
        count[i] = kv_head(pool, seq, i / 3, i % 3).entries;
        kv_read_head(pool, seq, i / 3, i % 3, NULL, NULL, positions[i]);
    }
}

/* ---- the schedule ---- */

static int is_due(const struct kv_seq *seq, const struct policy *policy, int prompt)
{
    const struct kv_schedule schedule = {prompt, BUDGET, INTERVAL};
    return kv_compaction_due(seq, policy, &schedule);
}

static void due_assert(const char *name, int prompt, int first, const char *what)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct policy policy = policy_of(name);
    int next = first;
    fixture_append(pool, &shape, seq, 1, prompt);
    for (;;) {
        int seen = kv_tokens_seen(seq), due = is_due(seq, &policy, prompt);
        ck_assert_msg(due == (seen == next), "%s: %d tokens: due %d, next expected at %d", what, seen, due, next);
        if (due) {
            compact(pool, seq, &policy, BUDGET, 1);
            ck_assert(!is_due(seq, &policy, prompt));
            next += INTERVAL;
        }
        if (seen == 300) break;
        fixture_append(pool, &shape, seq, 1, 1);
    }
    kv_pool_destroy(&pool);
}

START_TEST(due_by_tokens_seen)
{
    due_assert(evicting[_i], 1, 80, "no prompt");
    due_assert(evicting[_i], 48, 80, "prompt of the budget");
    due_assert(evicting[_i], 49, 81, "prompt just above the budget");
    due_assert(evicting[_i], 133, 165, "long prompt");
    char name[64];
    snprintf(name, sizeof name, "%s:prompt=at-prefill", evicting[_i]);
    due_assert(name, 1, 80, "no prompt, at prefill");
    due_assert(name, 48, 80, "prompt of the budget, at prefill");
    due_assert(name, 49, 49, "prompt just above the budget, at prefill");
    due_assert(name, 133, 133, "long prompt, at prefill");
}
END_TEST

START_TEST(full_is_never_due)
{
    due_assert("full", 1, -1, "full");
    due_assert("full", 200, -1, "full, long prompt");
}
END_TEST

/* A compaction that finds nothing to evict counts all the same. */
START_TEST(nothing_to_evict_keeps_the_schedule)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct policy policy = policy_of("rkv");
    struct plain plain = plain_new(&shape, 2);
    fixture_append(pool, &shape, seq, 2, 80);
    plain_append(&plain, &shape, 80);
    ck_assert(is_due(seq, &policy, 1));
    struct kv_compaction_stats stats = compact(pool, seq, &policy, 80, 2);
    ck_assert_int_eq(stats.evicted_entries, 0);
    plain_compare(&plain, &shape, pool, seq);
    fixture_append(pool, &shape, seq, 2, 31);
    ck_assert(!is_due(seq, &policy, 1));
    fixture_append(pool, &shape, seq, 2, 1);
    ck_assert(is_due(seq, &policy, 1));
    plain_free(&plain);
    kv_pool_destroy(&pool);
}
END_TEST

/* A sequence that is closed takes its schedule with it. */
START_TEST(reopened_sequence_starts_anew)
{
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct policy policy = policy_of("streaming");
    fixture_append(pool, &shape, seq, 2, 80);
    compact(pool, seq, &policy, BUDGET, 2);
    kv_seq_close(pool, &seq);
    seq = fixture_open(pool);
    fixture_append(pool, &shape, seq, 3, 79);
    ck_assert(!is_due(seq, &policy, 1));
    fixture_append(pool, &shape, seq, 3, 1);
    ck_assert(is_due(seq, &policy, 1));
    kv_pool_destroy(&pool);
}
END_TEST

/* ---- what stays ---- */

/* Totals, sinks and window at every compaction; bytes fall; the pool gets what the sequence gave up. */
START_TEST(budget_window_sinks_and_bytes)
{
    struct policy policy = policy_of(evicting[_i]);
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    static int32_t positions[LISTS][400];
    int count[LISTS], compactions = 0;
    while (kv_tokens_seen(seq) < 300) {
        fixture_append(pool, &shape, seq, 5, 1);
        if (!is_due(seq, &policy, 1)) continue;
        int seen = kv_tokens_seen(seq);
        int64_t bytes = kv_seq_live_bytes(pool, seq), free_pages = kv_pool_free_pages(pool);
        compact(pool, seq, &policy, BUDGET, 5);
        compactions++;
        fixture_check(pool);

        int64_t after = kv_seq_live_bytes(pool, seq), freed = kv_pool_free_pages(pool) - free_pages;
        ck_assert_int_lt(after, bytes);
        ck_assert_int_eq(bytes - after, freed * fixture_page_bytes(&shape));
        ck_assert_int_eq(kv_seq_entries(seq), LISTS * BUDGET);

        positions_read(pool, seq, positions, count);
        for (int i = 0; i < LISTS; i++) {
            if (policy.router == ROUTER_UNIFORM) ck_assert_int_eq(count[i], BUDGET);
            for (int s = 0; s < policy.sinks_tokens; s++) ck_assert_int_eq(positions[i][s], s);
            for (int w = 1; w <= policy.window_tokens; w++) ck_assert_int_eq(positions[i][count[i] - w], seen - w);
        }
    }
    ck_assert_int_eq(compactions, 7);
    /* Never more than admission by budget allows for: at most budget + interval entries a head in the mean. */
    ck_assert_int_le(kv_pool_peak_pages(pool), kv_pages_needed(pool, BUDGET + INTERVAL));
    kv_seq_close(pool, &seq);
    ck_assert_int_eq(kv_pool_free_pages(pool), LISTS * 26);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(routed_heads_are_ragged)
{
    struct policy policy = policy_of("reasonalloc");
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    int64_t layer_budget[2];
    plan_of(&policy, BUDGET, layer_budget);
    ck_assert_int_gt(layer_budget[0], layer_budget[1]);
    fixture_append(pool, &shape, seq, 5, 200);
    compact(pool, seq, &policy, BUDGET, 5);
    int different = 0;
    for (int l = 0; l < 2; l++) {
        int sum = 0, heads[3];
        for (int h = 0; h < 3; h++) sum += heads[h] = kv_head(pool, seq, l, h).entries;
        ck_assert_int_eq(sum, layer_budget[l]);
        different += heads[0] != heads[1] || heads[1] != heads[2];
    }
    ck_assert_int_gt(different, 0);
    /* Lengths that differ go on growing in step. */
    int before = kv_head(pool, seq, 1, 2).entries;
    fixture_append(pool, &shape, seq, 5, 20);
    ck_assert_int_eq(kv_head(pool, seq, 1, 2).entries, before + 20);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(budget_of_the_length_changes_nothing)
{
    struct policy policy = policy_of(evicting[_i]);
    policy.plan = PLAN_UNIFORM;
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct plain plain = plain_new(&shape, 6);
    fixture_append(pool, &shape, seq, 6, 100);
    plain_append(&plain, &shape, 100);
    struct kv_compaction_stats stats = compact(pool, seq, &policy, 100, 6);
    ck_assert_int_eq(stats.evicted_entries, 0);
    plain_compare(&plain, &shape, pool, seq);
    plain_free(&plain);
    kv_pool_destroy(&pool);
}
END_TEST

/* The same sample gives the same cache wherever its pages lie and whoever else is there. */
START_TEST(neighbours_do_not_matter)
{
    struct policy policy = policy_of(evicting[_i]);
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *a = fixture_open(pool), *other = fixture_open(pool), *b;
    static int32_t positions[2][LISTS][400];
    int count[2][LISTS];
    fixture_append(pool, &shape, other, 99, 130);
    fixture_append(pool, &shape, a, 8, 60);
    fixture_append(pool, &shape, a, 8, 60);
    compact(pool, other, &policy, BUDGET, 99);
    b = fixture_open(pool);
    for (int t = 0; t < 120; t++) fixture_append(pool, &shape, b, 8, 1);
    kv_seq_close(pool, &other);
    compact(pool, b, &policy, BUDGET, 8);
    compact(pool, a, &policy, BUDGET, 8);
    positions_read(pool, a, positions[0], count[0]);
    positions_read(pool, b, positions[1], count[1]);
    ck_assert_mem_eq(count[0], count[1], sizeof count[0]);
    for (int i = 0; i < LISTS; i++) {
        ck_assert_mem_eq(positions[0][i], positions[1][i], (size_t)count[0][i] * sizeof(int32_t));
    }
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

START_TEST(random_follows_seed_and_layer)
{
    struct policy policy = policy_of("random");
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 30);
    static int32_t positions[2][LISTS][400];
    int count[LISTS];
    for (int s = 0; s < 2; s++) {
        struct kv_seq *seq = fixture_open(pool);
        fixture_append(pool, &shape, seq, 8, 200);
        compact(pool, seq, &policy, BUDGET, 8 + (uint64_t)s);
        positions_read(pool, seq, positions[s], count);
        ck_assert_mem_ne(positions[s][0], positions[s][3], BUDGET * sizeof(int32_t)); /* layers */
        ck_assert_mem_ne(positions[s][0], positions[s][1], BUDGET * sizeof(int32_t)); /* heads */
        kv_seq_close(pool, &seq);
    }
    ck_assert_mem_ne(positions[0][0], positions[1][0], BUDGET * sizeof(int32_t)); /* seeds */
    kv_pool_destroy(&pool);
}
END_TEST

/* ---- refusals ---- */

START_TEST(window_beyond_the_ring_is_refused)
{
    struct policy policy = policy_of("rkv:window=9");
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct plain plain = plain_new(&shape, 1);
    struct kv_compaction_stats stats;
    struct kvf_err err = {""};
    const int64_t layer_budget[2] = {144, 144};
    fixture_append(pool, &shape, seq, 1, 80);
    plain_append(&plain, &shape, 80);
    ck_assert_int_eq(fixture_compact(pool, seq, &policy, layer_budget, 1, &stats, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "window"));
    plain_compare(&plain, &shape, pool, seq);
    plain_free(&plain);
    kv_pool_destroy(&pool);
}
END_TEST

/* A smaller window than the ring takes the newest rows: the same kept set as a pool whose ring is that small. */
START_TEST(smaller_window_uses_the_newest_queries)
{
    struct policy policy = policy_of("rkv:window=4");
    struct kv_shape narrow = shape;
    narrow.window_tokens = 4;
    static int32_t positions[2][LISTS][400];
    int count[LISTS];
    for (int s = 0; s < 2; s++) {
        struct kv_pool *pool = fixture_pool(s == 0 ? &shape : &narrow, LISTS * 26);
        struct kv_seq *seq = fixture_open(pool);
        fixture_append(pool, &shape, seq, 8, 150);
        compact(pool, seq, &policy, BUDGET, 8);
        positions_read(pool, seq, positions[s], count);
        kv_pool_destroy(&pool);
    }
    for (int i = 0; i < LISTS; i++) ck_assert_mem_eq(positions[0][i], positions[1][i], BUDGET * sizeof(int32_t));
}
END_TEST

START_TEST(budget_too_small_is_refused)
{
    struct policy policy = policy_of(evicting[_i]);
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    struct kv_compaction_stats stats;
    struct kvf_err err = {""};
    const int64_t layer_budget[2] = {3 * 9 - 1, 3 * 9 - 1};
    fixture_append(pool, &shape, seq, 1, 80);
    ck_assert_int_eq(fixture_compact(pool, seq, &policy, layer_budget, 1, &stats, &err), KVF_EINVAL);
    ck_assert_int_eq(kv_seq_entries(seq), 80 * LISTS);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

/* Rooms set aside and not used go back at a compaction; the next step asks again. */
START_TEST(reserved_room_does_not_outlive_compaction)
{
    struct policy policy = policy_of("streaming");
    struct kv_pool *pool = fixture_pool(&shape, LISTS * 26);
    struct kv_seq *seq = fixture_open(pool);
    fixture_append(pool, &shape, seq, 1, 80);
    ck_assert_int_eq(kv_reserve(pool, seq, 40), 0);
    compact(pool, seq, &policy, BUDGET, 1);
    ck_assert_int_eq(kv_seq_live_bytes(pool, seq), LISTS * 3 * fixture_page_bytes(&shape));
    fixture_check(pool);
    fixture_append(pool, &shape, seq, 1, 1);
    fixture_check(pool);
    kv_pool_destroy(&pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine kv compact");
    TCase *tc = tcase_create("compact");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, due_by_tokens_seen, 0, EVICTING);
    tcase_add_test(tc, full_is_never_due);
    tcase_add_test(tc, nothing_to_evict_keeps_the_schedule);
    tcase_add_test(tc, reopened_sequence_starts_anew);
    tcase_add_loop_test(tc, budget_window_sinks_and_bytes, 0, EVICTING);
    tcase_add_test(tc, routed_heads_are_ragged);
    tcase_add_loop_test(tc, budget_of_the_length_changes_nothing, 0, EVICTING);
    tcase_add_loop_test(tc, neighbours_do_not_matter, 0, EVICTING);
    tcase_add_test(tc, random_follows_seed_and_layer);
    tcase_add_test(tc, window_beyond_the_ring_is_refused);
    tcase_add_test(tc, smaller_window_uses_the_newest_queries);
    tcase_add_loop_test(tc, budget_too_small_is_refused, 0, EVICTING);
    tcase_add_test(tc, reserved_room_does_not_outlive_compaction);
    suite_add_tcase(suite, tc);
    return fixture_main(suite);
}
