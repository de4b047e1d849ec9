/* Head routers on random ragged layers: totals and bounds of both, floors, demand by mass, and demand that is smoothed
 * over refreshes, against what their definitions say. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/route.h"
#include "alloc/select.h"
#include "tests/unit/random.h"

enum { HEADS = 6, ENTRIES = 80 };

static struct {
    int heads, entries[HEADS], always[HEADS], candidates[HEADS], held;
    float score[HEADS * ENTRIES];
    uint32_t rank[HEADS * ENTRIES];
    int64_t budget;
    double demand[HEADS];
} layer;

static struct policy parsed(const char *text)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_OK, "%s", err.text);
    return policy;
}

/* ties: scores of few values. */
static void layer_make(int ties)
{
    int at = 0, safe = 0;
    layer.heads = next_int(1, HEADS);
    layer.held = 0;
    for (int h = 0; h < layer.heads; h++) {
        layer.always[h] = next_int(1, 12);
        layer.entries[h] = next_int(1, ENTRIES);
        layer.candidates[h] = layer.entries[h] > layer.always[h] ? layer.entries[h] - layer.always[h] : 0;
        layer.held += layer.entries[h];
        safe += layer.always[h];
        layer.demand[h] = 0;
        for (int j = 0; j < layer.candidates[h]; j++, at++) {
            layer.score[at] = ties ? (float)next_int(-2, 2) : (float)(next_bits() >> 40) * 0x1p-24f - 0.6f;
            layer.rank[at] = score_rank(layer.score[at]);
        }
    }
    layer.budget = safe + layer.heads + next_int(0, layer.held);
}

static struct route_input input_of(void)
{
    return (struct route_input){.heads = layer.heads,
                                .entries = layer.entries,
                                .always = layer.always,
                                .candidates = layer.candidates,
                                .rank = layer.rank,
                                .layer_budget = layer.budget,
                                .demand = layer.demand};
}

static struct route routed(const struct policy *policy)
{
    const struct route_input input = input_of();
    struct route route;
    struct kvf_err err = {.text = ""};
    const int rc = policy->router == ROUTER_ADA ? route_ada(policy, &input, &route, &err)
                                                : route_reasonalloc(policy, &input, &route, &err);
    ck_assert_msg(rc == KVF_OK, "%s: %s", policy->name, err.text);
    return route;
}

START_TEST(totals_and_bounds)
{
    static const char *const texts[] = {
        "ada-rkv",   "ada-rkv:floor=protect",  "ada-rkv:alpha=0",      "ada-rkv:alpha=1",
        "head-only", "head-only:utility=mass", "head-only:smooth=0.5", "head-only:mu=1"};
    const struct policy policy = parsed(texts[_i]);
    state = 1;
    for (int round = 0; round < 1000; round++) {
        layer_make(round % 2);
        const struct route route = routed(&policy);
        const int protects = policy.router == ROUTER_ADA && policy.floor == FLOOR_PROTECT;
        int64_t total = 0, counted = 0, scored = 0;
        for (int h = 0; h < layer.heads; h++) {
            total += route.budget[h];
            counted += route.demand[h];
            scored += layer.candidates[h];
            ck_assert_int_ge(route.budget[h], route.lo[h]);
            ck_assert_int_le(route.budget[h], route.hi[h]);
            ck_assert_int_le(route.hi[h], layer.entries[h]);
            const int least = layer.always[h] + (policy.router != ROUTER_ADA);
            ck_assert_int_ge(route.budget[h], layer.entries[h] < least ? layer.entries[h] : least);
            const int64_t floor_best = (int64_t)floor(0.2 * (double)route.threshold_k / layer.heads + 1e-9);
            if (protects && layer.entries[h] > layer.always[h])
                ck_assert_int_ge(route.budget[h] - layer.always[h],
                                 floor_best < layer.candidates[h] ? floor_best : layer.candidates[h]);
        }
        ck_assert_int_eq(total, layer.held < layer.budget ? layer.held : layer.budget);
        ck_assert_int_ge(counted, scored < route.threshold_k ? scored : route.threshold_k);
    }
}
END_TEST

/* Without ties: a head's protected best, then the best of what is left of all heads. */
START_TEST(protected_floors_leave_the_rest_to_the_best)
{
    const struct policy policy = parsed("ada-rkv:floor=protect,alpha=0.35");
    state = 2;
    for (int round = 0; round < 1000; round++) {
        layer_make(0);
        for (int h = 0; h < layer.heads; h++) /* heads that are shorter than what always stays give their share away */
            if (layer.candidates[h] == 0) layer.always[h] = layer.entries[h];
        const struct route route = routed(&policy);
        int64_t total = layer.budget, floor_best, scored = 0, count[HEADS];
        for (int h = 0; h < layer.heads; h++) {
            total -= layer.always[h];
            scored += layer.candidates[h];
        }
        floor_best = (int64_t)floor(0.35 * (double)total / layer.heads + 1e-9);
        total = total < scored ? total : scored;
        unsigned char kept[HEADS * ENTRIES] = {0};
        for (int h = 0, at = 0; h < layer.heads; at += layer.candidates[h], h++)
            for (count[h] = 0; count[h] < floor_best && count[h] < layer.candidates[h]; count[h]++, total--) {
                int best = -1;
                for (int j = at; j < at + layer.candidates[h]; j++)
                    if (!kept[j] && (best < 0 || layer.score[j] > layer.score[best])) best = j;
                kept[best] = 1;
            }
        for (; total > 0; total--) {
            int best = -1, owner = 0;
            for (int h = 0, at = 0; h < layer.heads; at += layer.candidates[h], h++)
                for (int j = at; j < at + layer.candidates[h]; j++)
                    if (!kept[j] && (best < 0 || layer.score[j] > layer.score[best])) {
                        best = j;
                        owner = h;
                    }
            kept[best] = 1;
            count[owner]++;
        }
        for (int h = 0; h < layer.heads; h++)
            ck_assert_msg(route.budget[h] == layer.always[h] + count[h], "round %d head %d: %lld, expected %lld", round,
                          h, (long long)route.budget[h], (long long)(layer.always[h] + count[h]));
    }
}
END_TEST

