/* The compression algorithms against golden/compress: ALLOC, layer demand and plans, head routing, scores, kept sets.
 */
#include <check.h>

#include "alloc/apportion.h"
#include "alloc/compact.h"
#include "alloc/plan.h"
#include "alloc/route.h"
#include "alloc/score.h"
#include "alloc/select.h"
#include "alloc/work.h"
#include "tests/golden/golden.h"

static char *arrays;
static json_t *cases, *route_cases;

static const json_t *find(const json_t *rows, const char *id)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (strcmp(golden_text(row, "id"), id) == 0) return row;
    ck_abort_msg("no record %s", id);
}

START_TEST(apportion_equals_225_cases)
{
    json_t *rows = golden_lines(golden_path("compress/alloc.jsonl")), *row;
    size_t index, compared = 0;
    json_array_foreach(rows, index, row)
    {
        const json_t *w = json_object_get(row, "w"), *lo = json_object_get(row, "lo"), *hi = json_object_get(row, "hi");
        int n = (int)json_array_size(w);
        double weight[APPORTION_MAX];
        int64_t low[APPORTION_MAX], high[APPORTION_MAX], share[APPORTION_MAX], sum = 0;
        for (int i = 0; i < n; i++) {
            weight[i] = golden_number(json_array_get(w, (size_t)i));
            low[i] = json_integer_value(json_array_get(lo, (size_t)i));
            high[i] = json_integer_value(json_array_get(hi, (size_t)i));
        }
        struct kvf_err err = {""};
        int64_t total = json_integer_value(json_object_get(row, "T"));
        int rc = apportion(weight, total, low, high, n, share, &err);
        compared++;
        const json_t *error = json_object_get(row, "error");
        if (error != NULL && !json_is_null(error)) {
            ck_assert_msg(rc == KVF_EINVAL && err.text[0] != '\0', "%s is not refused", golden_text(row, "id"));
            continue;
        }
        ck_assert_msg(rc == 0, "%s: %s", golden_text(row, "id"), err.text);
        int slack = json_is_true(json_object_get(row, "float_sensitive"));
        for (int i = 0; i < n; i++) {
            int64_t expected = json_integer_value(json_array_get(json_object_get(row, "b"), (size_t)i));
            ck_assert_msg(llabs((long long)(share[i] - expected)) <= slack, "%s[%d]: %lld, expected %lld",
                          golden_text(row, "id"), i, (long long)share[i], (long long)expected);
            ck_assert(share[i] >= low[i] && share[i] <= high[i]);
            sum += share[i];
        }
        ck_assert_int_eq(sum, total);
    }
    ck_assert_int_eq(compared, 225);
    json_decref(rows);
}
END_TEST

START_TEST(demand_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(route_cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "demand") != 0) continue;
        const int layers = golden_int(row, "L"), heads = golden_int(row, "H");
        struct demand_sum sum = {0};
        size_t s;
        json_t *sample;
        json_array_foreach(json_object_get(row, "samples"), s, sample)
        {
            const int n = golden_int(sample, "n");
            const float *attention = golden_array(arrays, json_object_get(sample, "attention"));
            double *wide = malloc(2 * (size_t)n * sizeof *wide), x[PROFILE_MAX_LAYERS];
            for (int l = 0; l < layers; l++) {
                x[l] = 0;
                for (int h = 0; h < heads; h++) {
                    for (int j = 0; j < n; j++) wide[j] = attention[(l * heads + h) * n + j];
                    int count = demand_count(wide, n, golden_real(row, "rho"), wide + n);
                    int expected = (int)json_integer_value(
                        json_array_get(json_array_get(json_object_get(sample, "n_lit"), (size_t)l), (size_t)h));
                    /* rho 1: the reference itself compares with the tolerance of its sum */
                    if (golden_real(row, "rho") < 1) ck_assert_int_eq(count, expected);
                    x[l] += (double)expected / heads;
                }
            }
            demand_add(&sum, x, layers);
            free(wide);
        }
        double demand[PROFILE_MAX_LAYERS];
        demand_finish(&sum, layers, demand);
        for (int l = 0; l < layers; l++)
            ck_assert_double_eq_tol(demand[l], golden_number(json_array_get(json_object_get(row, "D"), (size_t)l)),
                                    1e-12);
        compared++;
    }
    ck_assert_int_eq(compared, 7);
}
END_TEST

