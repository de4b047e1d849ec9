/* What waits for the database: bounded in messages and bytes, each batch once, in order. */
#include <check.h>
#include <string.h>
#include "coordinator/backlog.h"

static struct backlog backlog;
static struct rec_result row;
static struct msg_result results[BACKLOG_MESSAGES + 8];

static void teardown(void)
{
    backlog_free(&backlog);
    ck_assert_uint_eq(backlog.n, 0);
    ck_assert_uint_eq(backlog.bytes, 0);
}

/* A RESULT of one row; its text is `bytes` long as far as anybody looks. */
static struct wire_message message_of(struct msg_result *result, uint64_t fence, uint64_t batch, uint32_t bytes,
                                      const char *key)
{
    struct wire_message message = {.in = {.type = MSG_RESULT_TYPE, .body = result}};

    row.text = (struct str){"", bytes};
    *result = (struct msg_result){.fence = fence, .batch = batch, .results = &row, .n_results = 1};
    snprintf(message.peer.key_z85, sizeof message.peer.key_z85, "%s", key);
    return message;
}

static bool put(struct msg_result *result, uint64_t fence, uint64_t batch, uint32_t bytes, const char *key)
{
    struct wire_message message = message_of(result, fence, batch, bytes, key);

    return backlog_put(&backlog, &message);
}

START_TEST(messages_are_bounded)
{
    struct wire_message out;

    for (int i = 0; i < BACKLOG_MESSAGES; i++) ck_assert(put(&results[i], 1, (uint64_t)i, 10, "a"));
    ck_assert(!put(&results[BACKLOG_MESSAGES], 1, BACKLOG_MESSAGES, 10, "a"));
    ck_assert_uint_eq(backlog.n, BACKLOG_MESSAGES);
    for (uint64_t i = 0; i < BACKLOG_MESSAGES; i++) {
        ck_assert(backlog_take(&backlog, &out));
        ck_assert_uint_eq(((struct msg_result *)out.in.body)->batch, i);
    }
    ck_assert(!backlog_take(&backlog, &out));
    ck_assert(put(&results[0], 1, 1, 10, "a")); /* empty, it takes more */
}
END_TEST

START_TEST(bytes_are_bounded)
{
    uint32_t n = 0;

    while (put(&results[n], 1, n, 2u << 20, "a")) n++;
    ck_assert_uint_ge(n, BACKLOG_BYTES / (2u << 20) - 1);
    ck_assert_uint_lt(n, BACKLOG_BYTES / (2u << 20) + 1);
    ck_assert_uint_le(backlog.bytes, BACKLOG_BYTES);
    ck_assert(put(&results[n], 1, n, 10, "a")); /* a small one still fits */
    ck_assert_uint_le(backlog.bytes, BACKLOG_BYTES);
}
END_TEST

START_TEST(a_batch_sent_again_is_held_once)
{
    struct wire_message again = message_of(&results[3], 7, 1, 1000, "a"), out;
    size_t bytes;

    ck_assert(put(&results[0], 7, 1, 1000, "a"));
    ck_assert(put(&results[1], 7, 2, 1000, "a"));
    bytes = backlog.bytes;
    again.peer.id_len = 5; /* by a new connection */
    ck_assert(backlog_put(&backlog, &again));
    ck_assert_uint_eq(backlog.n, 2);
    ck_assert_uint_eq(backlog.bytes, bytes);
    ck_assert(put(&results[4], 7, 1, 1000, "b")); /* another key's is another */
    ck_assert_uint_eq(backlog.n, 3);
    ck_assert(backlog_take(&backlog, &out));
    ck_assert_uint_eq(out.peer.id_len, 5);
    ck_assert_uint_eq(((struct msg_result *)out.in.body)->batch, 1);
    ck_assert(backlog_take(&backlog, &out));
    ck_assert_uint_eq(((struct msg_result *)out.in.body)->batch, 2);
    ck_assert(put(&results[1], 7, 1, 1000, "a")); /* what was taken out is no copy any more */
    ck_assert_uint_eq(backlog.n, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator backlog");
    TCase *all = tcase_create("all");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(all, NULL, teardown);
    tcase_add_test(all, messages_are_bounded);
    tcase_add_test(all, bytes_are_bounded);
    tcase_add_test(all, a_batch_sent_again_is_held_once);
    suite_add_tcase(suite, all);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
