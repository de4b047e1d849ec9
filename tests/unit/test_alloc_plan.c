/* Layer plans: budgets of every offline plan on random demand, what online plans measure against a plain version in
 * double precision, and how their budgets follow from it. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/plan.h"
#include "tests/unit/random.h"

static struct policy parsed(const char *text)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_OK, "%s", err.text);
    return policy;
}

static double next_share(void)
{
    return (double)(next_bits() >> 11) * 0x1p-53;
}

static struct wave_profile profile_make(int layers, int kv_heads)
{
    struct wave_profile profile;
    memset(&profile, 0, sizeof profile);
    profile.layers = layers;
    profile.kv_heads = kv_heads;
    profile.has_demand_pooled = profile.has_layer_share = 1;
    for (int l = 0; l < layers; l++) {
        profile.demand[l] = exp(next_share() * 4.0 - 2.0);
        profile.demand_pooled[l] = exp(next_share() * 4.0 - 2.0);
        profile.layer_share[l] = (double)next_int(0, 9);
    }
    return profile;
}

/* ---- offline ---- */

static const char *const offline[] = {"rkv",
                                      "layer-only",
                                      "layer-only:gamma=0",
                                      "layer-only:demand=pooled",
                                      "zigzag-rkv",
                                      "rkv+file",
                                      "zigzag-rkv:demand=pooled",
                                      "pyramid-rkv",
                                      "tova+wave",
                                      "tova+zigzag",
                                      "tova+file"};
enum { OFFLINE = sizeof offline / sizeof offline[0] };

START_TEST(layer_budgets_are_exact_and_bounded)
{
    struct kvf_err err = {.text = ""};
    state = 1;
    for (int round = 0; round < 1000; round++) {
        struct policy policy = parsed(offline[_i]);
        policy.sinks_tokens = next_int(0, 4);
        const int layers = next_int(1, 64), heads = next_int(1, 8),
                  least = policy.window_tokens + policy.sinks_tokens + 1, budget = next_int(least, 600);
        struct wave_profile profile = profile_make(layers, heads);
        int64_t b[PROFILE_MAX_LAYERS], scaled[PROFILE_MAX_LAYERS], total = 0;
        ck_assert_msg(layer_plan_build(&policy, &profile, layers, heads, budget, b, &err) == KVF_OK, "%s", err.text);
        const int shared = strncmp(offline[_i], "tova", 4) == 0 || policy.plan == PLAN_PYRAMID;
        for (int l = 0; l < layers; l++) {
            total += b[l];
            ck_assert_int_ge(b[l], heads * least);
            if (shared) ck_assert_int_eq(b[l] % heads, 0);
            if (policy.plan == PLAN_WAVE) {
                ck_assert_int_ge(4 * b[l], heads * budget);
                ck_assert_int_le(b[l], 2 * heads * budget);
            }
            if (policy.plan == PLAN_PYRAMID && l > 0) ck_assert_int_le(b[l], b[l - 1] + heads);
            if (policy.plan == PLAN_UNIFORM || (policy.plan == PLAN_WAVE && policy.gamma == 0))
                ck_assert_int_eq(b[l], heads * budget);
        }
        ck_assert_int_eq(total, (int64_t)layers * heads * budget);
        for (int l = 0; l < layers; l++) {
            profile.demand[l] *= 0.25;
            profile.demand_pooled[l] *= 0.5;
            profile.layer_share[l] *= 4.0;
        }
        ck_assert_int_eq(layer_plan_build(&policy, &profile, layers, heads, budget, scaled, &err), KVF_OK);
        ck_assert_mem_eq(b, scaled, (size_t)layers * sizeof b[0]);
        if (policy.plan == PLAN_UNIFORM) continue;
        ck_assert_int_eq(layer_plan_build(&policy, &profile, layers, heads, least - 1, b, &err), KVF_EINVAL);
        ck_assert_str_ne(err.text, "");
    }
}
END_TEST

