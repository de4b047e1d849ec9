/* Scorers against golden/compress: TOVA, H2O over a whole decode, and every variant of window attention. */
#include <check.h>

#include "alloc/attention.h"
#include "alloc/compact.h"
#include "alloc/score.h"
#include "alloc/select.h"
#include "alloc/work.h"
#include "tests/golden/golden.h"

enum { MOST_HEADS = 8, MOST_DIM = 128, MOST_ENTRIES = 640 };

static char *arrays;
static json_t *cases;

static const json_t *find(const char *id)
{
    size_t i;
    json_t *row;
    json_array_foreach(cases, i, row) if (strcmp(golden_text(row, "id"), id) == 0) return row;
    ck_abort_msg("no record %s", id);
}

static struct policy policy_named(const char *text)
{
    struct policy policy;
    struct kvf_err err = {""};
    ck_assert_msg(policy_parse(text, &policy, &err) == 0, "%s", err.text);
    return policy;
}

static void kept_expect(const char *id, int head, const json_t *expected, const int32_t *kept, int count)
{
    ck_assert_msg((int)json_array_size(expected) == count, "%s head %d: %d kept, expected %zu", id, head, count,
                  json_array_size(expected));
    for (int k = 0; k < count; k++)
        ck_assert_msg(json_integer_value(json_array_get(expected, (size_t)k)) == kept[k], "%s head %d: kept[%d] is %d",
                      id, head, k, kept[k]);
}

/* ---- inputs of all heads in one array [kv_heads][n][d] ---- */

struct inputs {
    int heads, group, n, d, rows;
    const float *queries, *keys[MOST_HEADS];
    int entries[MOST_HEADS];
    int32_t position[MOST_ENTRIES];
    const int32_t *positions[MOST_HEADS];
};

static void inputs_read(const json_t *row, struct inputs *in)
{
    const json_t *k = json_object_get(json_object_get(row, "K"), "shape");
    const json_t *q = json_object_get(json_object_get(row, "Q"), "shape");
    const float *keys = golden_array(arrays, json_object_get(row, "K"));
    in->heads = (int)json_integer_value(json_array_get(k, 0));
    in->n = (int)json_integer_value(json_array_get(k, 1));
    in->d = (int)json_integer_value(json_array_get(k, 2));
    in->rows = (int)json_integer_value(json_array_get(q, 0));
    in->group = (int)json_integer_value(json_array_get(q, 1)) / in->heads;
    in->queries = golden_array(arrays, json_object_get(row, "Q"));
    for (int j = 0; j < in->n; j++) in->position[j] = j;
    for (int h = 0; h < in->heads; h++) {
        in->keys[h] = keys + (size_t)h * (size_t)in->n * (size_t)in->d;
        in->entries[h] = in->n;
        in->positions[h] = in->position;
    }
}

static struct compact_input compact_input_of(const struct inputs *in, int budget)
{
    return (struct compact_input){.kv_heads = in->heads,
                                  .group = in->group,
                                  .head_dim = in->d,
                                  .keys = in->keys,
                                  .positions = in->positions,
                                  .entries = in->entries,
                                  .queries = in->queries,
                                  .query_rows = in->rows,
                                  .query_position = in->n - 1,
                                  .layer_budget = (int64_t)budget * in->heads};
}

START_TEST(tova_equals_reference)
{
    const struct policy policy = policy_named("tova:window=1");
    const struct compact_kernels kernels = compact_kernels_plain();
    const struct scorer *scorer = scorer_at(scorer_find("tova", 4));
    size_t index, compared = 0, forced = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "tova") != 0) continue;
        const char *id = golden_text(row, "id");
        struct inputs in;
        inputs_read(row, &in);
        const struct compact_input input = compact_input_of(&in, golden_int(row, "budget"));

        /* Without a window the original's rule: the newest entry competes as well. */
        struct compact_work *own = compact_work_new(in.heads, in.group, in.d, 1, in.n);
        static float scores[MOST_HEADS][MOST_ENTRIES];
        float *score[MOST_HEADS];
        for (int h = 0; h < in.heads; h++) score[h] = scores[h];
        scorer->score(&policy, &input, &kernels, &own->scratch, 0, score);
        compact_work_destroy(&own);
        for (int h = 0; h < in.heads; h++) {
            uint32_t rank[MOST_ENTRIES];
            int32_t best[MOST_ENTRIES];
            for (int j = 0; j < in.n; j++) {
                ck_assert_double_eq_tol((double)scores[h][j],
                                        golden_number(json_array_get(json_object_get(row, "S64"), (size_t)j)), 2e-6);
                rank[j] = score_rank(scores[h][j]);
            }
            const int count = select_best(rank, in.n, golden_int(row, "budget"), 0, best);
            kept_expect(id, h, json_object_get(row, "kept"), best, count);
        }

        const json_t *last_forced = json_object_get(row, "kept_kvpress_last_forced");
        if (json_is_array(last_forced) && golden_int(row, "budget") < in.n) {
            struct compact_work *work = compact_work_new(in.heads, in.group, in.d, 1, in.n);
            const int32_t *kept[MOST_HEADS];
            int count[MOST_HEADS], noop;
            struct kvf_err err = {""};
            ck_assert_msg(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err) == 0, "%s: %s", id,
                          err.text);
            for (int h = 0; h < in.heads; h++) kept_expect(id, h, last_forced, kept[h], count[h]);
            compact_work_destroy(&work);
            forced++;
        }
        compared++;
    }
    ck_assert_int_eq(compared, 12);
    ck_assert_int_ge(forced, 5);
}
END_TEST

