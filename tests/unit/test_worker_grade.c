/* Grades: extraction, comparison, and why. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "worker/grading/grade.h"

#define T "thoughts \\boxed{0}</think>"

static const struct {
    const char *text;
    enum finish_reason finish;
    const char *gold, *verdict, *reason, *extracted;
} cases[] = {
    {T "\\boxed{32779}", FINISH_STOP, "32779", "correct", "exact", "32779"},
    {T "\\boxed{32778}", FINISH_STOP, "32779", "wrong", "different", "32778"},
    {T "\\boxed{1} no: \\boxed{2}", FINISH_STOP, "2", "correct", "exact", "2"},
    {T "\\boxed{2} no: \\boxed{1}", FINISH_STOP, "2", "wrong", "different", "1"},
    {T "\\boxed{ 5 }", FINISH_STOP, "5", "correct", "exact", "5"},
    {T "$\\boxed{$5$}$", FINISH_STOP, "$ 5 $", "correct", "exact", "5"},
    {T "\\boxed{\\frac{1}{2}}.", FINISH_STOP, "\\frac{1}{2}", "correct", "exact", "\\frac{1}{2}"},
    {T "\\boxed{\\{1, 2\\}}", FINISH_STOP, "\\{1, 2\\}", "correct", "exact", "\\{1, 2\\}"},
    {T "\\boxed {7}", FINISH_STOP, "7", "correct", "exact", "7"},
    {T "\\fbox{3} \\fboxed{7}", FINISH_STOP, "7", "correct", "exact", "7"},
    {T "Give it in \\boxed. So \\boxed{7}", FINISH_STOP, "7", "correct", "exact", "7"},
    {T "\\boxed{7}. As I said, \\boxed works.", FINISH_STOP, "7", "correct", "exact", "7"},
    /* numbers by value, unless the gold is a digit string */
    {T "\\boxed{2.50}", FINISH_STOP, "2.5", "correct", "numeric", "2.50"},
    {T "\\boxed{+7}", FINISH_STOP, "7", "correct", "numeric", "+7"},
    {T "\\boxed{7.0}", FINISH_STOP, "7", "correct", "numeric", "7.0"},
    {T "\\boxed{.5}", FINISH_STOP, "0.5", "correct", "numeric", ".5"},
    {T "\\boxed{-0}", FINISH_STOP, "0", "correct", "numeric", "-0"},
    {T "\\boxed{-7}", FINISH_STOP, "7", "wrong", "different", "-7"},
    {T "\\boxed{800}", FINISH_STOP, "000800", "wrong", "different", "800"},
    {T "\\boxed{000800}", FINISH_STOP, "000800", "correct", "exact", "000800"},
    {T "\\boxed{7}", FINISH_STOP, "007", "wrong", "different", "7"},
    {T "\\boxed{007}", FINISH_STOP, "7", "correct", "numeric", "007"},
    {T "\\boxed{123456789012345678901234567890}", FINISH_STOP, "123456789012345678901234567891", "wrong", "different",
     "123456789012345678901234567890"},
    {T "\\boxed{123456789012345678901234567890.0}", FINISH_STOP, "123456789012345678901234567890", "correct", "numeric",
     "123456789012345678901234567890.0"},
    {T "\\boxed{500}", FINISH_STOP, "5", "wrong", "different", "500"},
    {T "\\boxed{0x10}", FINISH_STOP, "16", "wrong", "different", "0x10"},
    {T "\\boxed{1e2}", FINISH_STOP, "100", "wrong", "different", "1e2"},
    {T "\\boxed{.}", FINISH_STOP, "0", "wrong", "different", "."},
    /* no answer */
    {T "no box", FINISH_STOP, "5", "unanswered", "no_box", NULL},
    {T "", FINISH_STOP, "0", "unanswered", "no_box", NULL},
    {T "\\boxed{5} wait \\boxed{", FINISH_STOP, "5", "unanswered", "unclosed_box", NULL},
    {T "\\boxed{\\frac{1}{2}", FINISH_LENGTH, "5", "truncated", "length", NULL},
    {T "\\boxed{5\\", FINISH_STOP, "5", "unanswered", "unclosed_box", NULL},
    {T "and so", FINISH_LENGTH, "5", "truncated", "length", NULL},
    {T "\\boxed{  }", FINISH_STOP, "5", "unanswered", "empty_box", NULL},
    {T "unboxed{5} boxed{5}", FINISH_STOP, "5", "unanswered", "no_box", NULL},
    {"<think>maybe \\boxed{5}", FINISH_STOP, "5", "unanswered", "no_think_end", NULL},
    {"<think>maybe \\boxed{5}", FINISH_LENGTH, "5", "truncated", "length", NULL},
    {"", FINISH_LENGTH, "5", "truncated", "length", NULL},
    {"a</think>\\boxed{1}</think>\\boxed{5}", FINISH_STOP, "5", "correct", "exact", "5"},
    {"a</think>\\boxed{5}</think>", FINISH_STOP, "5", "unanswered", "no_box", NULL},
    /* the answer is there although the budget of tokens ran out */
    {T "\\boxed{5}\\boxed{5}", FINISH_LENGTH, "5", "correct", "exact", "5"},
    {T "\\boxed{5}", FINISH_ERROR, "5", "error", "error", NULL},
    {NULL, FINISH_ERROR, "5", "error", "error", NULL},
    {T "\\boxed{5}", FINISH_CANCELLED, "5", "error", "cancelled", NULL},
    {NULL, FINISH_STOP, "5", "unanswered", "no_think_end", NULL},
};

START_TEST(case_graded)
{
    struct grade grade = grade_text(cases[_i].text, cases[_i].finish, cases[_i].gold);
    ck_assert_str_eq(verdict_name(grade.verdict), cases[_i].verdict);
    ck_assert_str_eq(grade.reason, cases[_i].reason);
    if (cases[_i].extracted == NULL) {
        ck_assert_ptr_null(grade.extracted);
    } else {
        ck_assert_uint_eq(grade.extracted_len, strlen(cases[_i].extracted));
        ck_assert_int_eq(memcmp(grade.extracted, cases[_i].extracted, grade.extracted_len), 0);
    }
}
END_TEST

/* A looping model may box megabytes: the answer is compared whole and stored cut, at a character. */
START_TEST(long_answer)
{
    size_t count = 100000;
    char *text = malloc(count * 2 + 32);
    char *at = text + sprintf(text, "</think>\\boxed{x");
    for (size_t k = 0; k < count; k++) at = stpcpy(at, "\xc3\xa9");
    strcpy(at, "}");
    struct grade grade = grade_text(text, FINISH_STOP, "x");
    ck_assert_int_eq(grade.verdict, VERDICT_WRONG);
    ck_assert_uint_eq(grade.extracted_len, GRADE_EXTRACTED_MAX); /* odd, and after 'x' every character has two bytes */
    free(text);
    text = malloc(count + 32);
    at = text + sprintf(text, "</think>\\boxed");
    memset(at, '{', count);
    at[count] = 0;
    ck_assert_str_eq(grade_text(text, FINISH_STOP, "x").reason, "unclosed_box");
    free(text);
    text = malloc(count * 7 + 32); /* a box begun in each word must not cost the square of their number */
    at = text + sprintf(text, "</think>");
    for (size_t k = 0; k < count; k++) at = stpcpy(at, "\\boxed{");
    ck_assert_str_eq(grade_text(text, FINISH_STOP, "x").reason, "unclosed_box");
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: grades");
    TCase *tc = tcase_create("grade");
    tcase_add_loop_test(tc, case_graded, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_test(tc, long_answer);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
