/* Binary arrays against bytes written down from PostgreSQL's own output (COPY ... BINARY, array_send, numeric_send). */
#include <check.h>
#include <math.h>
#include <string.h>
#include "coordinator/column.h"
#include "coordinator/map.h"
#include "coordinator/seed.h"

static void expect(struct column *column, const char *hex)
{
    struct kvf_err err;
    char got[1024];
    size_t len = 0;

    ck_assert_int_eq(column_finish(column, &err), KVF_OK);
    for (size_t i = 0; i < column->len; i++) len += (size_t)sprintf(got + len, "%02x", (unsigned char)column->data[i]);
    ck_assert_str_eq(got, hex);
    column_free(column);
}

START_TEST(integers)
{
    struct column column;

    column_init(&column, COLUMN_INT);
    column_int(&column, 1);
    column_int(&column, MSG_NULL_INT);
    column_int(&column, -2);
    /* array_send(ARRAY[1, NULL, -2]::bigint[]) */
    expect(&column, "00000001"
                    "00000001"
                    "00000014"
                    "00000003"
                    "00000001"
                    "00000008"
                    "0000000000000001"
                    "ffffffff"
                    "00000008"
                    "fffffffffffffffe");
}
END_TEST

START_TEST(empty)
{
    struct column column;

    column_init(&column, COLUMN_TEXT);
    expect(&column, "00000000"
                    "00000000"
                    "00000019"); /* array_send('{}'::text[]) */
}
END_TEST

START_TEST(reals)
{
    struct column column;

    column_init(&column, COLUMN_REAL);
    column_real(&column, 1.5);
    column_real(&column, NAN);
    expect(&column, "00000001"
                    "00000001"
                    "000002bd"
                    "00000002"
                    "00000001"
                    "00000008"
                    "3ff8000000000000"
                    "ffffffff");
}
END_TEST

START_TEST(texts)
{
    struct column column;

    column_init(&column, COLUMN_TEXT);
    column_text(&column, str_of("ab"));
    column_text(&column, (struct str){NULL, 0});
    column_text(&column, str_of(""));
    column_text(&column, (struct str){"a\0b", 3});
    expect(&column, "00000001"
                    "00000001"
                    "00000019"
                    "00000004"
                    "00000001"
                    "00000002"
                    "6162"
                    "ffffffff"
                    "00000000"
                    "00000005"
                    "61efbfbd62");
}
END_TEST

START_TEST(numerics)
{
    struct column column;

    column_init(&column, COLUMN_NUMERIC);
    column_numeric(&column, 0);
    column_numeric(&column, 10000);
    column_numeric(&column, UINT64_MAX); /* 1844 6744 0737 0955 1615 */
    expect(&column, "00000001"
                    "00000000"
                    "000006a4"
                    "00000003"
                    "00000001"
                    "00000008"
                    "0000000000000000"
                    "0000000a"
                    "0001000100000000"
                    "0001"
                    "00000012"
                    "0005000400000000"
                    "07341a5802e103bb064f");
}
END_TEST

START_TEST(cleared)
{
    struct column column;

    column_init(&column, COLUMN_INT);
    for (int i = 0; i < 10000; i++) column_int(&column, i == 5000 ? MSG_NULL_INT : i);
    ck_assert_uint_eq(column.n, 10000);
    column_clear(&column);
    column_int(&column, 7);
    expect(&column, "00000001"
                    "00000000"
                    "00000014"
                    "00000001"
                    "00000001"
                    "00000008"
                    "0000000000000007");
}
END_TEST

/* Computed with sha256sum of "kvfleet-seed/HASH/2/3/18446744073709551615". */
START_TEST(seeds)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    ck_assert_uint_eq(sample_seed(str_of(hash), 2, 3, UINT64_MAX), 5437038833069690574u);
    ck_assert_uint_ne(sample_seed(str_of(hash), 2, 3, 0), sample_seed(str_of(hash), 3, 2, 0));
}
END_TEST

START_TEST(problem_hashes)
{
    struct rec_problem problem = {.content_hash =
                                      str_of("26078278038d181e24c27e61c192e03a1098cc56c3b3a8d410a710c2e72883ae"),
                                  .problem = str_of("1+1?"),
                                  .answer = str_of("2")};

    ck_assert(problem_hash_matches(&problem));
    problem.answer = str_of("3");
    ck_assert(!problem_hash_matches(&problem));
}
END_TEST

START_TEST(maps)
{
    static int values[5000];
    struct map map = {0};

    for (int64_t i = 0; i < 5000; i++) ck_assert_int_eq(map_put_int(&map, i * 64, &values[i]), KVF_OK);
    for (int64_t i = 0; i < 5000; i += 2) map_remove_int(&map, i * 64);
    ck_assert_uint_eq(map.count, 2500);
    for (int64_t i = 0; i < 5000; i++) ck_assert_ptr_eq(map_get_int(&map, i * 64), i % 2 ? &values[i] : NULL);
    ck_assert_int_eq(map_put(&map, "", 0, &values[0]), KVF_OK);
    ck_assert_ptr_eq(map_get(&map, "", 0), &values[0]);
    map_free(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator column");
    TCase *all = tcase_create("all");
    SRunner *runner;
    int failed;

    tcase_add_test(all, integers);
    tcase_add_test(all, empty);
    tcase_add_test(all, reals);
    tcase_add_test(all, texts);
    tcase_add_test(all, numerics);
    tcase_add_test(all, cleared);
    tcase_add_test(all, seeds);
    tcase_add_test(all, problem_hashes);
    tcase_add_test(all, maps);
    suite_add_tcase(suite, all);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
