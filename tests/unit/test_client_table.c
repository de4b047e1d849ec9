/* Figures, tables and CSV as text, against what they must look like to the letter. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/format.h"
#include "coordinator/client/report.h"
#include "coordinator/client/table.h"
#include "coordinator/client/view.h"

static char *captured;
static size_t captured_size;

static FILE *capture(void)
{
    free(captured);
    captured = NULL;
    return open_memstream(&captured, &captured_size);
}

static void expect(FILE *out, const char *text)
{
    fclose(out);
    ck_assert_str_eq(captured, text);
}

START_TEST(figures)
{
    char t[FORMAT_MAX], noun[64];

    ck_assert_str_eq(format_bytes(0, t), "0 B");
    ck_assert_str_eq(format_bytes(1023, t), "1023 B");
    ck_assert_str_eq(format_bytes(1024, t), "1.0 KiB");
    ck_assert_str_eq(format_bytes(1024 * 1023.99, t), "1.0 MiB");
    ck_assert_str_eq(format_bytes(6.24 * 1024 * 1024, t), "6.2 MiB");
    ck_assert_str_eq(format_bytes(NAN, t), "-");
    ck_assert_str_eq(format_count(0, t), "0");
    ck_assert_str_eq(format_count(999, t), "999");
    ck_assert_str_eq(format_count(1000, t), "1,000");
    ck_assert_str_eq(format_count(-1234567, t), "-1,234,567");
    ck_assert_str_eq(format_count(1e300, t), "1,000,000,000,000,000");
    ck_assert_str_eq(format_count(NAN, t), "-");
    ck_assert_str_eq(format_percent(0.984375, t), "98.4");
    ck_assert_str_eq(format_interval(0.9169, 0.9972, t), "91.7-99.7");
    ck_assert_str_eq(format_interval(NAN, 1, t), "-");
    ck_assert_str_eq(format_signed_points(-0.03125, t), "-3.1");
    ck_assert_str_eq(format_signed_points(0.0156, t), "+1.6");
    ck_assert_str_eq(format_signed_points(-0.0001, t), "0.0");
    ck_assert_str_eq(format_p(0.625, t), "0.625");
    ck_assert_str_eq(format_p(0.00099, t), "<0.001");
    ck_assert_str_eq(format_p(1, t), "1.000");
    ck_assert_str_eq(format_duration(4.23, t), "4.2 s");
    ck_assert_str_eq(format_duration(59.96, t), "1:00");
    ck_assert_str_eq(format_duration(200.4, t), "3:20");
    ck_assert_str_eq(format_duration(3723, t), "1:02:03");
    ck_assert_str_eq(format_noun(1, "sample", noun, sizeof noun), "1 sample");
    ck_assert_str_eq(format_noun(1088, "sample", noun, sizeof noun), "1,088 samples");
}
END_TEST

START_TEST(widths_are_columns)
{
    ck_assert_int_eq(text_width("abc"), 3);
    ck_assert_int_eq(text_width("größe"), 5);
    ck_assert_int_eq(text_width("e\xcc\x81"), 1); /* combining acute */
    ck_assert_int_eq(text_width("漢字"), 4);
    ck_assert_int_eq(text_width("\xff"), 1);
    ck_assert_int_eq(text_width("██░"), 3);
}
END_TEST

static struct table *example(void)
{
    struct table *table = table_new();

    table_column(table, "policy", TABLE_LEFT);
    table_column(table, "trun-\ncated", TABLE_RIGHT);
    table_column(table, "note", TABLE_LEFT);
    table_cell(table, "full");
    table_cell(table, "1,024");
    table_cell(table, "größe");
    table_cell(table, "漢");
    table_cell(table, NULL);
    table_cell(table, "a\033[31mb\n");
    return table;
}

START_TEST(tables_are_aligned)
{
    struct table *table = example();
    FILE *out = capture();

    table_print(table, 0, 1, out);
    expect(out, "        trun-\n"
                "policy  cated  note\n"
                "full    1,024  größe\n"
                "漢          -  a?[31mb?\n");
    table_free(&table);
}
END_TEST

START_TEST(wide_tables_are_cut_into_blocks)
{
    struct table *table = example();
    FILE *out = capture();

    table_print(table, 16, 1, out);
    expect(out, "        trun-\n"
                "policy  cated\n"
                "full    1,024\n"
                "漢          -\n"
                "\n"
                "\n"
                "policy  note\n"
                "full    größe\n"
                "漢      a?[31mb?\n");
    out = capture();
    table_print(table, 1, 1, out); /* narrower than any column: one a block, nothing is lost */
    fclose(out);
    ck_assert_ptr_nonnull(strstr(captured, "1,024"));
    ck_assert_ptr_nonnull(strstr(captured, "größe"));
    table_free(&table);
}
END_TEST

