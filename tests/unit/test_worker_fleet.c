/* The whole worker against a coordinator that follows a script: real sockets, keys and threads, an engine of the test.
 */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/wire.h"
#include "worker/fleet.h"
#include "worker_fake_engine.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#else
#define THREAD_SANITIZER 0
#endif

static char folder[64];
static struct wire_router *router;
static struct wire_peer worker_peer;
static volatile sig_atomic_t signals;
static pthread_t thread;
static int outcome;
static struct kvf_err outcome_line;
static char endpoint[128];
static const char *key_folder;

static void *worker_main(void *unused)
{
    static const char *const models[] = {"first", "second", NULL};
    struct worker_options options = {
        .coordinator = endpoint,
        .keys = key_folder,
        .key = "worker",
        .models = models,
        .backend = "auto",
        .kernels = "auto",
        .threads = 1,
        .max_batch = 4,
        .drain_ms = 20000,
        .version = "1",
        .revision = "r",
        .build_flags = "f",
    };
    (void)unused;
    outcome = worker_run(&options, &signals, &outcome_line);
    return NULL;
}

static void setup(void)
{
    struct kvf_err err;
    snprintf(folder, sizeof folder, "/tmp/kvf-fleet-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    key_folder = folder;
    log_set_level(LOG_ERROR_LEVEL);
    ck_assert_msg(keys_make_coordinator(folder, &err) == 0, "%s", err.text);
    ck_assert_msg(keys_make_peer(folder, "worker", ROLE_WORKER, &err) == 0, "%s", err.text);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/socket", folder);
    ck_assert_msg(wire_router_open(endpoint, folder, &router, &err) == 0, "%s", err.text);
    signals = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, worker_main, NULL), 0);
}

