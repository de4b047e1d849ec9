/* Data set files: what is accepted, what is refused, and the line numbers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "worker/dataset.h"

static char path[64];

static void file_make(const char *bytes, size_t len)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, len, file), len);
    fclose(file);
}

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/kvf-dataset-%d.jsonl", (int)getpid());
}

static void teardown(void)
{
    unlink(path);
}

#define OK_LINE "{\"id\": \"a\", \"problem\": \"p\", \"answer\": \"1\"}\n"

START_TEST(good_file)
{
    static const char text[] = "\xef\xbb\xbf{\"id\": \"a\", \"problem\": \"1+1\", \"answer\": \"2\", \"depth\": 4}\r\n"
                               "\n"
                               "{\"unique_id\": 7, \"question\": \"na\xc3\xafve \\u00e9\", \"answer\": 12}\n"
                               "{\"problem\": \"1+1\", \"answer\": \"2\"}\n"
                               "{\"problem\": \"1+1\", \"answer\": 2.5}";
    struct dataset data;
    struct kvf_err err = {""};
    file_make(text, sizeof text - 1);
    ck_assert_msg(dataset_read(path, NULL, &data, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.count, 4);
    ck_assert_str_eq(data.problems[0].name, "a");
    ck_assert_str_eq(data.problems[0].problem, "1+1");
    ck_assert_str_eq(data.problems[0].answer, "2");
    /* sha256 of "1+1", NUL, "2" (coreutils) */
    ck_assert_str_eq(data.problems[0].content_hash, "243b2565ac30d8b5643eac20e87c72c45a8600db80e2b897805b212aaa7355b4");
    ck_assert_uint_eq(data.problems[0].ordinal, 0);
    ck_assert_str_eq(data.problems[1].name, "7");
    ck_assert_str_eq(data.problems[1].problem, "na\xc3\xafve \xc3\xa9");
    ck_assert_str_eq(data.problems[1].answer, "12");
    ck_assert_int_eq(data.problems[1].line, 3);
    ck_assert_str_eq(data.problems[2].name, "4"); /* the line number */
    ck_assert_str_eq(data.problems[2].content_hash, data.problems[0].content_hash);
    ck_assert_uint_eq(data.problems[2].ordinal, 1);
    ck_assert_uint_eq(data.problems[3].ordinal, 0);
    ck_assert_str_eq(data.problems[3].answer, "2.5");
    ck_assert_str_eq(data.hash, "6913c88d3512413819b3ba8e72b1f0b4db374ad6fb7119495b072431f19fd540");
    char name[64];
    snprintf(name, sizeof name, "kvf-dataset-%d", (int)getpid());
    ck_assert_str_eq(data.name, name);
    dataset_free(&data);
}
END_TEST