/* ZigZagKV's own formula: B_min + (B - B_min) * L * demand / sum of demand, to the unit that rounding moves. */
START_TEST(zigzag_is_the_formula)
{
    struct kvf_err err = {.text = ""};
    state = 2;
    for (int round = 0; round < 500; round++) {
        const struct policy policy = parsed(round % 2 ? "zigzag-rkv" : "zigzag-rkv:zigzag-min=0.5,demand=pooled");
        const int layers = next_int(1, 40), heads = next_int(1, 8), budget = next_int(60, 600);
        const struct wave_profile profile = profile_make(layers, heads);
        const double *demand = round % 2 ? profile.demand : profile.demand_pooled;
        const double mean = (double)heads * budget, least = policy.zigzag_min * mean;
        double sum = 0;
        int64_t b[PROFILE_MAX_LAYERS];
        for (int l = 0; l < layers; l++) sum += demand[l];
        ck_assert_int_eq(layer_plan_build(&policy, &profile, layers, heads, budget, b, &err), KVF_OK);
        for (int l = 0; l < layers; l++)
            ck_assert_double_le(fabs((double)b[l] - (least + (mean - least) * layers * demand[l] / sum)), 1.0);
    }
}
END_TEST

START_TEST(plans_that_do_not_fit_the_model_are_refused)
{
    const struct policy reasonalloc = parsed("reasonalloc"), rkv = parsed("rkv"), file = parsed("rkv+file"),
                        pooled = parsed("rkv+zigzag:demand=pooled");
    struct kvf_err err = {.text = ""};
    int64_t b[PROFILE_MAX_LAYERS];
    state = 3;
    struct wave_profile profile = profile_make(8, 3);
    ck_assert_int_eq(layer_plan_build(&rkv, NULL, 8, 3, 100, b, &err), KVF_OK);
    for (int l = 0; l < 8; l++) ck_assert_int_eq(b[l], 300);
    ck_assert_int_eq(layer_plan_build(&reasonalloc, NULL, 8, 3, 100, b, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "profile"));
    ck_assert_int_eq(layer_plan_build(&reasonalloc, &profile, 9, 3, 100, b, &err), KVF_EINVAL);
    ck_assert_int_eq(layer_plan_build(&reasonalloc, &profile, 8, 4, 100, b, &err), KVF_EINVAL);
    ck_assert_int_eq(layer_plan_build(&rkv, NULL, 0, 3, 100, b, &err), KVF_EINVAL);
    ck_assert_int_eq(layer_plan_build(&rkv, NULL, PROFILE_MAX_LAYERS + 1, 3, 100, b, &err), KVF_EINVAL);
    profile.has_demand_pooled = profile.has_layer_share = 0;
    ck_assert_int_eq(layer_plan_build(&reasonalloc, &profile, 8, 3, 100, b, &err), KVF_OK);
    ck_assert_int_eq(layer_plan_build(&pooled, &profile, 8, 3, 100, b, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "demand_pooled"));
    ck_assert_int_eq(layer_plan_build(&file, &profile, 8, 3, 100, b, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "layer_share"));
}
END_TEST

/* ---- measured ---- */

enum { HEADS = 4, GROUP = 3, DIM = 24, ROWS = 10, ENTRIES = 90 };
static struct {
    int heads, group, d, rows, window;
    int entries[HEADS];
    float keys[HEADS][ENTRIES * DIM], queries[ROWS * HEADS * GROUP * DIM];
} layer;

static void layer_make(void)
{
    layer.heads = next_int(1, HEADS);
    layer.group = next_int(1, GROUP);
    layer.d = next_int(1, DIM);
    layer.rows = next_int(1, ROWS);
    layer.window = next_int(1, layer.rows);
    for (int h = 0; h < layer.heads; h++) {
        layer.entries[h] = next_int(layer.rows, ENTRIES);
        for (int i = 0; i < ENTRIES * layer.d; i++) layer.keys[h][i] = (float)(6.0 * next_share() - 3.0);
    }
    for (int i = 0; i < layer.rows * layer.heads * layer.group * layer.d; i++)
        layer.queries[i] = (float)(4.0 * next_share() - 2.0);
}

