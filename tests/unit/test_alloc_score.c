/* The parts of the score against plain double-precision versions that build the whole matrix. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/score.h"
#include "alloc/select.h"
#include "alloc/work.h"
#include "tests/unit/random.h"

enum { MOST = 80, MOST_DIM = 40, ROUNDS = 1500 };

static float next_value(void)
{
    return (float)(next_bits() >> 40) * 0x1p-23f - 1.0f;
}

START_TEST(plain_kernels_are_exact_enough)
{
    const struct compact_kernels kernels = compact_kernels_plain();
    state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        float a[MOST_DIM], rows[3 * MOST_DIM], out[3], alone;
        const int d = next_int(1, MOST_DIM);
        for (int k = 0; k < d; k++) a[k] = next_value();
        for (int k = 0; k < 3 * d; k++) rows[k] = next_value();
        kernels.dot_rows(a, rows, 3, d, out);
        for (int i = 0; i < 3; i++) {
            double exact = 0;
            for (int k = 0; k < d; k++) exact += (double)a[k] * (double)rows[i * d + k];
            ck_assert_double_eq_tol((double)out[i], exact, 1e-6 * d);
            kernels.dot_rows(rows + i * d, a, 1, d, &alone); /* alone and with its arguments swapped */
            ck_assert_mem_eq(&alone, &out[i], sizeof alone);
        }
    }
    float in[4096], out[4096];
    for (int i = 0; i < 4096; i++) in[i] = -(float)i * 0.0255f;
    kernels.exp_rows(in, 4096, out);
    for (int i = 0; i < 4096; i++) {
        const double exact = exp((double)in[i]);
        ck_assert_msg(fabs((double)out[i] - exact) <= 1.5e-7 * exact + 1.5e-45, "exp(%g) is %g", (double)in[i],
                      (double)out[i]);
    }
    const float ends[4] = {0.0f, -INFINITY, NAN, -1e30f};
    kernels.exp_rows(ends, 4, out);
    ck_assert(out[0] == 1.0f && out[1] == 0.0f && isnan(out[2]) && out[3] == 0.0f);
}
END_TEST

START_TEST(redundancy_equals_the_whole_matrix)
{
    const struct compact_kernels kernels = compact_kernels_plain();
    static float keys[MOST * MOST_DIM], tiles[(MOST + 15) * MOST_DIM];
    static float redundancy[MOST];
    static double wide[MOST][MOST_DIM], cosine[MOST][MOST];
    const int32_t *relieved;
    int found_after = 0, found_before = 0, none = 0;
    state = 2;
    for (int round = 0; round < ROUNDS; round++) {
        const int n = next_int(1, MOST), d = next_int(4, MOST_DIM), centres = next_int(1, 12);
        float centre[12][MOST_DIM];
        const float noise = (float)next_int(1, 30) * 0.1f, threshold = (float)next_int(-2, 9) * 0.1f;
        for (int k = 0; k < 12 * MOST_DIM; k++) centre[k / MOST_DIM][k % MOST_DIM] = next_value();
        for (int j = 0; j < n; j++) {
            const int c = next_int(0, centres - 1);
            for (int k = 0; k < d; k++) keys[j * d + k] = centre[c][k] + noise * next_value();
        }
        if (n > 3 && round % 5 == 0) memset(keys + 2 * d, 0, (size_t)d * sizeof *keys);
        score_tiles(keys, n, d, tiles);
        const void *at[MOST / 16 + 1];
        for (int t = 0; t <= MOST / 16; t++) at[t] = tiles + (ptrdiff_t)t * d * 16;
        for (int j = n; j % 16 != 0; j++) tiles[(j / 16 * d) * 16 + j % 16] = NAN; /* nobody's */
        struct compact_work *work = compact_work_new(1, 1, d, 1, n);
        const struct compact_tiles given = {at, PAGE_F32};
        score_redundancy(&kernels, &given, n, d, (double)threshold, &work->scratch, redundancy);
        relieved = work->scratch.marker;

        for (int i = 0; i < n; i++) {
            double square = 0;
            for (int k = 0; k < d; k++) square += (double)keys[i * d + k] * (double)keys[i * d + k];
            for (int k = 0; k < d; k++) wide[i][k] = (double)keys[i * d + k] / (sqrt(square) + 1e-8);
        }
        int unsure = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                cosine[i][j] = 0;
                for (int k = 0; k < d; k++) cosine[i][j] += wide[i][k] * wide[j][k];
                unsure |= fabs(cosine[i][j] - (double)threshold) < 2e-6;
            }
        if (unsure) {
            compact_work_destroy(&work);
            continue;
        }
        for (int i = 0; i < n; i++) {
            int expected = 0;
            for (int j = 0; j < n; j++)
                if (j != i && cosine[i][j] > (double)threshold) expected = j;
            ck_assert_msg(relieved[i] == expected, "n %d row %d: exempts %d, expected %d", n, i, relieved[i], expected);
            *(expected > i ? &found_after : expected > 0 ? &found_before : &none) += 1;
        }
        double total = 0, mean[MOST];
        for (int i = 0; i < n; i++) cosine[i][i] = cosine[i][relieved[i]] = 0;
        for (int j = 0; j < n; j++) {
            mean[j] = 0;
            for (int i = 0; i < n; i++) mean[j] += cosine[i][j] / n;
            total += exp(mean[j]);
            ck_assert_double_eq_tol((double)work->scratch.column[j], mean[j], 1e-6);
        }
        for (int j = 0; j < n; j++) ck_assert_double_eq_tol((double)redundancy[j], exp(mean[j]) / total, 2e-7);
        compact_work_destroy(&work);
    }
    ck_assert_int_gt(found_after, 1000);
    ck_assert_int_gt(found_before, 1000);
    ck_assert_int_gt(none, 1000);
}
END_TEST

