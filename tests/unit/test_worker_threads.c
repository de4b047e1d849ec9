/* The two threads of a worker and what passes between them: the engine's thread with an engine of the test, the
 * network's thread played here. Built with ThreadSanitizer too. */
#include <check.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include "proto/log.h"
#include "worker/runner.h"
#include "worker_fake_engine.h"

static struct handover *handover;
static struct runner *runner;
static pthread_t thread;
static struct runner_model models[] = {{"first", "first", "hash-of-first"},
                                       {"second", "second", "hash-of-second"},
                                       {"broken", "broken", "hash-of-broken"}};

static void setup(void)
{
    struct kvf_err err;
    struct engine_options options = {.model_folder = "first", .kernels = "auto", .threads = 1, .max_batch = 4};
    struct engine *engine = NULL;
    log_set_level(LOG_ERROR_LEVEL);
    fake_opened = fake_submitted = fake_cancelled = fake_batch_max = 0;
    ck_assert_int_eq(handover_new(&handover, &err), 0);
    ck_assert_int_eq(engine_open(&options, &engine, &err), 0);
    ck_assert_int_eq(runner_new(handover, &options, models, 3, 0, engine, &runner, &err), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, runner_thread, runner), 0);
}
static void teardown(void)
{
    handover_stop(handover);
    pthread_join(thread, NULL);
    runner_destroy(&runner);
    handover_destroy(&handover);
}

/* Sample k of a lease asks "FENCE*100+k" and is right about it. */
static void lend(int64_t fence, int samples, const char *model, const char *policy)
{
    struct kvf_err err;
    struct lease *lease = NULL;
    struct rec_cell cell = {
        .cell_id = 5, .interval_tokens = 128, .max_new_tokens = 10, .temperature = NAN, .top_p = NAN};
    struct rec_sample *list = calloc((size_t)samples, sizeof *list);
    char(*texts)[24] = calloc((size_t)samples, sizeof *texts);
    struct msg_lease message;
    msg_init(MSG_LEASE_TYPE, &message);
    cell.policy = str_of(policy);
    cell.template_name = str_of("auto");
    for (int k = 0; k < samples; k++) {
        uint64_t id = (uint64_t)fence * 100 + (uint64_t)k;
        snprintf(texts[k], sizeof texts[k], "%llu", (unsigned long long)id);
        list[k] = (struct rec_sample){id, 5, 1, id * 7, str_of(texts[k]), str_of(texts[k])};
    }
    if (samples == 2) list[1].problem = str_of("long"); /* pairs hold one that the engine refuses */
    message.fence = (uint64_t)fence;
    message.model_hash = str_of(model);
    message.cells = &cell;
    message.n_cells = 1;
    message.samples = list;
    message.n_samples = (uint32_t)samples;
    ck_assert_int_eq(lease_new(&message, &lease, &err), 0);
    handover_lease(handover, lease);
    free(list);
    free(texts);
}

/* Takes reports until `rows` of them came (or, with rows < 0, until drained or failed). The last reports stay in *last.
 */
static struct row *collect(int rows, struct reports *last)
{
    struct row *all = NULL, **end = &all;
    for (;;) {
        handover_take_reports(handover, last);
        for (struct row *row = last->rows; row != NULL;) {
            struct row *next = row->next;
            *end = row;
            end = &row->next;
            *end = NULL;
            rows--;
            row = next;
        }
        if (rows == 0 || (rows < 0 && last->drained)) return all;
        struct pollfd wait = {handover_fd(handover), POLLIN, 0};
        ck_assert_int_ge(poll(&wait, 1, 60000), 1);
    }
}

START_TEST(every_sample_once)
{
    struct reports last;
    int leases = 40, each = 25;
    char *seen = calloc((size_t)(leases + 1) * 100, 1);
    for (int fence = 1; fence <= leases; fence++) lend(fence, each, "hash-of-first", "full");
    struct row *rows = collect(leases * each, &last);
    for (struct row *row = rows; row != NULL; row = row->next) {
        ck_assert_int_eq(row->kind, ROW_RESULT);
        uint64_t id = row->rec.sample_id;
        ck_assert_int_eq(seen[id]++, 0);
        ck_assert_int_eq(row->fence, (int64_t)(id / 100));
        ck_assert_uint_eq(row->rec.seed, id * 7);
        ck_assert_str_eq(row->rec.finish.text, "stop");
        ck_assert_str_eq(row->rec.grade.text, "correct");
        ck_assert_int_eq(row->rec.output_tokens, 3);
        ck_assert_int_eq(row->rec.thinking_tokens, MSG_NULL_INT);
        ck_assert_int_eq(row->rec.compaction_us, 0);
        ck_assert(isnan(row->rec.budget_achieved));
        ck_assert_int_eq(row->rec.weights_bytes, 1000);
        ck_assert_int_gt(row->rec.device_peak_bytes, 0);
    }
    ck_assert_int_eq(fake_submitted, leases * each);
    ck_assert_int_eq(fake_batch_max, 4);
    ck_assert_int_gt(last.emitted_tokens, 0);
    rows_free(rows);
    free(seen);
}
END_TEST

START_TEST(bad_samples_are_results)
{
    struct reports last;
    static const struct {
        const char *model, *policy, *words;
    } bad[] = {{"hash-of-first", "full", "got 9"},
               {"hash-of-first", "magic", "magic"},
               {"hash-of-nobody", "full", "hash-of-nobody"},
               {"hash-of-broken", "full", "torn"}};
    for (int k = 0; k < 4; k++) lend(k + 1, 2, bad[k].model, bad[k].policy);
    lend(9, 1, "hash-of-first", "full"); /* after a model that could not be opened */
    struct row *rows = collect(9, &last);
    int errors = 0, right = 0;
    for (struct row *row = rows; row != NULL; row = row->next) {
        if (strcmp(row->rec.finish.text, "error") == 0) {
            errors++;
            ck_assert_msg(strstr(row->error, bad[row->fence - 1].words) != NULL, "%s", row->error);
            ck_assert_str_eq(row->rec.grade.text, "error");
            ck_assert_int_eq(row->rec.output_tokens, MSG_NULL_INT);
        } else {
            right++;
        }
    }
    ck_assert_int_eq(errors, 7);
    ck_assert_int_eq(right, 2);
    rows_free(rows);
}
END_TEST

