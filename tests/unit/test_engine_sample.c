/* The sampler: greedy and ties, cuts, the distribution drawn, the generator, bad logits. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/sample.h"

#define VOCAB 8
static const float logits[VOCAB] = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f, 2.5f, -20.0f};

static struct choice draw_one(const float *row, int vocab, struct sampling sampling, uint64_t seed, uint64_t position)
{
    static struct sample_place work[VOCAB];
    struct choice choice;
    struct kvf_err err = {""};
    int rc = sample_token(row, vocab, &sampling, seed, position, work, &choice, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    return choice;
}

START_TEST(greedy_takes_the_lowest_of_the_best)
{
    struct choice choice = draw_one(logits, VOCAB, (struct sampling){.temperature = 0}, 1, 2);
    ck_assert_int_eq(choice.token, 1);
    ck_assert_float_eq(choice.margin, 0.0f);
    choice = draw_one(logits, 3, (struct sampling){.temperature = 0}, 9, 9);
    ck_assert_int_eq(choice.token, 1);
    ck_assert_float_eq(choice.margin, 1.0f);
    choice = draw_one(logits + 3, 2, (struct sampling){.temperature = 0}, 9, 9);
    ck_assert_int_eq(choice.token, 0);
    ck_assert_float_eq(choice.margin, 4.0f);
    choice = draw_one(logits, 1, (struct sampling){.temperature = 1, .top_p = 1}, 9, 9);
    ck_assert_int_eq(choice.token, 0);
    ck_assert_float_eq(choice.margin, 0.0f);
}
END_TEST

/* Expected shares by their definition: temperature, then top-k, then top-p on what is left. */
static void expected_shares(struct sampling sampling, double *share)
{
    int order[VOCAB];
    double weight[VOCAB], total = 0;
    for (int i = 0; i < VOCAB; i++) {
        order[i] = i;
        weight[i] = exp((double)logits[i] / sampling.temperature);
    }
    for (int i = 0; i < VOCAB; i++) {
        for (int j = i + 1; j < VOCAB; j++) {
            if (weight[order[j]] > weight[order[i]] || (weight[order[j]] == weight[order[i]] && order[j] < order[i])) {
                int swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
        }
    }
    int kept = sampling.top_k > 0 ? sampling.top_k : VOCAB, nucleus = 0;
    for (int i = 0; i < kept; i++) total += weight[order[i]];
    double sum = 0;
    while (nucleus < kept && sum < sampling.top_p * total) sum += weight[order[nucleus++]];
    memset(share, 0, VOCAB * sizeof *share);
    for (int i = 0; i < nucleus; i++) share[order[i]] = weight[order[i]] / sum;
}

START_TEST(draws_follow_the_distribution)
{
    static const struct sampling cases[] = {
        {1.0, 1.0, 0}, {0.5, 1.0, 0}, {2.0, 1.0, 3}, {1.0, 0.8, 0}, {1.0, 0.5, 4}, {1.5, 0.01, 0}, {0.7, 1.0, 1},
    };
    enum { DRAWS = 40000 };
    double share[VOCAB];
    int count[VOCAB] = {0};
    expected_shares(cases[_i], share);
    for (int n = 0; n < DRAWS; n++) {
        count[draw_one(logits, VOCAB, cases[_i], 7 + (uint64_t)n / 200, (uint64_t)n % 200).token]++;
    }
    double chi2 = 0;
    int places = 0;
    for (int i = 0; i < VOCAB; i++) {
        double expected = share[i] * DRAWS;
        if (share[i] == 0.0) ck_assert_msg(count[i] == 0, "case %d drew %d, which is cut", _i, i);
        if (expected < 5.0) continue;
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        places++;
    }
    /* 99.99 % point of chi-square with 6 degrees of freedom is 27.9, with fewer it is less. */
    ck_assert_msg(chi2 < 27.9, "case %d: chi-square %g over %d places", _i, chi2, places);
    ck_assert(places > 1 || count[1] == DRAWS);
}
END_TEST

START_TEST(draws_repeat)
{
    struct sampling sampling = {1.0, 0.95, 0};
    int same_seed = 0, same_position = 0;
    for (uint64_t n = 0; n < 1000; n++) {
        int32_t token = draw_one(logits, VOCAB, sampling, 5, n).token;
        ck_assert_int_eq(draw_one(logits, VOCAB, sampling, 5, n).token, token);
        same_seed += draw_one(logits, VOCAB, sampling, 5, n + 1).token == token;
        same_position += draw_one(logits, VOCAB, sampling, 6, n).token == token;
    }
    ck_assert(same_seed < 500 && same_position < 500);
}
END_TEST

/* Uniform, and neighbours of either argument are not related. */
START_TEST(uniform_numbers)
{
    enum { SIDE = 300 };
    double mean = 0, square = 0, across = 0, along = 0;
    for (uint64_t seed = 0; seed < SIDE; seed++) {
        for (uint64_t position = 0; position < SIDE; position++) {
            double u = sample_uniform(seed, position);
            ck_assert(u >= 0.0 && u < 1.0);
            mean += u;
            square += (u - 0.5) * (u - 0.5);
            across += (u - 0.5) * (sample_uniform(seed + 1, position) - 0.5);
            along += (u - 0.5) * (sample_uniform(seed, position + 1) - 0.5);
        }
    }
    const double n = (double)SIDE * SIDE;
    ck_assert_double_eq_tol(mean / n, 0.5, 0.005);
    ck_assert_double_eq_tol(square / n, 1.0 / 12, 0.002);
    ck_assert_double_eq_tol(across / n, 0.0, 0.0015);
    ck_assert_double_eq_tol(along / n, 0.0, 0.0015);
    /* The generator is part of what a result means: these may never change. */
    ck_assert_double_eq(sample_uniform(0, 0), 0x1.4e0dba5e9a32fp-1);
    ck_assert_double_eq(sample_uniform(42, 1000), 0x1.63f919049aa49p-1);
}
END_TEST

START_TEST(bad_logits)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float row[VOCAB];
        struct sample_place work[VOCAB];
        struct choice choice;
        struct kvf_err err = {""};
        struct sampling sampling = {.temperature = i == 1 ? 1.0 : 0.0, .top_p = 1.0};
        memcpy(row, logits, sizeof row);
        row[5] = bad[i];
        ck_assert_int_eq(sample_token(row, VOCAB, &sampling, 1, 77, work, &choice, &err), KVF_ECORRUPT);
        ck_assert_msg(strstr(err.text, "token 5") != NULL && strstr(err.text, "77") != NULL, "%s", err.text);
    }
}
END_TEST

START_TEST(bad_parameters)
{
    static const struct sampling bad[] = {
        {-0.1, 1.0, 0}, {(double)NAN, 1.0, 0},      {1.0, 0.0, 0}, {1.0, 1.1, 0}, {1.0, (double)NAN, 0},
        {1.0, 1.0, -1}, {(double)INFINITY, 1.0, 0},
    };
    struct kvf_err err = {""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_int_eq(sampling_check(&bad[i], &err), KVF_EINVAL);
    ck_assert_int_eq(sampling_check(&(struct sampling){1.0, 0.95, 20}, &err), 0);
    ck_assert_int_eq(sampling_check(&(struct sampling){.temperature = 0.0}, &err), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine sample");
    TCase *tc = tcase_create("sample");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, greedy_takes_the_lowest_of_the_best);
    tcase_add_loop_test(tc, draws_follow_the_distribution, 0, 7);
    tcase_add_test(tc, draws_repeat);
    tcase_add_test(tc, uniform_numbers);
    tcase_add_test(tc, bad_logits);
    tcase_add_test(tc, bad_parameters);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