START_TEST(pooling_takes_the_largest_neighbour)
{
    float in[MOST], out[MOST];
    state = 3;
    for (int round = 0; round < ROUNDS; round++) {
        const int n = next_int(1, MOST), kernel = 2 * next_int(0, 8) + 1;
        for (int j = 0; j < n; j++) in[j] = next_value();
        score_max_pool(in, n, kernel, out);
        for (int j = 0; j < n; j++) {
            float top = -INFINITY;
            for (int i = 0; i < n; i++)
                if (abs(i - j) <= kernel / 2) top = fmaxf(top, in[i]);
            ck_assert_float_eq(out[j], top);
        }
    }
}
END_TEST

/* Selection against sorting by (score descending, index ascending). */
START_TEST(selection_equals_sorting)
{
    state = 4;
    for (int round = 0; round < ROUNDS; round++) {
        enum { MOST_SELECTED = 300 };
        float scores[MOST_SELECTED];
        uint32_t rank[MOST_SELECTED];
        int32_t out[MOST_SELECTED];
        const int n = next_int(1, MOST_SELECTED), k = next_int(0, n);
        static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-45f};
        for (int j = 0; j < n; j++) {
            scores[j] = round % 3 == 0 ? (float)next_int(-3, 3) : next_value() * (round % 4 == 1 ? 1e-3f : 1.0f);
            if (round % 4 == 3) scores[j] = 1.0f + scores[j] * 1e-5f; /* few bits differ */
            if (round % 2 == 0 && next_int(0, 9) == 0) scores[j] = special[next_int(0, 5)];
            rank[j] = score_rank(scores[j]);
        }
        ck_assert_int_eq(select_best(rank, n, k, 7, out), k);
        int at = 0;
        for (int j = 0; j < n; j++) {
            int before = 0; /* entries that come before j */
            const float own = isnan(scores[j]) ? -INFINITY : scores[j];
            for (int i = 0; i < n; i++) {
                const float other = isnan(scores[i]) ? -INFINITY : scores[i];
                before += other > own || (other == own && i < j);
            }
            if (before < k) ck_assert_int_eq(out[at++], 7 + j);
        }
        ck_assert_int_eq(at, k);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("score");
    TCase *tc = tcase_create("against plain versions");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, plain_kernels_are_exact_enough);
    tcase_add_test(tc, redundancy_equals_the_whole_matrix);
    tcase_add_test(tc, pooling_takes_the_largest_neighbour);
    tcase_add_test(tc, selection_equals_sorting);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