START_TEST(models_take_turns)
{
    struct reports last;
    lend(1, 5, "hash-of-first", "full");
    lend(2, 5, "hash-of-second", "full");
    lend(3, 5, "hash-of-first", "full");
    struct row *rows = collect(15, &last);
    int64_t fence = 0;
    for (struct row *row = rows; row != NULL; row = row->next) {
        ck_assert_int_ge(row->fence, fence); /* in the order of the leases: nobody waits for ever */
        fence = row->fence;
        ck_assert_str_eq(row->rec.finish.text, "stop");
    }
    ck_assert_int_eq(fake_opened, 3);
    rows_free(rows);
}
END_TEST

START_TEST(revoked_lease_reports_nothing_more)
{
    struct reports last;
    struct kvf_err err;
    fake_never_finish = 1;
    lend(1, 10, "hash-of-first", "full");
    while (fake_submitted < 4) sched_yield();
    ck_assert_int_eq(handover_revoke(handover, 1, &err), 0);
    while (fake_cancelled < 4) /* those that ran */
        sched_yield();
    fake_never_finish = 0;
    lend(2, 3, "hash-of-first", "full");
    struct row *rows = collect(3, &last);
    for (struct row *row = rows; row != NULL; row = row->next) ck_assert_int_eq(row->fence, 2);
    ck_assert_int_eq(fake_submitted, 7); /* the other six never started */
    rows_free(rows);
}
END_TEST

START_TEST(drain_finishes_what_runs)
{
    struct reports last;
    fake_never_finish = 1;
    lend(1, 10, "hash-of-first", "full");
    lend(2, 5, "hash-of-first", "full");
    while (fake_submitted < 4) sched_yield();
    handover_drain(handover);
    struct row *first = collect(1, &last); /* lease 2 comes back at once, before anything is finished */
    ck_assert_int_eq(first->kind, ROW_RELEASED);
    ck_assert_int_eq(first->fence, 2);
    rows_free(first);
    fake_never_finish = 0;
    struct row *rows = collect(-1, &last);
    int results = 0, released = 0;
    for (struct row *row = rows; row != NULL; row = row->next) {
        ck_assert_int_eq(row->fence, 1);
        ck_assert_int_eq(released, 0); /* the notice comes last */
        *(row->kind == ROW_RESULT ? &results : &released) += 1;
    }
    ck_assert_int_eq(results, 4);
    ck_assert_int_eq(released, 1);
    rows_free(rows);
    lend(3, 2, "hash-of-first", "full"); /* was under way */
    rows = collect(1, &last);
    ck_assert_int_eq(rows->kind, ROW_RELEASED);
    ck_assert_int_eq(rows->fence, 3);
    rows_free(rows);
}
END_TEST

START_TEST(abandon_cancels)
{
    struct reports last;
    fake_never_finish = 1;
    lend(1, 3, "hash-of-first", "full");
    while (fake_submitted < 3) sched_yield();
    handover_abandon(handover);
    struct row *rows = collect(-1, &last);
    ck_assert_ptr_nonnull(rows);
    ck_assert_int_eq(rows->kind, ROW_RELEASED);
    ck_assert_ptr_null(rows->next); /* what was cancelled is no result */
    ck_assert_int_eq(fake_cancelled, 3);
    rows_free(rows);
    fake_never_finish = 0;
}
END_TEST

START_TEST(engine_failure_releases)
{
    struct reports last;
    fake_fail_step = 1;
    lend(1, 3, "hash-of-first", "full");
    struct row *rows = collect(-1, &last);
    ck_assert(last.failed);
    ck_assert_str_eq(last.failure.text, "a page is shared");
    ck_assert_int_eq(rows->kind, ROW_RELEASED);
    ck_assert_ptr_null(rows->next);
    rows_free(rows);
}
END_TEST

START_TEST(prompt_evidence)
{
    int32_t ids[40];
    struct row *row = row_new(1, ROW_RESULT);
    for (int k = 0; k < 40; k++) ids[k] = 1000000 + k;
    row_set_prompt(row, ids, 3);
    ck_assert_str_eq(row->prompt_ids, "1000000 1000001 1000002");
    row_set_prompt(row, ids, 16);
    ck_assert_ptr_null(strstr(row->prompt_ids, "..."));
    row_set_prompt(row, ids, 40);
    ck_assert_str_eq(row->prompt_ids,
                     "1000000 1000001 1000002 1000003 1000004 1000005 1000006 1000007 ... 1000032 1000033 "
                     "1000034 1000035 1000036 1000037 1000038 1000039");
    row_free(row);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: threads");
    TCase *tc = tcase_create("handover");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_sample_once);
    tcase_add_test(tc, bad_samples_are_results);
    tcase_add_test(tc, models_take_turns);
    tcase_add_test(tc, revoked_lease_reports_nothing_more);
    tcase_add_test(tc, drain_finishes_what_runs);
    tcase_add_test(tc, abandon_cancels);
    tcase_add_test(tc, engine_failure_releases);
    tcase_add_test(tc, prompt_evidence);
    suite_add_tcase(suite, tc);
    SRunner *sr = srunner_create(suite);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