START_TEST(demand_from_keys_and_queries_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(route_cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "demand_qk") != 0) continue;
        const int heads = golden_int(row, "H"), q_heads = golden_int(row, "q_heads"), n = golden_int(row, "n");
        const int d = golden_int(row, "d"), window = golden_int(row, "W"), group = q_heads / heads;
        const float *keys = golden_array(arrays, json_object_get(row, "K"));
        const float *queries = golden_array(arrays, json_object_get(row, "Q"));
        const json_t *causal = json_object_get(row, "causal");
        double *work = malloc(3 * (size_t)n * sizeof *work), x = 0;
        for (int h = 0; h < heads; h++) {
            demand_attention(keys + (size_t)h * n * d, n, d, queries + h * group * d, window, (int64_t)q_heads * d,
                             group, work, work + n);
            const json_t *first = json_array_get(json_object_get(causal, "a_first8"), (size_t)h);
            for (size_t j = 0; j < 8; j++)
                ck_assert_double_eq_tol(work[(size_t)n + j], golden_number(json_array_get(first, j)), 1e-12);
            int count = demand_count(work + n, n, golden_real(row, "rho"), work + 2 * n);
            ck_assert_int_eq(count, json_integer_value(json_array_get(json_object_get(causal, "n_i"), (size_t)h)));
            x += (double)count / heads;
        }
        ck_assert_double_eq_tol(x, golden_real(causal, "x"), 1e-12);
        free(work);
        compared++;
    }
    ck_assert_int_eq(compared, 3);
}
END_TEST

START_TEST(layer_plan_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(route_cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "layer_plan") != 0) continue;
        struct policy policy;
        ck_assert_int_eq(policy_parse("reasonalloc", &policy, NULL), 0);
        policy.window_tokens = golden_int(row, "W");
        policy.sinks_tokens = golden_int(row, "sinks");
        policy.gamma = golden_real(row, "gamma");
        struct wave_profile profile = {.layers = golden_int(row, "L"), .kv_heads = golden_int(row, "H")};
        for (int l = 0; l < profile.layers; l++)
            profile.demand[l] = golden_number(json_array_get(json_object_get(row, "D"), (size_t)l));
        int64_t budget[PROFILE_MAX_LAYERS];
        struct kvf_err err = {""};
        int rc =
            layer_plan_build(&policy, &profile, profile.layers, profile.kv_heads, golden_int(row, "b"), budget, &err);
        compared++;
        const json_t *error = json_object_get(row, "error");
        if (error != NULL && !json_is_null(error)) {
            ck_assert_int_eq(rc, KVF_EINVAL);
            continue;
        }
        ck_assert_msg(rc == 0, "%s: %s", golden_text(row, "id"), err.text);
        int slack = json_is_true(json_object_get(row, "float_sensitive"));
        for (int l = 0; l < profile.layers; l++)
            ck_assert_msg(llabs((long long)(budget[l] - json_integer_value(json_array_get(json_object_get(row, "B"),
                                                                                          (size_t)l)))) <= slack,
                          "%s: layer %d has %lld", golden_text(row, "id"), l, (long long)budget[l]);
    }
    ck_assert_int_eq(compared, 14);
}
END_TEST

/* Kept entries of one head from its budget and candidates' ranks. */
static int keep(const uint32_t *rank, int candidates, int n, int window, int sinks, int64_t budget, int32_t *out)
{
    int count = 0;
    if (budget >= n) {
        for (; count < n; count++) out[count] = count;
        return count;
    }
    for (; count < sinks; count++) out[count] = count;
    count += select_best(rank, candidates, (int)budget - window - sinks, sinks, out + count);
    for (int j = n - window; j < n; j++) out[count++] = j;
    return count;
}

static void kept_expect(const char *id, const char *mode, int head, const json_t *expected, const int32_t *kept,
                        int count)
{
    ck_assert_msg((int)json_array_size(expected) == count, "%s %s head %d: %d kept, expected %zu", id, mode, head,
                  count, json_array_size(expected));
    for (int k = 0; k < count; k++)
        ck_assert_msg(json_integer_value(json_array_get(expected, (size_t)k)) == kept[k],
                      "%s %s head %d: kept[%d] is %d", id, mode, head, k, kept[k]);
}

