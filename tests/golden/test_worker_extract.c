/* Extraction of answers against the collected cases of other graders' bug reports ($KVF_GOLDEN/../grader). This grader
 * compares texts and numbers only, so the cases that apply are those that box their answer in the gold's own spelling,
 * and all those that must not be right. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/grading/grade.h"

static json_t *cases_load(void)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/../grader/grader_extract_cases.jsonl", getenv("KVF_GOLDEN"));
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s is not there", path);
    json_t *list = json_array();
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, file) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(row);
        json_array_append_new(list, row);
    }
    free(line);
    fclose(file);
    return list;
}

static char *thought(const char *text)
{
    size_t len = strlen(text) + 32;
    char *whole = malloc(len);
    /* cases about thinking bring their own tags */
    snprintf(whole, len, "%s%s", strstr(text, "think>") != NULL ? "" : "<think>a</think>", text);
    return whole;
}

/* Whether the box holds the gold letter for letter, spaces apart: found by this test's own means. */
static int spelled_alike(const char *text, const char *gold)
{
    char bare[4096], wanted[4096];
    size_t n = 0, m = 0;
    for (const char *at = text; *at != 0 && n < sizeof bare - 1; at++)
        if (*at != ' ') bare[n++] = *at;
    bare[n] = 0;
    m += (size_t)snprintf(wanted, sizeof wanted, "boxed{");
    for (const char *at = gold; *at != 0 && m < sizeof wanted - 2; at++)
        if (*at != ' ') wanted[m++] = *at;
    wanted[m++] = '}';
    wanted[m] = 0;
    const char *found = strstr(bare, wanted);
    return found != NULL && strstr(text, gold) != NULL;
}

START_TEST(extract_cases)
{
    json_t *list = cases_load(), *row;
    size_t index;
    int positive = 0, negative = 0;
    ck_assert_uint_eq(json_array_size(list), 76);
    json_array_foreach(list, index, row)
    {
        const char *gold = json_string_value(json_object_get(row, "gold"));
        const char *text = json_string_value(json_object_get(row, "pred"));
        int equal = json_is_true(json_object_get(row, "equal"));
        char *whole = thought(text);
        struct grade grade = grade_text(whole, FINISH_STOP, gold);
        if (!equal) {
            negative++;
            ck_assert_msg(grade.verdict != VERDICT_CORRECT, "case %zu: %s accepted for %s", index + 1, text, gold);
        } else if (spelled_alike(text, gold) && strstr(text, "\\beginboxed") == NULL) {
            positive++;
            ck_assert_msg(grade.verdict == VERDICT_CORRECT, "case %zu: %s not accepted for %s (%s)", index + 1, text,
                          gold, grade.reason);
        }
        free(whole);
    }
    printf("extraction: %d of 76 cases must be right and are, %d must not be and are not\n", positive, negative);
    ck_assert_int_ge(positive, 20);
    ck_assert_int_ge(negative, 8);
    json_decref(list);
}
END_TEST

int main(void)
{
    if (getenv("KVF_GOLDEN") == NULL) {
        printf("skip: KVF_GOLDEN is not set\n");
        return 77;
    }
    Suite *suite = suite_create("worker: grades, golden");
    TCase *tc = tcase_create("extract");
    tcase_add_test(tc, extract_cases);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