/* Two heads of equal length, no floor but one candidate: budgets in proportion to what each exceeds tau by. */
START_TEST(mass_is_what_exceeds_the_threshold)
{
    const struct policy mass = parsed("head-only:utility=mass,mu=0,beta=1"), count = parsed("head-only:mu=0,beta=1");
    layer.heads = 2;
    layer.budget = 2 * 1 + 10;
    for (int h = 0, at = 0; h < 2; h++) {
        layer.always[h] = 1;
        layer.entries[h] = 21;
        layer.candidates[h] = 20;
        /* Head 0: 5 scores of -1 above a bulk of -5; head 1: 5 scores of -3 above it; tau is -3. */
        for (int j = 0; j < 20; j++, at++) {
            layer.score[at] = j < 15 ? -5.0f : h == 0 ? -1.0f : -3.0f;
            layer.rank[at] = score_rank(layer.score[at]);
        }
    }
    struct route route = routed(&count);
    ck_assert(rank_score(route.threshold) == -3.0f);
    ck_assert(route.demand[0] == 5 && route.demand[1] == 5 && route.budget[0] == 6 && route.budget[1] == 6);
    route = routed(&mass);
    ck_assert(route.budget[0] == 10 && route.budget[1] == 2); /* all above tau, but for the least of 1 candidate */
    for (int j = 35; j < 40; j++) layer.rank[j] = score_rank(layer.score[j] = -2.0f);
    route = routed(&mass); /* tau -2: head 0 exceeds it by 5, head 1 by nothing */
    ck_assert(route.budget[0] == 10 && route.budget[1] == 2);
    layer.budget = 2 * 1 + 11;
    route = routed(&mass); /* tau -5: 5 * 4 against 5 * 3 of 13 entries in all */
    ck_assert(route.budget[0] == 7 && route.budget[1] == 6);
    for (int j = 0; j < 40; j++) layer.rank[j] = score_rank(1.0f);
    route = routed(&mass); /* nothing exceeds anything: equal */
    ck_assert(route.budget[0] == 7 && route.budget[1] == 6);
}
END_TEST

START_TEST(smoothed_demand_is_an_average_of_shares)
{
    const struct policy smooth = parsed("head-only:smooth=0.75"), plain = parsed("head-only");
    double expected[HEADS] = {0};
    int heads = 0, moved = 0;
    state = 3;
    for (int refresh = 0; refresh < 400; refresh++) {
        double memory[HEADS];
        memcpy(memory, layer.demand, sizeof memory);
        do layer_make(0);
        while (refresh % 10 != 0 && layer.heads != heads);
        heads = layer.heads;
        if (refresh % 10 != 0) memcpy(layer.demand, memory, sizeof memory);
        const struct route direct = routed(&plain), route = routed(&smooth);
        double sum = 0;
        for (int h = 0; h < heads; h++) sum += (double)direct.demand[h];
        for (int h = 0; h < heads; h++) {
            const double share = sum > 0 ? (double)direct.demand[h] / sum : 1.0 / heads;
            expected[h] = refresh % 10 == 0 ? share : 0.75 * expected[h] + 0.25 * share;
            ck_assert_double_eq_tol(layer.demand[h], expected[h], 1e-12);
            if (refresh % 10 == 0) ck_assert_int_le(llabs((long long)(route.budget[h] - direct.budget[h])), 1);
            moved += route.budget[h] != direct.budget[h];
        }
    }
    ck_assert_int_gt(moved, 200);
}
END_TEST

START_TEST(too_small_budgets_are_refused)
{
    const struct policy ada = parsed("ada-rkv"), reasonalloc = parsed("head-only");
    state = 4;
    for (int round = 0; round < 200; round++) {
        layer_make(0);
        layer.budget = layer.heads - 1;
        for (int h = 0; h < layer.heads; h++) layer.budget += layer.always[h];
        const struct route_input input = input_of();
        struct route route;
        struct kvf_err err = {.text = ""};
        ck_assert_int_eq(route_ada(&ada, &input, &route, &err), KVF_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "budget"));
        ck_assert_int_eq(route_reasonalloc(&reasonalloc, &input, &route, NULL), KVF_EINVAL);
    }
}
END_TEST

START_TEST(ranks_give_their_scores_back)
{
    state = 5;
    for (int round = 0; round < 10000; round++) {
        const uint32_t bits = (uint32_t)next_bits();
        float score;
        memcpy(&score, &bits, sizeof score);
        if (score != score) continue;
        ck_assert(rank_score(score_rank(score)) == score);
    }
    ck_assert(rank_score(score_rank(0.0f)) == 0.0f && rank_score(score_rank(-0.0f)) == 0.0f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("route");
    TCase *tc = tcase_create("heads");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, totals_and_bounds, 0, 8);
    tcase_add_test(tc, protected_floors_leave_the_rest_to_the_best);
    tcase_add_test(tc, mass_is_what_exceeds_the_threshold);
    tcase_add_test(tc, smoothed_demand_is_an_average_of_shares);
    tcase_add_test(tc, too_small_budgets_are_refused);
    tcase_add_test(tc, ranks_give_their_scores_back);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