START_TEST(head_routing_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(route_cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "head_route") != 0) continue;
        const char *id = golden_text(row, "id");
        const int heads = golden_int(row, "H"), window = golden_int(row, "W"), sinks = golden_int(row, "sinks");
        const float *scores = golden_array(arrays, json_object_get(row, "S"));
        for (int relative = 0; relative < 2; relative++) {
            const char *mode = relative ? "relative" : "raw";
            const json_t *expected = json_object_get(row, mode);
            if (expected == NULL) continue;
            struct policy policy;
            ck_assert_int_eq(policy_parse("reasonalloc", &policy, NULL), 0);
            policy.sinks_tokens = sinks;
            policy.beta = golden_real(row, "beta");
            policy.mu = golden_real(row, "mu");
            int entries[64], candidates[64], always[64], cap[64], total = 0, held = 0, binds = 0;
            const json_t *caps = json_object_get(row, "cap");
            for (int h = 0; h < heads; h++) {
                entries[h] = (int)json_integer_value(json_array_get(json_object_get(row, "n"), (size_t)h));
                always[h] = window + sinks;
                candidates[h] = entries[h] - always[h] > 0 ? entries[h] - always[h] : 0;
                cap[h] = json_is_array(caps) ? (int)json_integer_value(json_array_get(caps, (size_t)h)) : entries[h];
                binds += cap[h] < entries[h];
                total += candidates[h];
                held += entries[h];
            }
            int64_t budget = json_integer_value(json_object_get(row, "B_l"));
            if (json_is_true(json_object_get(expected, "noop"))) {
                ck_assert(held <= budget && !binds);
                compared++;
                continue;
            }
            uint32_t *rank = malloc(((size_t)total + 1) * sizeof *rank);
            for (int h = 0, at = 0; h < heads; h++)
                for (int j = 0; j < candidates[h]; j++, at++)
                    rank[at] = score_rank(relative ? scores[at] * (float)entries[h] : scores[at]);
            struct route route;
            struct kvf_err err = {""};
            const struct route_input input = {.heads = heads,
                                              .entries = entries,
                                              .always = always,
                                              .candidates = candidates,
                                              .rank = rank,
                                              .cap = json_is_array(caps) ? cap : NULL,
                                              .layer_budget = budget};
            int rc = route_reasonalloc(&policy, &input, &route, &err);
            if (json_object_get(expected, "error") != NULL) {
                ck_assert_int_eq(rc, KVF_EINVAL);
                free(rank);
                compared++;
                continue;
            }
            ck_assert_msg(rc == 0, "%s: %s", id, err.text);
            ck_assert_int_eq(route.threshold_k, json_integer_value(json_object_get(expected, "K")));
            int slack = json_is_true(json_object_get(expected, "float_sensitive"));
            int32_t kept[1024];
            for (int h = 0, at = 0; h < heads; at += candidates[h], h++) {
                size_t i = (size_t)h;
                ck_assert_msg(route.demand[h] == json_integer_value(json_array_get(json_object_get(expected, "r"), i)),
                              "%s %s: r[%d] is %lld", id, mode, h, (long long)route.demand[h]);
                ck_assert_int_eq(route.lo[h], json_integer_value(json_array_get(json_object_get(expected, "lo"), i)));
                ck_assert_int_eq(route.hi[h], json_integer_value(json_array_get(json_object_get(expected, "hi"), i)));
                int64_t want = json_integer_value(json_array_get(json_object_get(expected, "budgets"), i));
                ck_assert_msg(llabs((long long)(route.budget[h] - want)) <= slack,
                              "%s %s: b[%d] is %lld, expected %lld", id, mode, h, (long long)route.budget[h],
                              (long long)want);
                int count = keep(rank + at, candidates[h], entries[h], window, sinks, want, kept);
                kept_expect(id, mode, h, json_array_get(json_object_get(expected, "kept"), i), kept, count);
            }
            free(rank);
            compared++;
        }
    }
    ck_assert_int_ge(compared, 27);
}
END_TEST

