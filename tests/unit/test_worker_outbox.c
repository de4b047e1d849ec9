/* The outbox: what is sent when, sent again, and forgotten. */
#include <check.h>
#include <stdlib.h>
#include "worker/outbox.h"

#define LINGER 200
#define RESEND 5000

static struct outbox outbox;

static void setup(void)
{
    outbox_init(&outbox, LINGER, RESEND);
}
static void teardown(void)
{
    outbox_free(&outbox);
}

static void add(int64_t fence, uint64_t sample, int64_t now)
{
    struct row *row = row_new(fence, ROW_RESULT);
    ck_assert_ptr_nonnull(row);
    row->rec.sample_id = sample;
    ck_assert_int_eq(outbox_add(&outbox, row, now), 0);
}

START_TEST(waits_for_company)
{
    add(1, 10, 1000);
    ck_assert_ptr_null(outbox_due(&outbox, 1000));
    ck_assert_int_eq(outbox_next_ms(&outbox), 1000 + LINGER);
    add(1, 11, 1100);
    ck_assert_ptr_null(outbox_due(&outbox, 1199));
    struct batch *batch = outbox_due(&outbox, 1200);
    ck_assert_ptr_nonnull(batch);
    ck_assert_int_eq(batch->n_rows, 2);
    ck_assert_uint_eq(batch->rows->rec.sample_id, 10);
    ck_assert_uint_eq(batch->rows->next->rec.sample_id, 11);
    outbox_sent(batch, 1200);
    add(1, 12, 1201); /* a batch that went out takes no more */
    ck_assert_int_eq(batch->n_rows, 2);
    ck_assert_ptr_ne(outbox_due(&outbox, 1500), batch);
}
END_TEST

START_TEST(full_batch_goes_at_once)
{
    for (uint64_t k = 0; k < OUTBOX_BATCH_ROWS + 1; k++) add(1, k + 1, 0);
    struct batch *batch = outbox_due(&outbox, 0);
    ck_assert_ptr_nonnull(batch);
    ck_assert_int_eq(batch->n_rows, OUTBOX_BATCH_ROWS);
    outbox_sent(batch, 0);
    ck_assert_ptr_null(outbox_due(&outbox, 0));
    outbox_close(&outbox, 2);
    ck_assert_ptr_null(outbox_due(&outbox, 0));
    outbox_close(&outbox, 1);
    batch = outbox_due(&outbox, 0);
    ck_assert_ptr_nonnull(batch);
    ck_assert_int_eq(batch->n_rows, 1);
}
END_TEST

START_TEST(large_texts_split)
{
    static char text[1];
    for (uint64_t k = 0; k < 5; k++) {
        struct row *row = row_new(1, ROW_RESULT);
        row->rec.text = (struct str){text, 524288};
        ck_assert_int_eq(outbox_add(&outbox, row, 0), 0);
    }
    int batches = 0;
    for (struct batch *batch = outbox.first; batch != NULL; batch = batch->next) {
        ck_assert_int_le(batch->bytes, OUTBOX_BATCH_BYTES);
        batches++;
    }
    ck_assert_int_eq(batches, 2);
    ck_assert_int_eq(outbox.n_rows, 5);
}
END_TEST

START_TEST(sent_again_until_acknowledged)
{
    add(1, 10, 0);
    struct batch *batch = outbox_due(&outbox, LINGER);
    outbox_sent(batch, LINGER);
    ck_assert_ptr_null(outbox_due(&outbox, LINGER + RESEND - 1));
    ck_assert_ptr_eq(outbox_due(&outbox, LINGER + RESEND), batch);
    outbox_sent(batch, LINGER + RESEND);
    outbox_rewind(&outbox); /* a new connection */
    ck_assert_ptr_eq(outbox_due(&outbox, LINGER + RESEND), batch);
    outbox_sent(batch, LINGER + RESEND);
    ck_assert_int_eq(outbox_ack(&outbox, 1, batch->number + 1), 0); /* another batch's */
    ck_assert_int_eq(outbox_ack(&outbox, 2, batch->number), 0);     /* another fence's */
    ck_assert(outbox_holds(&outbox, 1));
    ck_assert_int_eq(outbox_ack(&outbox, 1, batch->number), 1);
    ck_assert(!outbox_holds(&outbox, 1));
    ck_assert_int_eq(outbox.n_rows, 0);
    ck_assert_int_eq(outbox_next_ms(&outbox), INT64_MAX);
    ck_assert_int_eq(outbox_ack(&outbox, 1, 1), 0); /* twice */
}
END_TEST

START_TEST(numbers_are_never_reused)
{
    int64_t last = 0;
    for (int round = 0; round < 5; round++) {
        add(round % 2 + 1, 1, 0);
        struct batch *batch = outbox_due(&outbox, LINGER);
        ck_assert_int_gt(batch->number, last);
        last = batch->number;
        ck_assert_int_eq(outbox_ack(&outbox, batch->fence, batch->number), 1);
    }
}
END_TEST

START_TEST(revoked_fence_is_forgotten)
{
    add(1, 10, 0);
    add(2, 20, 0);
    outbox_sent(outbox_due(&outbox, LINGER), LINGER);
    add(1, 11, LINGER);
    ck_assert_int_eq(outbox_revoke(&outbox, 1), 2);
    ck_assert(!outbox_holds(&outbox, 1));
    ck_assert_int_eq(outbox.n_rows, 1);
    ck_assert_int_eq(outbox_due(&outbox, LINGER)->fence, 2);
    ck_assert_int_eq(outbox_revoke(&outbox, 1), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: outbox");
    TCase *tc = tcase_create("outbox");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, waits_for_company);
    tcase_add_test(tc, full_batch_goes_at_once);
    tcase_add_test(tc, large_texts_split);
    tcase_add_test(tc, sent_again_until_acknowledged);
    tcase_add_test(tc, numbers_are_never_reused);
    tcase_add_test(tc, revoked_fence_is_forgotten);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