START_TEST(csv_fields)
{
    FILE *out = capture();

    csv_field("plain", out);
    csv_field(",", out);
    csv_field("say \"hi\"\n", out);
    csv_field(" x", out);
    csv_field("", out);
    expect(out, "plain\",\"\"say \"\"hi\"\"\n\"\" x\"");
}
END_TEST

static const char rows_text[] =
    "[{\"pareto\":true,\"policy\":\"full\",\"budget_tokens\":null,\"samples\":64,\"accuracy\":0.984375,\"accuracy_"
    "low\":0.9169,"
    "\"accuracy_high\":0.9972,\"diff_full\":null,\"mcnemar_p\":null,\"unanswered\":0,\"truncated\":1,\"wrong\":0,"
    "\"errors\":0,"
    "\"mean_output_tokens\":512.25,\"kv_live_mean_bytes\":1310720,\"kv_live_peak_bytes\":2621440,\"kv_ratio\":1,"
    "\"decode_tokens_per_s\":5120.4,\"e2e_tokens_per_s\":4800,\"compactions_mean\":0,\"evicted_mean\":0,\"extra\":[1]},"
    "{\"pareto\":false,\"policy\":\"rkv:window=16,lambda=0.5\",\"budget_tokens\":128,\"samples\":64,\"accuracy\":0.5,"
    "\"accuracy_low\":0.38,\"accuracy_high\":0.62,\"diff_full\":-0.484375,\"mcnemar_p\":1e-9,\"unanswered\":3,"
    "\"truncated\":0,"
    "\"wrong\":29,\"errors\":0,\"mean_output_tokens\":600,\"kv_live_mean_bytes\":262144,\"kv_live_peak_bytes\":327680,"
    "\"kv_ratio\":0.2,\"decode_tokens_per_s\":null,\"e2e_tokens_per_s\":4000,\"compactions_mean\":14.25,"
    "\"evicted_mean\":12345.6}]";

START_TEST(report_of_a_sweep)
{
    json_t *rows = json_loads(rows_text, 0, NULL);
    FILE *out = capture();

    ck_assert_ptr_nonnull(rows);
    view_table(report_cell_columns, rows, 0, REPORT_CELL_KEYS, out);
    expect(out, "                                              accuracy       95 %  vs full  McNemar       un-  trun-  "
                "       output      "
                "                  KV to  decode  end to end      com-  evicted\n"
                "   policy                    budget  samples         %   interval   points        p  answered  cated  "
                "wrong  tokens    "
                "KV mean    KV peak   full   tok/s       tok/s  pactions  entries\n"
                "*  full                           -       64      98.4  91.7-99.7        -        -         0      1  "
                "    0   512.2    "
                "1.2 MiB    2.5 MiB  1.000   5,120       4,800       0.0        0\n"
                "   rkv:window=16,lambda=0.5     128       64      50.0  38.0-62.0    -48.4   <0.001         3      0  "
                "   29   600.0  "
                "256.0 KiB  320.0 KiB  0.200       -       4,000      14.2   12,346\n");
    json_decref(rows);
}
END_TEST

/* What report_table prints below the table for cells of these kernel sets; NULL: none known. */
static const char *notes_of(const char *first, const char *second)
{
    json_t *job =
        json_pack("{s:i, s:s, s:i, s:i, s:i}", "job_id", 7, "state", "running", "done", 1, "n_samples", 2, "errors", 0);
    json_t *cells = second == NULL ? json_pack("[{s:s*}]", "kernel_sets", first)
                                   : json_pack("[{s:s*}, {s:s}]", "kernel_sets", first, "kernel_sets", second);
    FILE *out = capture();

    ck_assert_ptr_nonnull(cells);
    report_table(job, cells, true, 0, out);
    fclose(out);
    json_decref(cells);
    json_decref(job);
    return captured;
}

START_TEST(notes_say_what_is_not_comparable)
{
    static const char mixed[] = "more than one kernel set ran (avx2, avx2+kv-bf16): KV bytes and tok/s mix theirs, and "
                                "answers may differ.\njob 7: ";

    ck_assert_ptr_null(strstr(notes_of("avx2", "avx2"), "kernel set"));
    ck_assert_ptr_null(strstr(notes_of(NULL, "avx2"), "kernel set"));
    ck_assert_ptr_nonnull(strstr(notes_of("avx2", "avx2,avx2+kv-bf16"), mixed));
    ck_assert_ptr_nonnull(strstr(notes_of("avx2", "avx2+kv-bf16"), mixed));
    ck_assert_ptr_nonnull(strstr(notes_of("avx2,avx2+kv-bf16", NULL), mixed));
}
END_TEST