START_TEST(whole_layer_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(route_cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "reasonalloc_layer") != 0) continue;
        const int heads = golden_int(row, "H"), q_heads = golden_int(row, "q_heads"), d = golden_int(row, "d");
        const float *keys[8];
        int entries[8], longest = 0;
        for (int h = 0; h < heads; h++) {
            keys[h] = golden_array(arrays, json_array_get(json_object_get(row, "K"), (size_t)h));
            entries[h] = (int)json_integer_value(json_array_get(json_object_get(row, "n"), (size_t)h));
            longest = entries[h] > longest ? entries[h] : longest;
        }
        struct compact_work *work = compact_work_new(heads, q_heads / heads, d, 8, longest);
        for (int relative = 0; relative < 2; relative++) {
            struct policy policy;
            ck_assert_int_eq(policy_parse(relative ? "reasonalloc-relative" : "reasonalloc", &policy, NULL), 0);
            policy.sinks_tokens = golden_int(row, "sinks");
            policy.lambda = golden_real(row, "lambda");
            struct compact_input input = {.kv_heads = heads,
                                          .group = q_heads / heads,
                                          .head_dim = d,
                                          .keys = keys,
                                          .entries = entries,
                                          .query_rows = golden_int(row, "W"),
                                          .queries = golden_array(arrays, json_object_get(row, "Q")),
                                          .layer_budget = json_integer_value(json_object_get(row, "B_l"))};
            const int32_t *kept[8];
            int count[8], noop;
            struct kvf_err err = {""};
            ck_assert_msg(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err) == 0, "%s", err.text);
            const json_t *expected = json_object_get(row, relative ? "relative" : "raw");
            ck_assert_int_eq(noop, json_is_true(json_object_get(expected, "noop")));
            for (int h = 0; !noop && h < heads; h++)
                kept_expect(golden_text(row, "id"), relative ? "relative" : "raw", h,
                            json_array_get(json_object_get(expected, "kept"), (size_t)h), kept[h], count[h]);
        }
        compact_work_destroy(&work);
        compared++;
    }
    ck_assert_int_eq(compared, 4);
}
END_TEST

static void near_expect(const char *id, const char *what, const float *got, const float *expected, int n)
{
    double top = 0;
    for (int i = 0; i < n; i++) top = fmax(top, fabs((double)expected[i]));
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - expected[i]) <= 1e-6 + 1e-5 * top, "%s %s[%d]: %.9g, expected %.9g", id,
                      what, i, (double)got[i], (double)expected[i]);
}

struct inputs {
    int heads, group, n, d, window;
    const float *keys, *queries;
};

static struct inputs inputs_of(const json_t *score)
{
    const json_t *in = find(cases, golden_text(score, "input"));
    struct inputs out = {.heads = golden_int(in, "kv_heads"),
                         .n = golden_int(in, "n"),
                         .d = golden_int(in, "d"),
                         .window = golden_int(in, "W"),
                         .keys = golden_array(arrays, json_object_get(in, "K")),
                         .queries = golden_array(arrays, json_object_get(in, "Q"))};
    out.group = golden_int(in, "q_heads") / out.heads;
    return out;
}

static int is_built(const json_t *row)
{
    const char *kind = golden_text(row, "kind");
    const char *direction = golden_text(row, "direction");
    if (strcmp(kind, "rkv_score") == 0) return strcmp(direction, "last") == 0 || strcmp(direction, "first") == 0;
    return strcmp(kind, "snap_score") == 0 && strcmp(golden_text(row, "variant"), "rkv_repo") == 0;
}

