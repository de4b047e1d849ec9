/* The list of policies is split at the commas that begin a policy, and a plan is checked before anything is sent. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/plan.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_policies(const char *const *pieces, const char *const *names)
{
    struct policy *list;
    struct kvf_err err;
    int count, n = 0;

    ck_assert_msg(policy_list_parse(pieces, &list, &count, &err) == KVF_OK, "%s", err.text);
    for (; names[n] != NULL; n++) {
        ck_assert_int_gt(count, n);
        ck_assert_str_eq(list[n].name, names[n]);
    }
    ck_assert_int_eq(count, n);
    free(list);
}

START_TEST(list_is_split)
{
    struct policy *list;
    struct kvf_err err;
    int count;

    expect_policies(LIST("full"), LIST("full"));
    expect_policies(LIST("full,streaming,snapkv"), LIST("full", "streaming", "snapkv"));
    expect_policies(LIST("full", "rkv"), LIST("full", "rkv"));

    /* parameters go with the policy before them, however the flag's list was cut */
    ck_assert_int_eq(policy_list_parse(LIST("rkv:window=16", "lambda=0.5", "full"), &list, &count, &err), KVF_OK);
    ck_assert_int_eq(count, 2);
    ck_assert_int_eq(list[0].window_tokens, 16);
    ck_assert_double_eq(list[0].lambda, 0.5);
    ck_assert_str_eq(list[1].name, "full");
    free(list);

    ck_assert_int_eq(policy_list_parse(LIST("rkv:window=16,rkv:window=4,rkv"), &list, &count, &err), KVF_OK);
    ck_assert_int_eq(count, 3);
    ck_assert_int_eq(list[1].window_tokens, 4);
    free(list);
}
END_TEST

static void expect_refused(const char *const *policies, const char *const *budgets, int interval, const char *word)
{
    struct kvf_err err = {""};
    struct plan plan;

    ck_assert_int_eq(plan_make(policies, budgets, interval, &plan, &err), KVF_EINVAL);
    ck_assert_msg(strstr(err.text, word) != NULL, "'%s' lacks '%s'", err.text, word);
    ck_assert_ptr_null(plan.cells);
    ck_assert_ptr_null(strchr(err.text, '\n'));
}

START_TEST(plan_is_checked)
{
    expect_refused(NULL, LIST("128"), 128, "--policy");
    expect_refused(LIST("magic"), LIST("128"), 128, "magic");
    expect_refused(LIST("full", "window=8"), LIST("128"), 128, "window=8");
    expect_refused(LIST("rkv:nothing=1"), LIST("128"), 128, "nothing");
    expect_refused(LIST("rkv,full,rkv"), LIST("128"), 128, "twice");
    expect_refused(LIST("rkv,,full"), LIST("128"), 128, "");
    expect_refused(LIST("rkv"), NULL, 128, "--budget");
    expect_refused(LIST("rkv"), LIST("banana"), 128, "banana");
    expect_refused(LIST("rkv"), LIST("128x"), 128, "128x");
    expect_refused(LIST("rkv"), LIST("0"), 128, "0");
    expect_refused(LIST("rkv"), LIST("99999999999999999999"), 128, "99999999999999999999");
    expect_refused(LIST("rkv"), LIST("128", "128"), 128, "twice");
    expect_refused(LIST("full,rkv"), LIST("128", "8"), 128, "8");
}
END_TEST

START_TEST(cells_are_policies_times_budgets)
{
    struct kvf_err err;
    struct plan plan;

    ck_assert_msg(plan_make(LIST("full", "rkv", "reasonalloc"), LIST("128", "96"), 32, &plan, &err) == KVF_OK, "%s",
                  err.text);
    ck_assert_int_eq(plan.n_cells, 5);
    ck_assert_str_eq(plan.cells[0].policy.name, "full");
    ck_assert_int_eq(plan.cells[0].budget_tokens, 0);
    ck_assert_str_eq(plan.cells[1].policy.name, "rkv");
    ck_assert_int_eq(plan.cells[1].budget_tokens, 128);
    ck_assert_int_eq(plan.cells[2].budget_tokens, 96);
    ck_assert_str_eq(plan.cells[4].policy.name, "reasonalloc");
    ck_assert_int_eq(plan.cells[4].budget_tokens, 96);
    ck_assert(plan.needs_profile);
    plan_free(&plan);

    ck_assert_int_eq(plan_make(LIST("full"), NULL, 128, &plan, &err), KVF_OK);
    ck_assert_int_eq(plan.n_cells, 1);
    ck_assert(!plan.needs_profile);
    plan_free(&plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client plan");
    TCase *tc = tcase_create("plan");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, list_is_split);
    tcase_add_test(tc, plan_is_checked);
    tcase_add_test(tc, cells_are_policies_times_budgets);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
