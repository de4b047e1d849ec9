/* What a person sees while a job runs: the line of a pipe, the frame of a terminal, and when a line is due. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/progress.h"
#include "coordinator/client/table.h"
#include "coordinator/client/watch.h"

static const char running[] =
    "{\"job_id\":7,\"state\":\"running\",\"total\":1088,\"done\":460,\"errors\":1,\"tokens\":123456,\"samples_per_s\":"
    "3.24,"
    "\"tokens_per_s\":5120.2,\"eta_s\":200,\"workers\":2,\"elapsed_s\":61.0,\"cells\":["
    "{\"cell_id\":1,\"label\":\"full\",\"total\":64,\"done\":64,\"errors\":0,\"correct\":63},"
    "{\"cell_id\":2,\"label\":\"rkv 128\",\"total\":64,\"done\":16,\"errors\":1,\"correct\":9},"
    "{\"cell_id\":3,\"label\":\"random 96\",\"total\":64,\"done\":0,\"errors\":0,\"correct\":0}]}";

static struct progress progress_of(const char *text)
{
    json_t *row = json_loads(text, 0, NULL);
    struct progress progress;
    struct kvf_err err;

    ck_assert_ptr_nonnull(row);
    ck_assert_msg(progress_parse(row, &progress, &err) == KVF_OK, "%s", err.text);
    json_decref(row);
    return progress;
}

START_TEST(line_of_a_pipe)
{
    struct progress progress = progress_of(running);
    char line[256], tiny[24];

    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 7: 460/1,088 samples (42 %), 3.2 samples/s, 5,120 tok/s, ETA 3:20, 2 workers, 1 error");
    progress_line(&progress, tiny, sizeof tiny);
    ck_assert_uint_lt(strlen(tiny), sizeof tiny);
    progress_free(&progress);

    progress = progress_of("{\"job_id\":8,\"state\":\"running\",\"total\":10,\"done\":0,\"workers\":0,\"eta_s\":null}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: 0/10 samples (0 %), no workers: waiting for one that holds the model");
    progress =
        progress_of("{\"job_id\":8,\"state\":\"running\",\"total\":10,\"done\":0,\"workers\":0,\"elapsed_s\":0.5}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: 0/10 samples (0 %), no workers yet");
    ck_assert(!progress_ended(&progress));

    progress = progress_of(
        "{\"job_id\":8,\"state\":\"done_with_errors\",\"total\":10,\"done\":10,\"errors\":2,\"elapsed_s\":61}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: done_with_errors, 10/10 samples (100 %), 1:01, 2 errors");
    progress_free(&progress);

    /* its workers are at another job: neither a rate of 0 nor their number would say so */
    progress = progress_of("{\"job_id\":8,\"state\":\"running\",\"total\":512,\"done\":0,\"workers\":2,"
                           "\"samples_per_s\":0,\"tokens_per_s\":0,\"after_job\":7,\"elapsed_s\":9}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: 0/512 samples (0 %), waiting: job 7 runs first");
    progress = progress_of("{\"job_id\":8,\"state\":\"running\",\"total\":512,\"done\":0,\"workers\":2,"
                           "\"after_job\":null,\"elapsed_s\":9}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: 0/512 samples (0 %), 2 workers");

    progress = progress_of("{\"job_id\":8,\"state\":\"queued\",\"total\":10,\"done\":0,\"workers\":0}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: queued, 0/10 samples (0 %), its samples are being made");
    ck_assert(!progress_ended(&progress));
    progress = progress_of("{\"job_id\":8,\"state\":\"receiving\",\"total\":10,\"done\":0,\"workers\":0}");
    progress_line(&progress, line, sizeof line);
    ck_assert_str_eq(line, "job 8: receiving, 0/10 samples (0 %), its problems are on the way");
    ck_assert(!progress_ended(&progress));

    progress = progress_of("{\"job_id\":9,\"state\":\"done\",\"total\":1,\"done\":1,\"elapsed_s\":2}");
    progress_line(&progress, line, sizeof line);
    ck_assert_ptr_nonnull(strstr(line, "1/1 sample (100 %)"));
    ck_assert(progress_ended(&progress));
}
END_TEST

