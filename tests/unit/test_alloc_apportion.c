/* Properties of ALLOC on random inputs: exact totals, bounds, nearness to the real solution, symmetry. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/apportion.h"
#include "tests/unit/random.h"

enum { CASES = 3000, MOST = 48 };

static double next_real(void)
{
    return (double)(next_bits() >> 11) * 0x1p-53;
}

struct problem {
    int n;
    double w[MOST];
    int64_t total, low[MOST], high[MOST], share[MOST];
};

/* A feasible problem; weights differ from each other almost surely and spread over several magnitudes. */
static void problem_make(struct problem *p)
{
    p->n = next_int(1, MOST);
    int64_t lows = 0, highs = 0;
    for (int i = 0; i < p->n; i++) {
        p->w[i] = exp(6.0 * next_real() - 3.0);
        p->low[i] = next_int(0, 20);
        p->high[i] = p->low[i] + next_int(0, 200);
        lows += p->low[i];
        highs += p->high[i];
    }
    p->total = lows + (int64_t)(next_real() * (double)(highs - lows + 1));
}

static void problem_solve(struct problem *p)
{
    struct kvf_err err = {.text = ""};
    int rc = apportion(p->w, p->total, p->low, p->high, p->n, p->share, &err);
    ck_assert_msg(rc == KVF_OK, "%s", err.text);
    int64_t sum = 0;
    for (int i = 0; i < p->n; i++) {
        ck_assert_int_ge(p->share[i], p->low[i]);
        ck_assert_int_le(p->share[i], p->high[i]);
        sum += p->share[i];
    }
    ck_assert_int_eq(sum, p->total);
}

static double level_of(const struct problem *p, double c, int i)
{
    return fmin(fmax(c * p->w[i], (double)p->low[i]), (double)p->high[i]);
}

START_TEST(shares_are_within_one_of_the_real_solution)
{
    state = 11;
    for (int round = 0; round < CASES; round++) {
        struct problem p;
        problem_make(&p);
        problem_solve(&p);
        /* the same level by bisection: another method than the active set */
        double below = 0.0, above = 1e6;
        for (int step = 0; step < 200; step++) {
            double c = 0.5 * (below + above), sum = 0.0;
            for (int i = 0; i < p.n; i++) sum += level_of(&p, c, i);
            *(sum < (double)p.total ? &below : &above) = c;
        }
        for (int i = 0; i < p.n; i++) {
            double x = level_of(&p, above, i);
            ck_assert_msg(fabs((double)p.share[i] - x) < 1.0 + 1e-6, "entry %d: %lld, real solution %.9g", i,
                          (long long)p.share[i], x);
        }
    }
}
END_TEST

START_TEST(scaling_all_weights_changes_nothing)
{
    state = 22;
    for (int round = 0; round < CASES; round++) {
        struct problem p, scaled;
        problem_make(&p);
        scaled = p;
        double factor = ldexp(1.0, next_int(-900, 900));
        for (int i = 0; i < p.n; i++) scaled.w[i] *= factor;
        problem_solve(&p);
        problem_solve(&scaled);
        for (int i = 0; i < p.n; i++) ck_assert_int_eq(p.share[i], scaled.share[i]);
    }
}
END_TEST

START_TEST(permuted_entries_get_permuted_shares)
{
    state = 33;
    for (int round = 0; round < CASES; round++) {
        struct problem p, mixed;
        int from[MOST];
        problem_make(&p);
        mixed = p;
        for (int i = 0; i < p.n; i++) {
            int at = next_int(0, i);
            from[i] = from[at];
            from[at] = i;
        }
        for (int i = 0; i < p.n; i++) {
            mixed.w[i] = p.w[from[i]];
            mixed.low[i] = p.low[from[i]];
            mixed.high[i] = p.high[from[i]];
        }
        problem_solve(&p);
        problem_solve(&mixed);
        for (int i = 0; i < p.n; i++) ck_assert_int_eq(mixed.share[i], p.share[from[i]]);
    }
}
END_TEST

START_TEST(equal_weights_share_equally_first_entries_first)
{
    state = 44;
    for (int round = 0; round < CASES; round++) {
        struct problem p = {.n = next_int(1, MOST), .total = next_int(0, 5000)};
        double weight = next_int(0, 1) ? next_real() + 0.1 : 0.0; /* all zero counts as equal */
        for (int i = 0; i < p.n; i++) {
            p.w[i] = weight;
            p.high[i] = 5000;
        }
        problem_solve(&p);
        for (int i = 0; i < p.n; i++) ck_assert_int_eq(p.share[i], p.total / p.n + (i < p.total % p.n));
    }
}
END_TEST

START_TEST(more_weight_never_gets_less)
{
    state = 55;
    for (int round = 0; round < CASES; round++) {
        struct problem p;
        problem_make(&p);
        for (int i = 1; i < p.n; i++) {
            p.low[i] = p.low[0];
            p.high[i] = p.high[0];
        }
        p.total = p.n * p.low[0] + (int64_t)(next_real() * (double)(p.n * (p.high[0] - p.low[0]) + 1));
        problem_solve(&p);
        for (int i = 0; i < p.n; i++)
            for (int j = 0; j < p.n; j++) ck_assert(p.w[i] < p.w[j] || p.share[i] >= p.share[j]);
    }
}
END_TEST

START_TEST(what_cannot_be_shared_is_refused)
{
    double w[2] = {1, 1};
    int64_t low[2] = {5, 5}, high[2] = {10, 10}, out[2] = {-1, -1};
    struct kvf_err err = {.text = ""};
    ck_assert_int_eq(apportion(w, 9, low, high, 2, out, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "10"));
    ck_assert_ptr_nonnull(strstr(err.text, "9"));
    ck_assert_int_eq(apportion(w, 21, low, high, 2, out, &err), KVF_EINVAL);
    ck_assert_int_eq(apportion(w, -1, low, high, 2, out, &err), KVF_EINVAL);
    ck_assert_int_eq(apportion(w, 0, low, high, -1, out, &err), KVF_EINVAL);
    ck_assert_int_eq(apportion(w, 0, low, high, APPORTION_MAX + 1, out, &err), KVF_EINVAL);
    w[1] = -1;
    ck_assert_int_eq(apportion(w, 15, low, high, 2, out, &err), KVF_EINVAL);
    w[1] = (double)NAN;
    ck_assert_int_eq(apportion(w, 15, low, high, 2, out, &err), KVF_EINVAL);
    w[1] = (double)INFINITY;
    ck_assert_int_eq(apportion(w, 15, low, high, 2, out, &err), KVF_EINVAL);
    ck_assert_int_eq(apportion(w, 15, low, high, 2, out, NULL), KVF_EINVAL);
    ck_assert_int_eq(out[0], -1);
    ck_assert_int_eq(out[1], -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("apportion");
    TCase *tc = tcase_create("properties");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, shares_are_within_one_of_the_real_solution);
    tcase_add_test(tc, scaling_all_weights_changes_nothing);
    tcase_add_test(tc, permuted_entries_get_permuted_shares);
    tcase_add_test(tc, equal_weights_share_equally_first_entries_first);
    tcase_add_test(tc, more_weight_never_gets_less);
    tcase_add_test(tc, what_cannot_be_shared_is_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
