/* Many sequences at once, at random: open, append, compact, close. Every one is compared entry by entry with a plain
 * model (contiguous arrays, compacted by alloc/ alone), and the pool is walked after each change. */
#include "alloc/plan.h"
#include "tests/unit/kv_fixture.h"

#define SEQUENCES 7
#define POLICIES  6
#define PAGES     90
#define ROUNDS    600

static struct kv_shape shape = {.layers = 2,
                                .kv_heads = 2,
                                .group = 2,
                                .head_dim = 8,
                                .window_tokens = 8,
                                .max_entries = 300,
                                .max_sequences = SEQUENCES};

static const char *const policies[POLICIES] = {
    "streaming", "snapkv:window=5", "rkv", "reasonalloc", "reasonalloc-relative:window=3,sinks=2", "random:sinks=1"};

struct place {
    struct kv_seq *seq;
    struct plain plain;
    struct policy policy;
    int budget, interval;
    int64_t layer_budget[2];
};

struct soak {
    struct kv_pool *pool;
    struct compact_work *work;
    struct place places[SEQUENCES];
    uint64_t state, next_sample;
    int opened, closed, compactions, refused;
};

static int draw(struct soak *soak, int below)
{
    soak->state += 0x9E3779B97F4A7C15u;
    return (int)(fixture_mix(soak->state) % (uint64_t)below);
}