static double measured(const struct policy *policy, int *code)
{
    const float *keys[HEADS];
    for (int h = 0; h < layer.heads; h++) keys[h] = layer.keys[h];
    const struct compact_input input = {.kv_heads = layer.heads,
                                        .group = layer.group,
                                        .head_dim = layer.d,
                                        .keys = keys,
                                        .entries = layer.entries,
                                        .queries = layer.queries,
                                        .query_rows = layer.rows};
    struct compact_work *work = compact_work_new(layer.heads, layer.group, layer.d, ROWS, ENTRIES);
    double statistic = -1;
    struct kvf_err err = {.text = ""};
    *code = plan_measure(policy, &input, NULL, work, &statistic, &err);
    compact_work_destroy(&work);
    return statistic;
}

/* p[j]: softmax of query head (h, g) of the window's row w over what it sees. */
static int row_probability(int h, int g, int w, double *p)
{
    const int visible = layer.entries[h] - layer.window + 1 + w;
    const float *query =
        layer.queries + (((layer.rows - layer.window + w) * layer.heads + h) * layer.group + g) * layer.d;
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < visible; j++) {
        p[j] = 0;
        for (int k = 0; k < layer.d; k++) p[j] += (double)query[k] * (double)layer.keys[h][j * layer.d + k];
        p[j] /= sqrt((double)layer.d);
        top = fmax(top, p[j]);
    }
    for (int j = 0; j < visible; j++) sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < visible; j++) p[j] /= sum;
    return visible;
}

static double cake_reference(double tau1, double tau2)
{
    double entropy = 0, variance = 0, p[ROWS][ENTRIES];
    for (int h = 0; h < layer.heads; h++)
        for (int g = 0; g < layer.group; g++) {
            for (int w = 0; w < layer.window; w++) row_probability(h, g, w, p[w]);
            for (int j = 0; j < layer.entries[h] - layer.window; j++) {
                double mean = 0, square = 0;
                for (int w = 0; w < layer.window; w++) mean += p[w][j] / layer.window;
                for (int w = 0; w < layer.window; w++) {
                    square += (p[w][j] - mean) * (p[w][j] - mean);
                    entropy -= p[w][j] * log(p[w][j] + 1e-10);
                }
                if (layer.window > 1) variance += square / (layer.window - 1);
            }
        }
    return pow(fmax(entropy, 0), 1 / tau1) * pow(variance, 1 / tau2);
}

START_TEST(cake_is_entropy_times_variance)
{
    int code, large = 0;
    state = 4;
    for (int round = 0; round < 300; round++) {
        struct policy policy = parsed(round % 2 ? "cake" : "cake:tau1=1.6,tau2=0.6");
        layer_make();
        policy.window_tokens = layer.window;
        const double got = measured(&policy, &code), expected = cake_reference(policy.tau1, policy.tau2);
        ck_assert_int_eq(code, KVF_OK);
        ck_assert_msg(fabs(got - expected) <= 1e-9 + 1e-4 * expected, "round %d: %.9g, expected %.9g", round, got,
                      expected);
        large += expected > 1e-3;
    }
    ck_assert_int_gt(large, 150);
}
END_TEST