START_TEST(scores_equal_reference)
{
    struct compact_kernels kernels = compact_kernels_plain();
    size_t index, rkv = 0, snap = 0, firsts = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (!is_built(row)) continue;
        const char *id = golden_text(row, "id");
        struct inputs in = inputs_of(row);
        const int past = in.n - in.window, is_rkv = golden_text(row, "kind")[0] == 'r';
        float *imp = malloc(3 * (size_t)in.n * sizeof *imp), *pooled = imp + in.n, *red = pooled + in.n;
        struct compact_work *work = compact_work_new(in.heads, in.group, in.d, in.window, in.n);
        struct score_scratch *scratch = &work->scratch;
        const struct compact_tiles tiles = {scratch->tile_at, PAGE_F32};
        const int32_t *relieved = scratch->marker;
        for (int h = 0; h < in.heads; h++) {
            const float *keys = in.keys + (size_t)h * in.n * in.d;
            score_tiles(keys, in.n, in.d, scratch->tile);
            score_importance(&kernels, &tiles, past, in.d, in.queries + h * in.group * in.d, in.window,
                             (int64_t)in.heads * in.group * in.d, in.group, scratch->row, imp);
            score_max_pool(imp, past, golden_int(row, "kernel"), pooled);
            if (!is_rkv) {
                near_expect(id, "S", pooled, golden_array(arrays, json_object_get(row, "S")) + h * past, past);
                continue;
            }
            const int is_first = strcmp(golden_text(row, "direction"), "first") == 0;
            score_redundancy(&kernels, &tiles, in.n, in.d, is_first ? INFINITY : golden_real(row, "threshold"), scratch,
                             red);
            firsts += (size_t)is_first;
            near_expect(id, "imp", imp, golden_array(arrays, json_object_get(row, "imp")) + h * past, past);
            near_expect(id, "pooled", pooled, golden_array(arrays, json_object_get(row, "pooled")) + h * past, past);
            near_expect(id, "red", red, golden_array(arrays, json_object_get(row, "red")) + h * in.n, in.n);
            if (json_is_array(json_object_get(row, "r"))) {
                const json_t *expected = json_array_get(json_object_get(row, "r"), (size_t)h);
                for (int i = 0; i < in.n; i++)
                    ck_assert_msg(relieved[i] == json_integer_value(json_array_get(expected, (size_t)i)),
                                  "%s head %d: r[%d] is %d", id, h, i, relieved[i]);
            }
            near_expect(id, "colmean", scratch->column,
                        golden_array(arrays, json_object_get(row, "colmean")) + h * in.n, in.n);
            const float lambda = (float)golden_real(row, "lambda");
            for (int j = 0; j < past; j++) pooled[j] = lambda * pooled[j] - (1 - lambda) * red[j];
            near_expect(id, "S", pooled, golden_array(arrays, json_object_get(row, "S")) + h * past, past);
        }
        rkv += is_rkv;
        snap += !is_rkv;
        free(imp);
        compact_work_destroy(&work);
    }
    ck_assert_int_gt(rkv, 45);
    ck_assert_int_gt(firsts, 1);
    ck_assert_int_gt(snap, 15);
}
END_TEST

/* kept equals the reference, or differs only in entries whose reference score is within the tolerance of the cut. */
static void kept_near_expect(const json_t *row, int head, const float *score, int past, const int32_t *kept, int count,
                             double tolerance)
{
    const json_t *expected = json_array_get(json_object_get(row, "kept"), (size_t)head);
    const char *id = golden_text(row, "id");
    ck_assert_msg((int)json_array_size(expected) == count, "%s head %d: %d kept, expected %zu", id, head, count,
                  json_array_size(expected));
    int same = 1;
    for (int k = 0; k < count; k++) same &= json_integer_value(json_array_get(expected, (size_t)k)) == kept[k];
    if (same) return;
    ck_assert_msg(json_is_true(json_object_get(row, "near_tie")), "%s head %d: another set, and no near tie", id, head);
    double cut = INFINITY;
    for (int k = 0; k < count; k++) {
        int j = (int)json_integer_value(json_array_get(expected, (size_t)k));
        if (j < past) cut = fmin(cut, (double)score[j]);
    }
    for (int k = 0; k < count; k++) {
        int there = 0;
        for (int i = 0; i < count; i++) there |= json_integer_value(json_array_get(expected, (size_t)i)) == kept[k];
        if (!there) ck_assert_double_le(fabs((double)score[kept[k]] - cut), tolerance);
    }
}