static void place_open(struct soak *soak, struct place *place)
{
    static const struct wave_profile profile = {
        .layers = 2, .kv_heads = 2, .window_tokens = 8, .rho = 0.93, .demand = {1.3, 0.7}};
    struct kvf_err err = {""};
    place->seq = fixture_open(soak->pool);
    place->plain = plain_new(&shape, ++soak->next_sample);
    place->budget = 16 + draw(soak, 60);
    place->interval = 1 + draw(soak, 40);
    ck_assert_msg(policy_parse(policies[draw(soak, POLICIES)], &place->policy, &err) == 0, "%s", err.text);
    int rc = layer_plan_build(&place->policy, &profile, 2, 2, place->budget, place->layer_budget, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    soak->opened++;
}

static void place_close(struct soak *soak, struct place *place)
{
    int64_t pages = kv_seq_live_bytes(soak->pool, place->seq) / fixture_page_bytes(&shape);
    int64_t before = kv_pool_free_pages(soak->pool);
    kv_seq_close(soak->pool, &place->seq);
    ck_assert_int_eq(kv_pool_free_pages(soak->pool), before + pages);
    plain_free(&place->plain);
    soak->closed++;
}

/* What alloc/ keeps of one layer of the plain model goes into it; the random policy's key is the cache's own, so there
 * the cache's choice is taken over after the rules that any choice keeps. */
static void plain_compact(struct soak *soak, struct place *place, int layer)
{
    struct plain *plain = &place->plain;
    const struct policy *policy = &place->policy;
    int dim = shape.head_dim, query_heads = shape.kv_heads * shape.group;
    static float keys[2][300 * 8], queries[8 * 4 * 8];
    static int32_t taken[300];
    const float *head_keys[2] = {keys[0], keys[1]};
    const int32_t *head_positions[2], *kept[2];
    int keep_count[2], noop;
    int *entries = plain->count + (ptrdiff_t)layer * shape.kv_heads;
    for (int h = 0; h < 2; h++) {
        int32_t *positions = plain_positions(plain, &shape, layer, h);
        head_positions[h] = positions;
        for (int e = 0; e < entries[h]; e++) {
            fixture_rows(ROW_KEY, plain->sample, layer, 2, dim, positions[e], 1, queries);
            for (int k = 0; k < dim; k++) keys[h][e * dim + k] = fixture_stored(&shape, queries[h * dim + k]);
        }
    }
    int rows = plain->seen < shape.window_tokens ? plain->seen : shape.window_tokens;
    fixture_rows(ROW_QUERY, plain->sample, layer, query_heads, dim, plain->seen - rows, rows, queries);
    struct compact_input input = {.kv_heads = 2,
                                  .group = shape.group,
                                  .head_dim = dim,
                                  .keys = head_keys,
                                  .positions = head_positions,
                                  .entries = entries,
                                  .queries = queries,
                                  .query_rows = rows,
                                  .layer_budget = place->layer_budget[layer]};
    struct kvf_err err = {""};
    int rc = compact_layer(policy, &input, NULL, soak->work, kept, keep_count, &noop, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    for (int h = 0; h < 2 && !noop; h++) {
        int32_t *positions = plain_positions(plain, &shape, layer, h);
        if (strncmp(policy->name, "random", 6) == 0) {
            ck_assert_int_eq(kv_head(soak->pool, place->seq, layer, h).entries, keep_count[h]);
            kv_read_head(soak->pool, place->seq, layer, h, NULL, NULL, taken);
            for (int e = 0, at = 0; e < keep_count[h]; e++, at++) {
                while (at < entries[h] && positions[at] != taken[e]) at++;
                if (at >= entries[h]) ck_abort_msg("position %d was not there before, or out of order", taken[e]);
            }
            int sinks = policy->sinks_tokens, window = policy->window_tokens < rows ? policy->window_tokens : rows;
            ck_assert_mem_eq(taken, positions, (size_t)sinks * sizeof *taken);
            ck_assert_mem_eq(taken + keep_count[h] - window, positions + entries[h] - window,
                             (size_t)window * sizeof *taken);
            memcpy(positions, taken, (size_t)keep_count[h] * sizeof *taken);
        } else {
            for (int e = 0; e < keep_count[h]; e++) positions[e] = positions[kept[h][e]];
        }
        entries[h] = keep_count[h];
    }
}

static void place_compact(struct soak *soak, struct place *place)
{
    struct kv_compaction_stats stats;
    struct kvf_err err = {""};
    int64_t before = kv_seq_entries(place->seq);
    int rc =
        fixture_compact(soak->pool, place->seq, &place->policy, place->layer_budget, place->plain.sample, &stats, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    for (int l = 0; l < shape.layers; l++) plain_compact(soak, place, l);
    ck_assert_int_eq(stats.evicted_entries, before - kv_seq_entries(place->seq));
    plain_compare(&place->plain, &shape, soak->pool, place->seq);
    soak->compactions++;
}

static void place_append(struct soak *soak, struct place *place)
{
    int tokens = draw(soak, 4) == 0 ? 1 + draw(soak, 90) : 1 + draw(soak, 3);
    int64_t free_pages = kv_pool_free_pages(soak->pool);
    if (kv_reserve(soak->pool, place->seq, tokens) != 0) {
        ck_assert_int_eq(kv_pool_free_pages(soak->pool), free_pages);
        plain_compare(&place->plain, &shape, soak->pool, place->seq);
        soak->refused++;
        if (draw(soak, 3) == 0) place_close(soak, place);
        return;
    }
    while (tokens > 0) {
        int part = 1 + draw(soak, tokens);
        fixture_put(soak->pool, &shape, place->seq, place->plain.sample, part);
        plain_append(&place->plain, &shape, part);
        tokens -= part;
    }
    const struct kv_schedule schedule = {0, place->budget, place->interval};
    if (kv_compaction_due(place->seq, &place->policy, &schedule)) place_compact(soak, place);
}

START_TEST(soak_against_plain_model)
{
    shape.half = _i % 2;
    struct soak soak = {.state = (uint64_t)_i * 77 + 5};
    soak.pool = fixture_pool(&shape, PAGES);
    soak.work = compact_work_new(2, shape.group, shape.head_dim, shape.window_tokens, shape.max_entries);
    ck_assert_ptr_nonnull(soak.work);
    for (int round = 0; round < ROUNDS; round++) {
        struct place *place = &soak.places[draw(&soak, SEQUENCES)];
        if (place->seq == NULL)
            place_open(&soak, place);
        else if (draw(&soak, 40) == 0)
            place_close(&soak, place);
        else
            place_append(&soak, place);
        fixture_check(soak.pool);
        if (round % 20 != 0) continue;
        for (int s = 0; s < SEQUENCES; s++) {
            if (soak.places[s].seq != NULL) {
                plain_compare(&soak.places[s].plain, &shape, soak.pool, soak.places[s].seq);
            }
        }
    }
    for (int s = 0; s < SEQUENCES; s++) {
        if (soak.places[s].seq != NULL) place_close(&soak, &soak.places[s]);
    }
    fixture_check(soak.pool);
    ck_assert_int_eq(kv_pool_free_pages(soak.pool), PAGES);
    /* It was a soak: all that can happen did. */
    ck_assert_int_eq(soak.opened, soak.closed);
    ck_assert_int_gt(soak.opened, SEQUENCES);
    ck_assert_int_gt(soak.compactions, 30);
    ck_assert_int_gt(soak.refused, 0);
    compact_work_destroy(&soak.work);
    kv_pool_destroy(&soak.pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine kv soak");
    TCase *tc = tcase_create("soak");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, soak_against_plain_model, 0, 12);
    suite_add_tcase(suite, tc);
    return fixture_main(suite);
}