START_TEST(percent_is_honest)
{
    struct progress progress = {.total = 1000, .done = 999};

    ck_assert_int_eq(progress_percent(&progress), 99);
    progress.done = 1000;
    ck_assert_int_eq(progress_percent(&progress), 100);
    progress.total = progress.done = 0;
    ck_assert_int_eq(progress_percent(&progress), 0);
}
END_TEST

START_TEST(bad_rows_are_refused)
{
    json_t *row = json_loads("{\"job_id\":7}", 0, NULL);
    struct progress progress;
    struct kvf_err err;

    ck_assert_int_eq(progress_parse(row, &progress, &err), KVF_ECORRUPT);
    json_decref(row);
    ck_assert_int_eq(progress_parse(NULL, &progress, &err), KVF_ECORRUPT);
}
END_TEST

static char *frame_of(const struct progress *progress, int width, int height, bool unicode, int *lines)
{
    struct frame_style style = {width, height, unicode, false};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    *lines = progress_frame(progress, "größe on data", &style, out);
    fclose(out);
    return text;
}

static int widest_line(char *text)
{
    int widest = 0;

    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (text_width(line) > widest) widest = text_width(line);
    return widest;
}

START_TEST(frame_has_a_bar_a_cell)
{
    struct progress progress = progress_of(running);
    int lines;
    char *frame = frame_of(&progress, 60, 24, false, &lines);

    ck_assert_str_eq(frame, "job 7 - größe on data - running\n"
                            "full      ############################### 64/64\n"
                            "rkv 128   #######........................ 16/64, 1 err\n"
                            "random 96 ............................... 0/64\n"
                            "total     #############.................. 460/1,088, 1 err\n"
                            "42 % - 3.2 samples/s - 5,120 tok/s - ETA 3:20 - 2 workers - \n");
    ck_assert_int_eq(lines, 6);
    free(frame);
    frame = frame_of(&progress, 60, 24, true, &lines);
    ck_assert_ptr_nonnull(strstr(frame, "rkv 128   ███████▊░░"));
    free(frame);
    progress_free(&progress);
}
END_TEST

START_TEST(frame_fits_the_terminal)
{
    struct progress progress = progress_of(running);

    for (int width = 20; width <= 130; width += 11) {
        for (int height = 3; height <= 24; height += 7) {
            int lines;
            char *frame = frame_of(&progress, width, height, true, &lines);
            ck_assert_msg(lines < height || height < 6, "%d lines in %d", lines, height);
            if (height < 7) ck_assert_ptr_nonnull(strstr(frame, "1 of 3"));
            ck_assert_int_le(widest_line(frame), width);
            free(frame);
        }
    }
    progress_free(&progress);
}
END_TEST

START_TEST(lines_are_due_now_and_then)
{
    struct watch_pace pace = {0};

    ck_assert(watch_due(&pace, 0, false, 1000));
    ck_assert(!watch_due(&pace, 3, false, 1500));
    ck_assert(watch_due(&pace, 10, false, 2000));
    ck_assert(!watch_due(&pace, 19, false, 6900));
    ck_assert(watch_due(&pace, 19, false, 7000));
    ck_assert(watch_due(&pace, 19, true, 7001));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client progress");
    TCase *tc = tcase_create("progress");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, line_of_a_pipe);
    tcase_add_test(tc, percent_is_honest);
    tcase_add_test(tc, bad_rows_are_refused);
    tcase_add_test(tc, frame_has_a_bar_a_cell);
    tcase_add_test(tc, frame_fits_the_terminal);
    tcase_add_test(tc, lines_are_due_now_and_then);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