static double demand_reference(double rho, int pooled)
{
    double all[HEADS * ENTRIES], p[ENTRIES], scratch[HEADS * ENTRIES], counts = 0;
    int held = 0;
    for (int h = 0; h < layer.heads; h++) {
        double *mean = all + held;
        for (int j = 0; j < layer.entries[h]; j++) mean[j] = 0;
        for (int g = 0; g < layer.group; g++)
            for (int w = 0; w < layer.window; w++) {
                const int visible = row_probability(h, g, w, p);
                for (int j = 0; j < visible; j++) mean[j] += p[j] / (layer.window * layer.group);
            }
        if (!pooled) counts += demand_count(mean, layer.entries[h], rho, scratch);
        held += layer.entries[h];
    }
    if (pooled) counts = demand_count(all, held, rho * layer.heads, scratch);
    return counts / layer.heads;
}

START_TEST(dynamic_is_the_wave_of_the_live_cache)
{
    int code, exact = 0;
    state = 5;
    for (int round = 0; round < 300; round++) {
        const int pooled = round % 2;
        struct policy policy = parsed(pooled ? "dynamic:demand=pooled" : "dynamic:rho=0.8");
        layer_make();
        policy.window_tokens = layer.window;
        const double got = measured(&policy, &code);
        ck_assert_int_eq(code, KVF_OK);
        /* Single precision may decide a sum that is as near to rho as this. */
        ck_assert_double_ge(got, demand_reference(policy.rho - 1e-5, pooled));
        ck_assert_double_le(got, demand_reference(policy.rho + 1e-5, pooled));
        exact += fabs(got - demand_reference(policy.rho, pooled)) < 1e-9;
    }
    ck_assert_int_gt(exact, 295);
}
END_TEST

START_TEST(measuring_refuses_what_it_cannot_measure)
{
    int code;
    int64_t b[2];
    const int64_t held[2] = {500, 500};
    struct kvf_err err = {.text = ""};
    state = 6;
    static const char *const online[] = {"dynamic", "cake", "dynamic:demand=pooled"};
    for (int i = 0; i < 3; i++) {
        struct policy policy = parsed(online[i]);
        do layer_make();
        while (layer.window < 2 || layer.entries[0] < layer.window + 2);
        policy.window_tokens = layer.window;
        layer.keys[0][0] = NAN;
        double statistic[2] = {1.0, measured(&policy, &code)};
        ck_assert_int_eq(code, KVF_OK);
        ck_assert(isnan(statistic[1]));
        ck_assert_int_eq(plan_refresh(&policy, statistic, held, NULL, 2, 2, 100, b, &err), KVF_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "layer 1"));
        statistic[1] = INFINITY;
        ck_assert_int_eq(plan_refresh(&policy, statistic, held, NULL, 2, 2, 100, b, &err), KVF_EINVAL);
        statistic[1] = -1;
        ck_assert_int_eq(plan_refresh(&policy, statistic, held, NULL, 2, 2, 100, b, NULL), KVF_EINVAL);
        statistic[1] = 1;
        policy.ema = 0.5;
        ck_assert_int_eq(plan_refresh(&policy, statistic, held, NULL, 2, 2, 100, b, &err), KVF_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "memory"));
        layer.rows = 0;
        measured(&policy, &code);
        ck_assert_int_eq(code, KVF_EINVAL);
    }
}
END_TEST

/* ---- budgets from what was measured ---- */