static void teardown(void)
{
    char command[128];
    signals = 1;
    pthread_join(thread, NULL);
    wire_router_close(&router);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* The next message of the worker of this type; heartbeats that are not asked for are passed over. */
static struct wire_message *expect(int type)
{
    static struct wire_message message;
    int64_t until = clock_ms() + 60000;
    for (;;) {
        struct kvf_err err = {""};
        int rc = wire_router_recv(router, &message, &err);
        if (rc == KVF_EAGAIN) {
            ck_assert_msg(clock_ms() < until, "no %s came", msg_name(type));
            wire_router_wait(router, -1, 100);
            continue;
        }
        ck_assert_msg(rc == 0, "%s", err.text);
        worker_peer = message.peer;
        if (message.in.type == type) return &message;
        ck_assert_msg(message.in.type == MSG_READY_TYPE, "%s instead of %s", msg_name(message.in.type), msg_name(type));
        wire_message_free(&message);
    }
}

static void say(int type, const void *msg)
{
    struct kvf_err err = {""};
    ck_assert_msg(wire_router_send(router, &worker_peer, type, msg, &err) == 0, "%s", err.text);
}
static void welcome(uint64_t epoch)
{
    struct msg_welcome message = {
        .proto = MSG_PROTO_MAJOR, .epoch = epoch, .lease_ms = 2000, .heartbeat_ms = 200, .run_id = 7};
    say(MSG_WELCOME_TYPE, &message);
}
static void lend(uint64_t fence, int samples)
{
    struct rec_cell cell = {.cell_id = 5,
                            .policy = str_of("full"),
                            .interval_tokens = 128,
                            .max_new_tokens = 10,
                            .temperature = NAN,
                            .top_p = NAN,
                            .template_name = str_of("auto")};
    struct rec_sample list[64];
    char texts[64][24];
    struct msg_lease message;
    msg_init(MSG_LEASE_TYPE, &message);
    for (int k = 0; k < samples; k++) {
        snprintf(texts[k], sizeof texts[k], "%llu", (unsigned long long)fence * 100 + (unsigned)k);
        list[k] = (struct rec_sample){fence * 100 + (uint64_t)k, 5, 1, (uint64_t)k, str_of(texts[k]), str_of(texts[k])};
    }
    message.fence = fence;
    message.job_id = 1;
    message.model_hash = str_of("hash-of-second");
    message.cells = &cell;
    message.n_cells = 1;
    message.samples = list;
    message.n_samples = (uint32_t)samples;
    say(MSG_LEASE_TYPE, &message);
}
static void acknowledge(uint64_t fence, uint64_t batch)
{
    struct msg_ack message = {.fence = fence, .batch = batch};
    say(MSG_ACK_TYPE, &message);
}
static void join_fleet(uint64_t epoch)
{
    struct wire_message *message = expect(MSG_HELLO_TYPE);
    const struct msg_hello *hello = message->in.body;
    ck_assert_uint_eq(hello->instance.len, 32);
    ck_assert_uint_eq(hello->n_models, 2);
    ck_assert_uint_eq(hello->max_batch, 4);
    ck_assert_int_eq(message->peer.role, ROLE_WORKER);
    wire_message_free(message);
    welcome(epoch);
}
/* Takes results until `rows` rows came, acknowledging each batch. */
static void take_results(uint64_t fence, int rows)
{
    while (rows > 0) {
        struct wire_message *message = expect(MSG_RESULT_TYPE);
        const struct msg_result *result = message->in.body;
        ck_assert_uint_eq(result->fence, fence);
        for (uint32_t k = 0; k < result->n_results; k++) {
            ck_assert_uint_eq(result->results[k].sample_id / 100, fence);
            ck_assert_int_eq(memcmp(result->results[k].grade.text, "correct", 7), 0);
        }
        rows -= (int)result->n_results;
        uint64_t batch = result->batch;
        wire_message_free(message);
        acknowledge(fence, batch);
    }
    ck_assert_int_eq(rows, 0);
}
static void drain_out(void)
{
    signals = 1;
    struct wire_message *message = expect(MSG_BYE_TYPE);
    wire_message_free(message);
    pthread_join(thread, NULL);
    ck_assert_msg(outcome == 0, "%s", outcome_line.text);
    ck_assert_int_eq(pthread_create(&thread, NULL, worker_main, NULL), 0); /* for teardown */
}

START_TEST(works_and_leaves)
{
    join_fleet(1);
    struct wire_message *message = expect(MSG_READY_TYPE);
    const struct msg_ready *ready = message->in.body;
    ck_assert_uint_eq(ready->credit, 6);
    ck_assert_int_gt(ready->rss_bytes, 0);
    wire_message_free(message);
    lend(3, 6);
    take_results(3, 6);
    drain_out();
}
END_TEST

START_TEST(coordinator_that_forgot)
{
    join_fleet(1);
    fake_never_finish = 1;
    lend(3, 4);
    for (int named = 0; !named;) { /* a heartbeat that names the lease */
        struct wire_message *message = expect(MSG_READY_TYPE);
        const struct msg_ready *ready = message->in.body;
        named = ready->n_leases == 1 && ready->leases[0].fence == 3;
        wire_message_free(message);
    }
    struct msg_goaway away = {.code = str_of("unknown_peer"), .reason = str_of("who?"), .retry_ms = 0};
    say(MSG_GOAWAY_TYPE, &away);
    wire_message_free(expect(MSG_HELLO_TYPE));
    fake_never_finish = 0; /* not before: a result could overtake the farewell */
    welcome(2);
    take_results(3, 4); /* the lease outlived it */
    drain_out();
}
END_TEST

START_TEST(unacknowledged_results_come_again)
{
    join_fleet(1);
    lend(3, 4);
    struct wire_message *message = expect(MSG_RESULT_TYPE);
    const struct msg_result *result = message->in.body;
    uint64_t batch = result->batch, sample = result->results[0].sample_id;
    wire_message_free(message); /* no ACK; a coordinator of a new epoch takes over */
    struct msg_goaway away = {.code = str_of("unknown_peer"), .reason = str_of("who?"), .retry_ms = 0};
    say(MSG_GOAWAY_TYPE, &away);
    message = expect(MSG_HELLO_TYPE);
    wire_message_free(message);
    welcome(2);
    message = expect(MSG_RESULT_TYPE);
    result = message->in.body;
    ck_assert_uint_eq(result->batch, batch);
    ck_assert_uint_eq(result->results[0].sample_id, sample);
    int left = 4 - (int)result->n_results;
    wire_message_free(message);
    acknowledge(3, batch);
    take_results(3, left);
    drain_out();
}
END_TEST

START_TEST(revoked_work_is_dropped)
{
    join_fleet(1);
    fake_never_finish = 1;
    lend(3, 4);
    struct wire_message *message;
    while (fake_submitted < 4) {
        message = expect(MSG_READY_TYPE);
        wire_message_free(message);
    }
    struct msg_revoke revoke = {.fence = 3, .reason = str_of("expired")};
    say(MSG_REVOKE_TYPE, &revoke);
    for (int gone = 0; !gone;) { /* until a heartbeat no longer names it */
        message = expect(MSG_READY_TYPE);
        gone = ((const struct msg_ready *)message->in.body)->n_leases == 0;
        wire_message_free(message);
    }
    fake_never_finish = 0;
    lend(4, 4);
    take_results(4, 4); /* nothing of lease 3 among them */
    drain_out();
}
END_TEST

START_TEST(drain_hands_back)
{
    join_fleet(1);
    fake_never_finish = 1;
    lend(3, 6); /* four run, two wait */
    struct wire_message *message;
    while (fake_submitted < 4) {
        message = expect(MSG_READY_TYPE);
        wire_message_free(message);
    }
    signals = 1;
    for (int told = 0; !told;) {
        message = expect(MSG_READY_TYPE);
        told = ((const struct msg_ready *)message->in.body)->credit == 0;
        wire_message_free(message);
    }
    fake_never_finish = 0;
    take_results(3, 4);
    message = expect(MSG_RELEASE_TYPE);
    ck_assert_uint_eq(((const struct msg_release *)message->in.body)->leases[0].fence, 3);
    wire_message_free(message);
    drain_out();
}
END_TEST

int main(void)
{
    if (THREAD_SANITIZER) {
        printf("skip: libzmq is not built for ThreadSanitizer; test_worker_threads covers the worker's own threads\n");
        return 77;
    }
    Suite *suite = suite_create("worker: fleet");
    TCase *tc = tcase_create("fleet");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, works_and_leaves);
    tcase_add_test(tc, coordinator_that_forgot);
    tcase_add_test(tc, unacknowledged_results_come_again);
    tcase_add_test(tc, revoked_work_is_dropped);
    tcase_add_test(tc, drain_hands_back);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