/* A column of "-" says whether there is nothing to compare with or nothing compared yet. */
START_TEST(a_job_without_full_says_so)
{
    static const char note[] = "\nvs full, p, KV to full: - as the job has no cell of policy full to compare with.\n";
    json_t *job = json_pack("{s:i, s:s, s:i, s:i}", "job_id", 7, "state", "running", "done", 1, "n_samples", 2);
    json_t *rows = json_loads(rows_text, 0, NULL), *none = json_array();
    FILE *out = capture();

    ck_assert(report_has_full(rows));
    ck_assert(!report_has_full(none));
    report_table(job, rows, true, 0, out);
    fclose(out);
    ck_assert_ptr_null(strstr(captured, "compare with"));
    json_array_remove(rows, 0);
    ck_assert(!report_has_full(rows)); /* rkv */
    out = capture();
    report_table(job, rows, false, 0, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(captured, note));
    json_decref(job);
    json_decref(rows);
    json_decref(none);
}
END_TEST

START_TEST(csv_and_json_hold_the_same)
{
    static const char head[] =
        "pareto,policy,budget_tokens,samples,accuracy,accuracy_low,accuracy_high,diff_full,mcnemar_p,"
        "unanswered,truncated,wrong,errors,mean_output_tokens,";
    json_t *rows = json_loads(rows_text, 0, NULL), *ordered = view_ordered(report_cell_columns, rows), *back;
    struct kvf_err err;
    const char *key;
    json_t *value;
    FILE *out = capture();
    int place = 0;

    ck_assert_int_eq(view_csv(report_cell_columns, rows, out, &err), KVF_OK);
    fclose(out);
    ck_assert_int_eq(strncmp(captured, head, strlen(head)), 0);
    ck_assert_ptr_nonnull(strstr(captured, "\ntrue,full,,64,0.984375,"));
    ck_assert_ptr_nonnull(strstr(captured, "\nfalse,\"rkv:window=16,lambda=0.5\",128,64,0.5,"));
    ck_assert_ptr_nonnull(strstr(captured, ",1.0000000000000001e-09,"));

    out = capture();
    ck_assert_int_eq(view_json(json_pack("{s:o}", "cells", ordered), out, &err), KVF_OK);
    fclose(out);
    back = json_loads(captured, 0, NULL);
    ck_assert_ptr_nonnull(back);
    ck_assert_int_eq(json_integer_value(json_object_get(back, "schema_version")), VIEW_SCHEMA_VERSION);
    json_object_foreach(json_array_get(json_object_get(back, "cells"), 0), key, value)
    {
        if (place == 2) ck_assert(strcmp(key, "budget_tokens") == 0 && json_is_null(value));
        if (place == 5) ck_assert_str_eq(key, "accuracy_low");
        place++;
    }
    /* what the columns do not know comes along at the end; what a row lacks is null */
    ck_assert_ptr_nonnull(json_object_get(json_array_get(json_object_get(back, "cells"), 0), "extra"));
    ck_assert(json_is_null(json_object_get(json_array_get(json_object_get(back, "cells"), 1), "kernel_sets")));
    json_decref(back);
    json_decref(rows);
}
END_TEST

/* The fields of the CSV are those of the JSON in its order, whatever the columns know; nested ones have both names. */
START_TEST(csv_has_what_json_has)
{
    static const struct view_column columns[] = {{"b", "b", VIEW_ID, NULL, false},
                                                 {"low", "l", VIEW_INTERVAL, "high", false},
                                                 {"x", NULL, VIEW_HIDDEN, NULL, false},
                                                 {NULL, NULL, VIEW_HIDDEN, NULL, false}};
    json_t *none = json_array(),
           *rows = json_loads("[{\"z\":1,\"b\":2,\"memory\":{\"kv\":{\"mean\":0.5},\"all\":null},\"list\":[1,\"a\"]},"
                              "{\"late\":true,\"b\":3,\"high\":4}]",
                              0, NULL);
    struct kvf_err err;
    FILE *out = capture();

    ck_assert_int_eq(view_csv(columns, rows, out, &err), KVF_OK);
    expect(out, "b,low,high,x,z,memory.kv.mean,memory.all,list,late\n"
                "2,,,,1,0.5,,\"[1,\"\"a\"\"]\",\n"
                "3,,4,,,,,,true\n");
    out = capture();
    ck_assert_int_eq(view_csv(columns, none, out, &err), KVF_OK);
    expect(out, "b,low,high,x\n");
    json_decref(rows);
    json_decref(none);
}
END_TEST