/* Bad third lines, each with words that its message must hold. */
static const struct {
    const char *line;
    size_t len;
    const char *words[3];
} bad[] = {
#define BAD(text, ...)                                                                                                 \
    {                                                                                                                  \
        text, sizeof text - 1,                                                                                         \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
    BAD("{\"id\": \"x\", \"problem\"", "not JSON"),
    BAD("{\"problem\": \"p\", \"answer\": \"1\"} x", "not JSON"),
    BAD("[1, 2]", "object", "array"),
    BAD("12", "object", "integer"),
    BAD("{\"problem\": \"p\"}", "answer", "missing"),
    BAD("{\"answer\": \"1\"}", "problem", "missing"),
    BAD("{\"problem\": 4, \"answer\": \"1\"}", "problem", "text", "integer"),
    BAD("{\"problem\": \"\", \"answer\": \"1\"}", "problem", "empty"),
    BAD("{\"problem\": \"p\", \"answer\": null}", "answer", "null"),
    BAD("{\"problem\": \"p\", \"answer\": \"\"}", "answer", "empty"),
    BAD("{\"problem\": \"p\", \"problem\": \"q\", \"answer\": \"1\"}", "duplicate"),
    BAD("{\"id\": \"a\", \"problem\": \"q\", \"answer\": \"1\"}", "\"a\"", "line 1"),
    BAD("{\"id\": [], \"problem\": \"q\", \"answer\": \"1\"}", "id", "array"),
    BAD("{\"problem\": \"\xff\", \"answer\": \"1\"}", "UTF-8", "0xff", "column 14"),
    BAD("{\"problem\": \"\xed\xa0\x80\", \"answer\": \"1\"}", "UTF-8", "0xed"),
    BAD("{\"problem\": \"\xc0\x80\", \"answer\": \"1\"}", "UTF-8", "0xc0"),
    BAD("{\"problem\": \"a\\u0000b\", \"answer\": \"1\"}", "a NUL"),
    BAD("{\"problem\": \"a\0b\", \"answer\": \"1\"}", "NUL", "column 15"),
    BAD("{\"problem\": \"p\", \"answer\": 123456789012345678901234567890}", "not JSON"),
    BAD("{\"problem\": \"p\xe2\x82", "UTF-8", "0xe2"),
};

static void file_make_bad(int index)
{
    char text[512];
    size_t len = (size_t)snprintf(text, sizeof text, "%s\n", OK_LINE);
    memcpy(text + len, bad[index].line, bad[index].len);
    len += bad[index].len;
    len += (size_t)snprintf(text + len, sizeof text - len, "\n{\"problem\": \"last\", \"answer\": \"9\"}\n");
    file_make(text, len);
}

START_TEST(bad_line)
{
    struct dataset data;
    struct kvf_err err = {""};
    char where[80];
    file_make_bad(_i);
    ck_assert_int_eq(dataset_read(path, NULL, &data, &err), KVF_ECORRUPT);
    ck_assert_uint_eq(data.count, 0);
    snprintf(where, sizeof where, "%s:3: ", path);
    ck_assert_msg(strncmp(err.text, where, strlen(where)) == 0, "%s", err.text);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    for (int k = 0; k < 3 && bad[_i].words[k] != NULL; k++)
        ck_assert_msg(strstr(err.text, bad[_i].words[k]) != NULL, "lacks %s: %s", bad[_i].words[k], err.text);
}
END_TEST

START_TEST(bad_line_skipped)
{
    struct dataset data;
    struct kvf_err err = {""};
    struct dataset_options options = {.skip_bad_lines = true};
    file_make_bad(_i);
    ck_assert_msg(dataset_read(path, &options, &data, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.count, 2);
    ck_assert_int_eq(data.skipped_lines, 1);
    ck_assert_ptr_nonnull(strstr(data.first_skipped.text, ":3: "));
    ck_assert_str_eq(data.problems[1].problem, "last");
    dataset_free(&data);
}
END_TEST

START_TEST(limit_and_hash)
{
    static const char text[] = OK_LINE "{\"problem\": \"q\", \"answer\": \"2\"}\nnonsense\n";
    struct dataset data;
    struct kvf_err err = {""};
    struct dataset_options options = {.limit = 2};
    file_make(text, sizeof text - 1);
    ck_assert_msg(dataset_read(path, &options, &data, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.count, 2);
    char hash[65];
    strcpy(hash, data.hash);
    dataset_free(&data);
    options.limit = 1;
    ck_assert_int_eq(dataset_read(path, &options, &data, &err), 0);
    ck_assert_uint_eq(data.count, 1);
    ck_assert_str_eq(data.hash, hash); /* of the file, whatever the limit */
    dataset_free(&data);
    options.limit = -1;
    ck_assert_int_eq(dataset_read(path, &options, &data, &err), KVF_EINVAL);
}
END_TEST

START_TEST(nothing_in_it)
{
    struct dataset data;
    struct kvf_err err = {""};
    struct dataset_options skip = {.skip_bad_lines = true};
    file_make("", 0);
    ck_assert_int_eq(dataset_read(path, NULL, &data, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "empty"));
    file_make("\n \n", 3);
    ck_assert_int_eq(dataset_read(path, NULL, &data, &err), KVF_EINVAL);
    file_make("x\n", 2);
    ck_assert_int_eq(dataset_read(path, &skip, &data, &err), KVF_ECORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, ":1: "));
    ck_assert_int_eq(dataset_read("/nowhere/x.jsonl", NULL, &data, &err), KVF_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/x.jsonl"));
    ck_assert_int_eq(dataset_read("/tmp", NULL, &data, &err), KVF_EINVAL);
}
END_TEST

START_TEST(sizes)
{
    struct dataset data;
    struct kvf_err err = {""};
    size_t cap = 5u << 20, len;
    char *text = malloc(cap);
    ck_assert_ptr_nonnull(text);
    for (int over = 0; over < 2; over++) { /* at the limit and one byte past it */
        len = (size_t)sprintf(text, "{\"answer\": \"1\", \"problem\": \"");
        memset(text + len, 'x', DATASET_PROBLEM_BYTES + (size_t)over);
        len += DATASET_PROBLEM_BYTES + (size_t)over;
        len += (size_t)sprintf(text + len, "\"}\n");
        file_make(text, len);
        ck_assert_int_eq(dataset_read(path, NULL, &data, &err), over ? KVF_ECORRUPT : 0);
        if (over) ck_assert_ptr_nonnull(strstr(err.text, "262145"));
        dataset_free(&data);
    }
    memset(text, ' ', cap);
    text[0] = '{';
    file_make(text, cap);
    ck_assert_int_eq(dataset_read(path, NULL, &data, &err), KVF_ECORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "5242880"));
    free(text);
}
END_TEST

START_TEST(many_equal_problems)
{
    struct dataset data;
    struct kvf_err err = {""};
    FILE *file = fopen(path, "w");
    for (int k = 0; k < 5000; k++) fprintf(file, "{\"problem\": \"p%d\", \"answer\": 1}\n", k % 1250);
    fclose(file);
    ck_assert_msg(dataset_read(path, NULL, &data, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.count, 5000);
    for (size_t k = 0; k < 5000; k++) ck_assert_uint_eq(data.problems[k].ordinal, k / 1250);
    dataset_free(&data);
}
END_TEST

START_TEST(own_data)
{
    const char *source = getenv("KVF_SOURCE");
    static const struct {
        const char *name;
        size_t count;
    } sets[] = {{"chain-arith", 512}, {"chain-arith-narrow", 512}, {"chain-arith-wide", 512}, {"probes", 8}};
    if (source == NULL) {
        printf("skip: KVF_SOURCE is not set\n");
        return;
    }
    for (size_t k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        char file[512];
        struct dataset data;
        struct kvf_err err = {""};
        snprintf(file, sizeof file, "%s/data/%s.jsonl", source, sets[k].name);
        ck_assert_msg(dataset_read(file, NULL, &data, &err) == 0, "%s", err.text);
        ck_assert_uint_eq(data.count, sets[k].count);
        ck_assert_str_eq(data.name, sets[k].name);
        dataset_free(&data);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: data sets");
    TCase *tc = tcase_create("dataset");
    int cases = (int)(sizeof bad / sizeof bad[0]);
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, good_file);
    tcase_add_loop_test(tc, bad_line, 0, cases);
    tcase_add_loop_test(tc, bad_line_skipped, 0, cases);
    tcase_add_test(tc, limit_and_hash);
    tcase_add_test(tc, nothing_in_it);
    tcase_add_test(tc, sizes);
    tcase_add_test(tc, many_equal_problems);
    tcase_add_test(tc, own_data);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