/* One head's cache during a decode. */
struct cache {
    float keys[MOST_ENTRIES * 32], mass[MOST_ENTRIES];
    int32_t positions[MOST_ENTRIES];
    int n;
};

static void cache_append(struct cache *cache, const float *key, const float *query, int d, int position)
{
    double row[MOST_ENTRIES], top = -INFINITY, sum = 0;
    memcpy(cache->keys + cache->n * d, key, (size_t)d * sizeof *key);
    cache->mass[cache->n] = 0.0f;
    cache->positions[cache->n++] = position;
    for (int j = 0; j < cache->n; j++) {
        row[j] = 0;
        for (int k = 0; k < d; k++) row[j] += (double)query[k] * (double)cache->keys[j * d + k];
        row[j] /= sqrt(d);
        top = fmax(top, row[j]);
    }
    for (int j = 0; j < cache->n; j++) sum += row[j] = exp(row[j] - top);
    for (int j = 0; j < cache->n; j++) cache->mass[j] += (float)(row[j] / sum);
}

START_TEST(h2o_equals_reference_at_every_step)
{
    static struct cache cache[MOST_HEADS];
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "h2o") != 0) continue;
        const char *id = golden_text(row, "id");
        struct inputs in;
        inputs_read(row, &in);
        ck_assert(in.group == 1 && in.d <= 32);
        const int recent = golden_int(row, "recent"), budget = golden_int(row, "heavy") + recent;
        struct policy policy = policy_named("h2o:window=1");
        policy.recent_share = (double)recent / budget;
        struct compact_work *work = compact_work_new(in.heads, 1, in.d, 1, budget + 1);
        for (int h = 0; h < in.heads; h++) cache[h].n = 0;
        const json_t *steps = json_object_get(row, "steps");
        size_t next = 0;
        for (int t = 0; t < in.n; t++) {
            const float *keys[MOST_HEADS], *mass[MOST_HEADS];
            const int32_t *positions[MOST_HEADS], *kept[MOST_HEADS];
            int entries[MOST_HEADS], count[MOST_HEADS], noop;
            for (int h = 0; h < in.heads; h++) {
                cache_append(&cache[h], in.keys[h] + t * in.d, in.queries + (t * in.heads + h) * in.d, in.d, t);
                keys[h] = cache[h].keys, mass[h] = cache[h].mass, positions[h] = cache[h].positions;
                entries[h] = cache[h].n;
            }
            struct compact_input input = compact_input_of(&in, budget);
            input.keys = keys, input.mass = mass, input.positions = positions, input.entries = entries;
            input.queries = NULL, input.query_rows = 1, input.query_position = t;
            struct kvf_err err = {""};
            ck_assert_msg(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err) == 0, "%s: %s", id,
                          err.text);
            ck_assert_int_eq(noop, t < budget);
            for (int h = 0; h < in.heads && !noop; h++) {
                for (int j = 0; j < count[h]; j++) {
                    const int from = kept[h][j];
                    memmove(cache[h].keys + j * in.d, cache[h].keys + from * in.d, (size_t)in.d * sizeof(float));
                    cache[h].mass[j] = cache[h].mass[from];
                    cache[h].positions[j] = cache[h].positions[from];
                }
                cache[h].n = count[h];
            }
            const json_t *step = json_array_get(steps, next);
            if (step == NULL || golden_int(step, "t") != t) continue;
            next++;
            for (int h = 0; h < in.heads; h++) {
                const json_t *sums = json_array_get(json_object_get(step, "acc64"), (size_t)h);
                kept_expect(id, h, json_array_get(json_object_get(step, "kept"), (size_t)h), cache[h].positions,
                            cache[h].n);
                for (int j = 0; j < cache[h].n; j++)
                    ck_assert_double_eq_tol((double)cache[h].mass[j], golden_number(json_array_get(sums, (size_t)j)),
                                            1e-5);
            }
        }
        ck_assert_uint_eq(next, json_array_size(steps));
        compact_work_destroy(&work);
        compared++;
    }
    ck_assert_int_eq(compared, 3);
}
END_TEST

/* ---- window attention ---- */

/* The parameters that make a record's variant. `original` has no groups, so that any reduction of one query head does.
 */