START_TEST(sample_shows_thinking_and_answer)
{
    json_t *row = json_loads(
        "{\"job_id\":7,\"sample_id\":9,\"problem_name\":\"p1\",\"repeat\":0,\"policy\":\"rkv\",\"budget_tokens\":96,"
        "\"verdict\":\"wrong\",\"finish\":\"stop\",\"answer\":\"07\",\"extracted\":\"7\",\"problem\":\"Find c.\","
        "\"text\":\"<think>a=3\\nc=7\\n</think>\\nIt is \\\\boxed{7}\\u001b[2J\",\"decode_us\":1500000}",
        0, NULL);
    FILE *out = capture();

    ck_assert_ptr_nonnull(row);
    report_sample(row, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(captured, "job 7, sample 9: p1, repeat 0, rkv, budget 96\n"));
    ck_assert_ptr_nonnull(strstr(captured, "verdict            wrong\n"));
    ck_assert_ptr_nonnull(strstr(captured, "expected           07\n"));
    ck_assert_ptr_nonnull(strstr(captured, "decode             1.500 s\n"));
    ck_assert_ptr_nonnull(strstr(captured, "--- prompt\nFind c.\n"));
    ck_assert_ptr_nonnull(strstr(captured, "--- thinking\na=3\nc=7\n"));
    ck_assert_ptr_nonnull(strstr(captured, "--- answer\nIt is \\boxed{7}?[2J\n"));
    json_decref(row);
}
END_TEST

START_TEST(last_line_of_a_report)
{
    static const struct {
        const char *job, *line;
    } cases[] = {
        {"{\"job_id\":7,\"state\":\"queued\",\"done\":0,\"n_samples\":1088}",
         "job 7: queued, 0 of 1,088 samples so far\n"},
        {"{\"job_id\":7,\"state\":\"running\",\"done\":460,\"n_samples\":1088,\"wall_s\":61}",
         "job 7: running, 460 of 1,088 samples so far\n"},
        {"{\"job_id\":7,\"state\":\"cancelled\",\"done\":460,\"n_samples\":1088,\"wall_s\":61}",
         "job 7: cancelled, 460 of 1,088 samples in 1:01\n"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *job = json_loads(cases[i].job, 0, NULL), *cells = json_array();
        FILE *out = capture();
        report_table(job, cells, true, 0, out);
        fclose(out);
        ck_assert_msg(strstr(captured, cases[i].line) != NULL, "expected %s in: %s", cases[i].line, captured);
        json_decref(cells);
        json_decref(job);
    }
}
END_TEST

START_TEST(exit_codes_of_jobs)
{
    static const struct {
        const char *job;
        int code;
    } cases[] = {
        {"{\"state\":\"done\",\"done\":8,\"errors\":0}", 0},
        {"{\"state\":\"running\",\"done\":0,\"errors\":0}", 0},
        {"{\"state\":\"done_with_errors\",\"done\":8,\"errors\":1}", 3},
        {"{\"state\":\"done_with_errors\",\"done\":8,\"errors\":8}", 4},
        {"{\"state\":\"cancelled\",\"done\":8,\"errors\":0}", 130},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *job = json_loads(cases[i].job, 0, NULL);
        ck_assert_int_eq(report_exit_code(job), cases[i].code);
        json_decref(job);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client table");
    TCase *tc = tcase_create("table");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, figures);
    tcase_add_test(tc, widths_are_columns);
    tcase_add_test(tc, tables_are_aligned);
    tcase_add_test(tc, wide_tables_are_cut_into_blocks);
    tcase_add_test(tc, csv_fields);
    tcase_add_test(tc, report_of_a_sweep);
    tcase_add_test(tc, notes_say_what_is_not_comparable);
    tcase_add_test(tc, a_job_without_full_says_so);
    tcase_add_test(tc, csv_and_json_hold_the_same);
    tcase_add_test(tc, csv_has_what_json_has);
    tcase_add_test(tc, sample_shows_thinking_and_answer);
    tcase_add_test(tc, last_line_of_a_report);
    tcase_add_test(tc, exit_codes_of_jobs);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    free(captured);
    return failed != 0;
}