START_TEST(refreshed_budgets_are_exact_and_never_wasted)
{
    static const char *const online[] = {"dynamic", "cake", "tova+dynamic", "tova+cake", "dynamic:clip-high=1"};
    struct kvf_err err = {.text = ""};
    int capped = 0;
    state = 7;
    for (int round = 0; round < 2000; round++) {
        const struct policy policy = parsed(online[round % 5]);
        const int layers = next_int(1, 40), heads = next_int(1, 8), budget = next_int(9, 300);
        const int shared = round % 5 == 2 || round % 5 == 3;
        double statistic[PROFILE_MAX_LAYERS];
        int64_t held[PROFILE_MAX_LAYERS], b[PROFILE_MAX_LAYERS], total = 0, all = 0;
        for (int l = 0; l < layers; l++) {
            statistic[l] = round % 7 == 0 ? 0 : exp(4.0 * next_share());
            held[l] = (int64_t)heads * next_int(budget / 2, 3 * budget);
            all += held[l];
        }
        ck_assert_msg(plan_refresh(&policy, statistic, held, NULL, layers, heads, budget, b, &err) == KVF_OK, "%s",
                      err.text);
        for (int l = 0; l < layers; l++) {
            total += b[l];
            ck_assert_int_ge(b[l], heads * 9);
            if (shared) ck_assert_int_eq(b[l] % heads, 0);
            if (all >= (int64_t)layers * heads * budget + layers * heads * 9)
                ck_assert_int_le(b[l],
                                 held[l] > heads * 9 ? fmax((double)held[l], heads * budget / 4.0 + 1) : heads * 9);
            else if (all < (int64_t)layers * heads * budget && budget > 36)
                ck_assert_int_eq(b[l], heads * budget);
            capped += b[l] == held[l];
        }
        ck_assert_int_eq(total, (int64_t)layers * heads * budget);
    }
    ck_assert_int_gt(capped, 200);
}
END_TEST

START_TEST(earlier_measurements_fade)
{
    const struct policy policy = parsed("snapkv+cake:ema=0.75");
    struct policy plain = parsed("cake");
    enum { LAYERS = 5 };
    double memory[LAYERS + LAYERS * 2] = {0}, expected[LAYERS];
    const int64_t held[LAYERS] = {5000, 5000, 5000, 5000, 5000};
    int64_t b[LAYERS], same[LAYERS];
    state = 8;
    ck_assert_int_eq(policy_memory_doubles(&policy, LAYERS, 2), LAYERS + LAYERS * 2);
    ck_assert_int_eq(policy_memory_doubles(&plain, LAYERS, 2), 0);
    plain = parsed("reasonalloc:smooth=0.5");
    ck_assert_int_eq(policy_memory_doubles(&plain, LAYERS, 2), LAYERS + LAYERS * 2);
    ck_assert_ptr_eq(policy_memory_layer(memory, LAYERS, 2, 3), memory + LAYERS + 6);
    ck_assert_ptr_null(policy_memory_layer(NULL, LAYERS, 2, 3));
    plain = parsed("cake");
    for (int refresh = 0; refresh < 20; refresh++) {
        double statistic[LAYERS], sum = 0;
        for (int l = 0; l < LAYERS; l++) sum += statistic[l] = 0.01 + next_share();
        for (int l = 0; l < LAYERS; l++)
            expected[l] = refresh == 0 ? statistic[l] / sum : 0.75 * expected[l] + 0.25 * statistic[l] / sum;
        ck_assert_int_eq(plan_refresh(&policy, statistic, held, policy_memory_plan(memory), LAYERS, 2, 100, b, NULL),
                         0);
        ck_assert_int_eq(plan_refresh(&plain, expected, held, NULL, LAYERS, 2, 100, same, NULL), 0);
        for (int l = 0; l < LAYERS; l++) {
            ck_assert_double_eq_tol(memory[l], expected[l], 1e-12);
            ck_assert_int_le(llabs((long long)(b[l] - same[l])), 1);
        }
    }
    for (int i = LAYERS; i < LAYERS + LAYERS * 2; i++) ck_assert(memory[i] == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tc = tcase_create("layers");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, layer_budgets_are_exact_and_bounded, 0, OFFLINE);
    tcase_add_test(tc, zigzag_is_the_formula);
    tcase_add_test(tc, plans_that_do_not_fit_the_model_are_refused);
    tcase_add_test(tc, cake_is_entropy_times_variance);
    tcase_add_test(tc, dynamic_is_the_wave_of_the_live_cache);
    tcase_add_test(tc, measuring_refuses_what_it_cannot_measure);
    tcase_add_test(tc, refreshed_budgets_are_exact_and_never_wasted);
    tcase_add_test(tc, earlier_measurements_fade);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