static void variant_spell(const json_t *score, char *text, size_t cap)
{
    const char *variant = golden_text(score, "variant");
    const char *reduce = strcmp(variant, "rkv_repo") == 0    ? "max-logit"
                         : strcmp(variant, "adakv_max") == 0 ? "max-prob"
                                                             : "mean-prob";
    const json_t *input = find(golden_text(score, "input"));
    snprintf(text, cap, "snapkv:window=%d,kernel=%d,reduce=%s,pool=%s", golden_int(input, "W"),
             golden_int(score, "kernel"), reduce, golden_text(score, "pool"));
}

START_TEST(window_attention_equals_every_variant)
{
    const struct compact_kernels kernels = compact_kernels_plain();
    size_t index, compared = 0, original = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "snap_score") != 0) continue;
        struct inputs in;
        inputs_read(find(golden_text(row, "input")), &in);
        char text[POLICY_NAME_MAX];
        variant_spell(row, text, sizeof text);
        const struct policy policy = policy_named(text);
        const struct compact_input input = compact_input_of(&in, in.n);
        struct compact_work *work = compact_work_new(in.heads, in.group, in.d, in.rows, in.n);
        const int past = in.n - in.rows, summed = strcmp(golden_text(row, "rows"), "sum") == 0;
        const float *expected = golden_array(arrays, json_object_get(row, "S"));
        for (int h = 0; h < in.heads; h++, expected += past) {
            float score[MOST_ENTRIES], top = 0;
            attention_pooled(&policy, REDUCE_MAX_LOGIT, &input, &kernels, &work->scratch, h, in.rows, score);
            for (int j = 0; j < past; j++) top = fmaxf(top, fabsf(expected[j]));
            for (int j = 0; j < past; j++)
                ck_assert_msg(fabs((double)score[j] * (summed ? in.rows : 1) - (double)expected[j]) <=
                                  1e-6 + 1e-5 * (double)top,
                              "%s: S[%d][%d] is %.9g, expected %.9g", golden_text(row, "id"), h, j, (double)score[j],
                              (double)expected[j]);
        }
        compact_work_destroy(&work);
        original += summed;
        compared++;
    }
    ck_assert_int_eq(compared, 99);
    ck_assert_int_eq(original, 5);
}
END_TEST

START_TEST(kept_sets_equal_every_variant)
{
    size_t index, compared = 0, near = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "snap_keep") != 0) continue;
        const char *id = golden_text(row, "id");
        const json_t *score = find(golden_text(row, "score"));
        struct inputs in;
        inputs_read(find(golden_text(score, "input")), &in);
        char text[POLICY_NAME_MAX];
        variant_spell(score, text, sizeof text);
        const struct policy policy = policy_named(text);
        const struct compact_input input = compact_input_of(&in, golden_int(row, "budget"));
        struct compact_work *work = compact_work_new(in.heads, in.group, in.d, in.rows, in.n);
        const int32_t *kept[MOST_HEADS];
        int count[MOST_HEADS], noop;
        struct kvf_err err = {""};
        ck_assert_msg(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err) == 0, "%s: %s", id,
                      err.text);
        ck_assert_int_eq(noop, golden_int(row, "budget") >= in.n);
        const int past = in.n - in.rows;
        const float *reference = golden_array(arrays, json_object_get(score, "S"));
        for (int h = 0; h < in.heads && !noop; h++, reference += past) {
            const json_t *expected = json_array_get(json_object_get(row, "kept"), (size_t)h);
            if (!json_is_true(json_object_get(row, "near_tie"))) {
                kept_expect(id, h, expected, kept[h], count[h]);
                continue;
            }
            /* Rounding may choose between entries next to the cut, and only between those. */
            ck_assert_uint_eq(json_array_size(expected), (size_t)count[h]);
            int there[MOST_ENTRIES] = {0};
            float cut = INFINITY;
            for (int k = 0; k < count[h]; k++) {
                const int j = (int)json_integer_value(json_array_get(expected, (size_t)k));
                there[j] = 1;
                if (j < past) cut = fminf(cut, reference[j]);
            }
            for (int k = 0; k < count[h]; k++)
                if (!there[kept[h][k]]) ck_assert_double_le(fabs((double)reference[kept[h][k]] - (double)cut), 1e-6);
            near++;
        }
        compact_work_destroy(&work);
        compared++;
    }
    ck_assert_int_eq(compared, 401);
    ck_assert_int_gt(near, 0);
}
END_TEST

int main(void)
{
    arrays = golden_read(golden_path("compress/arrays.bin"), NULL);
    cases = golden_lines(golden_path("compress/cases.jsonl"));
    Suite *suite = suite_create("scorers golden");
    TCase *tc = tcase_create("compress");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, tova_equals_reference);
    tcase_add_test(tc, h2o_equals_reference_at_every_step);
    tcase_add_test(tc, window_attention_equals_every_variant);
    tcase_add_test(tc, kept_sets_equal_every_variant);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    json_decref(cases);
    free(arrays);
    return failed != 0;
}