START_TEST(kept_sets_equal_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        const int is_rkv = strcmp(golden_text(row, "kind"), "rkv_keep") == 0;
        if (!is_rkv && strcmp(golden_text(row, "kind"), "snap_keep") != 0) continue;
        const json_t *score = find(cases, golden_text(row, "score"));
        if (!is_built(score)) continue;
        struct inputs in = inputs_of(score);
        const int past = in.n - in.window;
        struct policy policy;
        ck_assert_int_eq(policy_parse(is_rkv ? "rkv" : "snapkv", &policy, NULL), 0);
        policy.window_tokens = in.window;
        policy.kernel = golden_int(score, "kernel");
        if (is_rkv) {
            policy.lambda = golden_real(score, "lambda");
            policy.similarity = golden_real(score, "threshold");
            policy.retain = strcmp(golden_text(score, "direction"), "first") == 0 ? RETAIN_FIRST : RETAIN_LAST;
        }
        const float *keys[8];
        int entries[8];
        for (int h = 0; h < in.heads; h++) {
            keys[h] = in.keys + (size_t)h * in.n * in.d;
            entries[h] = in.n;
        }
        struct compact_work *work = compact_work_new(in.heads, in.group, in.d, in.window, in.n);
        struct compact_input input = {.kv_heads = in.heads,
                                      .group = in.group,
                                      .head_dim = in.d,
                                      .keys = keys,
                                      .entries = entries,
                                      .queries = in.queries,
                                      .query_rows = in.window,
                                      .layer_budget = (int64_t)golden_int(row, "budget") * in.heads};
        const int32_t *kept[8];
        int count[8], noop;
        struct kvf_err err = {""};
        ck_assert_msg(compact_layer(&policy, &input, NULL, work, kept, count, &noop, &err) == 0, "%s: %s",
                      golden_text(row, "id"), err.text);
        const float *reference = golden_array(arrays, json_object_get(score, "S"));
        if (golden_int(row, "budget") >= in.n) {
            ck_assert_int_eq(noop, 1);
        } else {
            for (int h = 0; h < in.heads; h++)
                kept_near_expect(row, h, reference + h * past, past, kept[h], count[h], is_rkv ? 5e-7 : 1e-6);
        }
        compact_work_destroy(&work);
        compared++;
    }
    ck_assert_int_gt(compared, 350);
    printf("kept sets compared: %zu\n", compared);
}
END_TEST

START_TEST(streaming_equals_reference)
{
    size_t index, compared = 0;
    json_t *row;
    json_array_foreach(cases, index, row)
    {
        if (strcmp(golden_text(row, "kind"), "streaming") != 0) continue;
        const int n = golden_int(row, "n"), budget = golden_int(row, "budget"), sinks = golden_int(row, "sinks");
        struct policy policy;
        ck_assert_int_eq(policy_parse("streaming", &policy, NULL), 0);
        policy.sinks_tokens = sinks;
        policy.window_tokens = 0; /* recency alone decides */
        const float key = 0, query = 0, *keys[1] = {&key};
        struct compact_work *work = compact_work_new(1, 1, 1, 8, n);
        struct compact_input input = {.kv_heads = 1,
                                      .group = 1,
                                      .head_dim = 1,
                                      .keys = keys,
                                      .entries = &n,
                                      .queries = &query,
                                      .query_rows = 1,
                                      .layer_budget = budget};
        const int32_t *kept[1];
        int count[1], noop;
        ck_assert_int_eq(compact_layer(&policy, &input, NULL, work, kept, count, &noop, NULL), 0);
        ck_assert_int_eq(noop, budget >= n);
        if (!noop) kept_expect(golden_text(row, "id"), "", 0, json_object_get(row, "kept"), kept[0], count[0]);
        compact_work_destroy(&work);
        compared++;
    }
    ck_assert_int_eq(compared, 9);
}
END_TEST

int main(void)
{
    arrays = golden_read(golden_path("compress/arrays.bin"), NULL);
    cases = golden_lines(golden_path("compress/cases.jsonl"));
    route_cases = golden_lines(golden_path("compress/reasonalloc.jsonl"));
    Suite *suite = suite_create("alloc golden");
    TCase *tc = tcase_create("compress");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, apportion_equals_225_cases);
    tcase_add_test(tc, demand_equals_reference);
    tcase_add_test(tc, demand_from_keys_and_queries_equals_reference);
    tcase_add_test(tc, layer_plan_equals_reference);
    tcase_add_test(tc, head_routing_equals_reference);
    tcase_add_test(tc, whole_layer_equals_reference);
    tcase_add_test(tc, scores_equal_reference);
    tcase_add_test(tc, kept_sets_equal_reference);
    tcase_add_test(tc, streaming_equals_reference);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    json_decref(cases);
    json_decref(route_cases);
    free(arrays);
    return failed != 0;
}
