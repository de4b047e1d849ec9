/* The worker's protocol as a state machine, with time and coordinator played by the test. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "proto/log.h"
#include "worker/session.h"

#define BEAT 1000

static struct session *session;
static int64_t now;

/* What the session did since the last look. */
static struct {
    int type[64];
    uint64_t fence[64], batch[64], sample[64]; /* of RESULT, RELEASE */
    uint64_t credit, leases[16], n_leases;     /* of the last READY */
    int n;
    bool blocked;  /* the socket takes nothing */
    int fail_once; /* code of the next send */
} sent;
static struct {
    int n, revoked, drains, abandons;
    int64_t last_revoked;
    struct lease *list[16];
} work;

static int on_send(void *user, int type, const void *msg, struct kvf_err *err)
{
    (void)user;
    if (sent.blocked) return KVF_EAGAIN;
    if (sent.fail_once != 0) {
        int rc = sent.fail_once;
        sent.fail_once = 0;
        return kvf_fail(err, rc, "told to fail");
    }
    ck_assert_int_lt(sent.n, 64);
    sent.type[sent.n] = type;
    if (type == MSG_READY_TYPE) {
        const struct msg_ready *ready = msg;
        sent.credit = ready->credit;
        sent.n_leases = ready->n_leases;
        for (uint32_t k = 0; k < ready->n_leases; k++) sent.leases[k] = ready->leases[k].fence;
    } else if (type == MSG_RESULT_TYPE) {
        const struct msg_result *result = msg;
        sent.fence[sent.n] = result->fence;
        sent.batch[sent.n] = result->batch;
        sent.sample[sent.n] = result->results[0].sample_id;
    } else if (type == MSG_RELEASE_TYPE) {
        sent.fence[sent.n] = ((const struct msg_release *)msg)->leases[0].fence;
    }
    sent.n++;
    return 0;
}

static void on_lease(void *user, struct lease *lease)
{
    (void)user;
    work.list[work.n++] = lease;
}
static void on_revoke(void *user, int64_t fence)
{
    (void)user;
    work.revoked++;
    work.last_revoked = fence;
}
static void on_drain(void *user)
{
    (void)user;
    work.drains++;
}
static void on_abandon(void *user)
{
    (void)user;
    work.abandons++;
}

static void setup(void)
{
    struct kvf_err err;
    struct session_options options = {
        .max_batch = 8, .drain_ms = 10000, .jitter = 1, .endpoint = "tcp://there:1", .key_name = "worker"};
    struct session_calls calls = {NULL, on_send, on_lease, on_revoke, on_drain, on_abandon};
    msg_init(MSG_HELLO_TYPE, &options.hello);
    memset(&sent, 0, sizeof sent);
    memset(&work, 0, sizeof work);
    log_set_level(LOG_ERROR_LEVEL);
    now = 100000;
    ck_assert_int_eq(session_new(&options, &calls, now, &session, &err), 0);
}
static void teardown(void)
{
    for (int k = 0; k < work.n; k++) lease_free(work.list[k]);
    session_destroy(&session);
}

static void tick(int64_t ms)
{
    now += ms;
    sent.n = 0;
    (void)session_tick(session, now);
}

static int count(int type)
{
    int found = 0;
    for (int k = 0; k < sent.n; k++) found += sent.type[k] == type;
    return found;
}
static int first(int type)
{
    for (int k = 0; k < sent.n; k++)
        if (sent.type[k] == type) return k;
    ck_abort_msg("%s was not sent", msg_name(type));
}

static void connect_up(void)
{
    tick(0);
    ck_assert(session_wants_socket(session));
    session_opened(session, now);
    tick(0);
    ck_assert_int_eq(count(MSG_HELLO_TYPE), 1);
}
static void welcome(uint64_t epoch)
{
    struct msg_welcome message;
    msg_init(MSG_WELCOME_TYPE, &message);
    message.proto = 1;
    message.epoch = epoch;
    message.lease_ms = 4000;
    message.heartbeat_ms = BEAT;
    message.run_id = 7;
    session_receive(session, MSG_WELCOME_TYPE, &message, now);
}
static void go_up(void)
{
    connect_up();
    welcome(1);
    ck_assert_int_eq(session_state(session), SESSION_UP);
    tick(0);
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
}
static void lend(uint64_t fence, int samples)
{
    struct msg_lease message;
    struct rec_cell cell;
    struct rec_sample list[32];
    memset(&cell, 0, sizeof cell);
    memset(list, 0, sizeof list);
    msg_init(MSG_LEASE_TYPE, &message);
    message.fence = fence;
    message.job_id = 1;
    message.model_hash = str_of("m");
    cell.cell_id = 5;
    cell.policy = str_of("full");
    cell.temperature = cell.top_p = NAN;
    cell.template_name = str_of("auto");
    for (int k = 0; k < samples; k++) {
        list[k].sample_id = fence * 100 + (uint64_t)k;
        list[k].cell_id = 5;
        list[k].attempt = 1;
        list[k].problem = str_of("p");
        list[k].answer = str_of("1");
    }
    message.cells = &cell;
    message.n_cells = 1;
    message.samples = list;
    message.n_samples = (uint32_t)samples;
    session_receive(session, MSG_LEASE_TYPE, &message, now);
}
/* The engine's thread reports the row of a lent sample, or that the rest of the lease is released. */
static void report(int lease, int sample)
{
    struct lease *from = work.list[lease];
    struct row *row = sample < 0 ? from->notice : from->samples[sample].row;
    ck_assert_ptr_nonnull(row);
    if (sample < 0)
        from->notice = NULL;
    else {
        row_fill_error(row, "played");
        from->samples[sample].row = NULL;
    }
    struct reports reports = {.rows = row};
    session_reports(session, &reports, now);
}
static void acknowledge(uint64_t fence, uint64_t batch)
{
    struct msg_ack message = {.fence = fence, .batch = batch};
    session_receive(session, MSG_ACK_TYPE, &message, now);
}
static void revoke(uint64_t fence)
{
    struct msg_revoke message = {.fence = fence, .reason = str_of("expired")};
    session_receive(session, MSG_REVOKE_TYPE, &message, now);
}
static void goaway(const char *code, uint64_t retry_ms)
{
    struct msg_goaway message = {.code = str_of(code), .reason = str_of("because"), .retry_ms = retry_ms};
    session_receive(session, MSG_GOAWAY_TYPE, &message, now);
}

START_TEST(hello_welcome_ready)
{
    sent.blocked = true; /* not connected yet */
    tick(0);
    session_opened(session, now);
    tick(0);
    ck_assert_int_eq(sent.n, 0);
    sent.blocked = false;
    tick(50);
    ck_assert_int_eq(count(MSG_HELLO_TYPE), 1);
    tick(50);
    ck_assert_int_eq(sent.n, 0); /* once */
    welcome(1);
    tick(0);
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
    ck_assert_uint_eq(sent.credit, 12); /* the batch and half of it ahead */
    tick(BEAT - 1);
    ck_assert_int_eq(sent.n, 0);
    tick(1);
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
}
END_TEST

START_TEST(credit_and_leases)
{
    go_up();
    lend(3, 8);
    lend(4, 2);
    lend(4, 2); /* told twice */
    ck_assert_int_eq(work.n, 2);
    ck_assert_int_eq(session_load(session), 10);
    tick(BEAT);
    ck_assert_uint_eq(sent.credit, 2);
    ck_assert_uint_eq(sent.n_leases, 2);
    ck_assert_uint_eq(sent.leases[0], 3);
    ck_assert_uint_eq(sent.leases[1], 4);
    report(0, 0);
    tick(60); /* grown credit is told without a heartbeat */
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
    ck_assert_uint_eq(sent.credit, 3);
    lend(5, 8);
    tick(BEAT);
    ck_assert_uint_eq(sent.credit, 0); /* lent more than asked for */
}
END_TEST

/* A lease uses up the credit that was told: what finishes after it is told soon, not with the next heartbeat. */
START_TEST(used_credit_is_asked_for_again)
{
    go_up();
    lend(3, 12);
    tick(60);
    ck_assert_int_eq(count(MSG_READY_TYPE), 0);
    report(0, 0);
    tick(60);
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
    ck_assert_uint_eq(sent.credit, 1);
}
END_TEST

START_TEST(results_until_acknowledged)
{
    go_up();
    lend(3, 2);
    report(0, 0);
    tick(10);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 0); /* waits for company */
    report(0, 1);
    tick(10); /* the lease is complete: goes at once */
    int at = first(MSG_RESULT_TYPE);
    ck_assert_uint_eq(sent.fence[at], 3);
    ck_assert_uint_eq(sent.sample[at], 300);
    uint64_t batch = sent.batch[at];
    tick(BEAT);
    ck_assert_uint_eq(sent.n_leases, 1); /* not over before its ACK: the fence must stay alive */
    tick(5000);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1); /* again */
    ck_assert_uint_eq(sent.batch[first(MSG_RESULT_TYPE)], batch);
    acknowledge(3, batch);
    ck_assert_int_eq(session_unacknowledged(session), 0);
    tick(BEAT);
    ck_assert_uint_eq(sent.n_leases, 0);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 0);
}
END_TEST

START_TEST(revoke_drops_everything)
{
    go_up();
    lend(3, 2);
    lend(4, 1);
    report(0, 0);
    revoke(3);
    ck_assert_int_eq(work.revoked, 1);
    ck_assert_int_eq(work.last_revoked, 3);
    report(0, 1); /* made before the engine's thread heard of it */
    ck_assert_int_eq(session_unacknowledged(session), 0);
    tick(BEAT);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 0);
    ck_assert_uint_eq(sent.n_leases, 1);
    ck_assert_uint_eq(sent.leases[0], 4);
    revoke(99); /* never ours */
    ck_assert_int_eq(work.revoked, 1);
}
END_TEST

START_TEST(unknown_peer_says_hello_and_keeps_work)
{
    go_up();
    lend(3, 2);
    report(0, 0);
    tick(200);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1);
    uint64_t batch = sent.batch[first(MSG_RESULT_TYPE)];
    goaway("unknown_peer", 0);
    ck_assert_int_eq(session_state(session), SESSION_GREETING);
    goaway("unknown_peer", 0); /* the answer to the next message that was under way: no second HELLO */
    tick(0);
    ck_assert_int_eq(sent.n, 1);
    ck_assert_int_eq(sent.type[0], MSG_HELLO_TYPE);
    welcome(2); /* a new coordinator */
    tick(0);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1);
    ck_assert_uint_eq(sent.batch[first(MSG_RESULT_TYPE)], batch);
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
    ck_assert_uint_eq(sent.n_leases, 1);
    ck_assert_int_eq(work.revoked, 0);
}
END_TEST

START_TEST(full_socket_loses_nothing)
{
    go_up();
    lend(3, 1);
    report(0, 0);
    sent.blocked = true;
    tick(1);
    tick(100);
    ck_assert_int_eq(session_unacknowledged(session), 1);
    sent.blocked = false;
    tick(100);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1);
}
END_TEST

START_TEST(silence_is_probed_then_left)
{
    go_up();
    for (int k = 0; k < 2; k++) {
        tick(BEAT);
        ck_assert_int_eq(count(MSG_HELLO_TYPE), 0);
    }
    tick(BEAT);
    ck_assert_int_eq(count(MSG_HELLO_TYPE), 1);
    welcome(1); /* alive: nothing to tell */
    tick(0);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 0);
    for (int k = 0; k < 3; k++) tick(BEAT);
    ck_assert_int_eq(count(MSG_HELLO_TYPE), 1);
    tick(14999);
    ck_assert(session_wants_socket(session));
    tick(1);
    ck_assert_int_eq(session_state(session), SESSION_DOWN);
    ck_assert(!session_wants_socket(session));
    tick(1500); /* backoff 1 s, spread over half as much again */
    ck_assert(session_wants_socket(session));
}
END_TEST

START_TEST(no_welcome_backs_off)
{
    int64_t waits[6];
    for (int k = 0; k < 6; k++) {
        connect_up();
        tick(14999);
        ck_assert(session_wants_socket(session));
        tick(1);
        ck_assert(!session_wants_socket(session));
        int64_t since = now;
        while (!session_wants_socket(session)) tick(10);
        waits[k] = now - since;
    }
    ck_assert_int_ge(waits[0], 1000);
    ck_assert_int_le(waits[0], 1510);
    ck_assert_int_ge(waits[2], 4000);
    ck_assert_int_ge(waits[5], 10000);
    ck_assert_int_le(waits[5], 15010);
}
END_TEST

START_TEST(goaway_shutting_down)
{
    go_up();
    lend(3, 1);
    goaway("shutting_down", 3000);
    ck_assert(!session_wants_socket(session));
    report(0, 0); /* work goes on meanwhile */
    tick(2999);
    ck_assert(!session_wants_socket(session));
    tick(1501);
    connect_up();
    welcome(2);
    tick(0);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1);
}
END_TEST

START_TEST(wrong_key_is_final_after_a_while)
{
    struct kvf_err err = {""};
    int tries = 0;
    int64_t since = now;
    while (session_state(session) != SESSION_OVER) {
        tick(100);
        if (!session_wants_socket(session)) continue;
        session_opened(session, now);
        tick(0);
        session_trouble(session, "wrong key", now);
        ck_assert(!session_wants_socket(session)); /* that socket is dead for good */
        tries++;
        ck_assert_int_lt(tries, 50);
    }
    ck_assert_int_ge(tries, 2);
    ck_assert_int_ge(now - since, 15000);
    ck_assert_int_le(now - since, 15500);
    ck_assert_int_eq(session_outcome(session, &err), KVF_EDENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "tcp://there:1"));
    ck_assert_ptr_nonnull(strstr(err.text, "worker"));
}
END_TEST

START_TEST(absence_is_never_final)
{
    for (int64_t spent = 0; spent < 3600000; spent += 500) {
        tick(500);
        if (session_wants_socket(session)) session_trouble(session, "not reachable", now);
        if (spent % 40000 == 0 && session_wants_socket(session)) session_opened(session, now);
        ck_assert_int_ne(session_state(session), SESSION_OVER);
    }
}
END_TEST

START_TEST(version_and_role_end_it)
{
    struct kvf_err err = {""};
    connect_up();
    goaway(_i == 0 ? "version" : "role", 0);
    ck_assert_int_eq(session_state(session), SESSION_OVER);
    ck_assert_int_eq(session_outcome(session, &err), _i == 0 ? KVF_ECONFLICT : KVF_EDENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "because"));
}
END_TEST

START_TEST(drain_finishes_and_hands_back)
{
    go_up();
    lend(3, 2); /* one runs, one waits */
    lend(4, 2); /* nothing runs */
    session_drain(session, now);
    session_drain(session, now);
    ck_assert_int_eq(work.drains, 1);
    report(1, -1);
    tick(0);
    ck_assert_uint_eq(sent.fence[first(MSG_RELEASE_TYPE)], 4); /* at once */
    ck_assert_int_eq(count(MSG_READY_TYPE), 1);
    ck_assert_uint_eq(sent.credit, 0);
    report(0, 0);
    report(0, -1);
    tick(10);
    ck_assert_int_eq(count(MSG_RELEASE_TYPE), 0); /* first its results */
    uint64_t batch = sent.batch[first(MSG_RESULT_TYPE)];
    struct reports reports = {.drained = true};
    session_reports(session, &reports, now);
    tick(10);
    ck_assert_int_ne(session_state(session), SESSION_OVER);
    acknowledge(3, batch);
    tick(10);
    ck_assert_uint_eq(sent.fence[first(MSG_RELEASE_TYPE)], 3);
    ck_assert_int_eq(sent.type[sent.n - 1], MSG_BYE_TYPE);
    ck_assert_int_eq(session_state(session), SESSION_OVER);
    ck_assert_int_eq(session_outcome(session, NULL), 0);
    ck_assert_int_eq(work.abandons, 0);
}
END_TEST

START_TEST(drain_deadline_abandons)
{
    go_up();
    lend(3, 1);
    session_drain(session, now);
    tick(9999);
    ck_assert_int_eq(work.abandons, 0);
    tick(1);
    ck_assert_int_eq(work.abandons, 1);
    report(0, -1);
    struct reports reports = {.drained = true};
    session_reports(session, &reports, now);
    tick(10);
    ck_assert_int_eq(count(MSG_RELEASE_TYPE), 1);
    ck_assert_int_eq(session_outcome(session, NULL), 0);
    ck_assert_int_eq(session_state(session), SESSION_OVER);
}
END_TEST

START_TEST(drain_without_coordinator)
{
    struct kvf_err err = {""};
    go_up();
    lend(3, 1);
    report(0, 0);
    goaway("shutting_down", 3600000);
    session_drain(session, now);
    struct reports reports = {.drained = true};
    session_reports(session, &reports, now);
    tick(14000);
    ck_assert_int_ne(session_state(session), SESSION_OVER); /* it may come back */
    tick(1000);
    ck_assert_int_eq(session_state(session), SESSION_OVER);
    ck_assert_int_eq(session_outcome(session, &err), KVF_EUNAVAIL);
    ck_assert_ptr_nonnull(strstr(err.text, "1 results"));
}
END_TEST

START_TEST(idle_drain_is_immediate)
{
    session_drain(session, now); /* before it ever met the coordinator */
    struct reports reports = {.drained = true};
    session_reports(session, &reports, now);
    tick(0);
    ck_assert_int_eq(session_state(session), SESSION_OVER);
    ck_assert_int_eq(session_outcome(session, NULL), 0);
}
END_TEST

START_TEST(engine_failure_hands_back_and_ends)
{
    struct kvf_err err = {""};
    go_up();
    lend(3, 1);
    struct reports reports = {.failed = true, .failure = {"slab torn"}};
    session_reports(session, &reports, now);
    report(0, -1);
    reports = (struct reports){.drained = true, .failed = true};
    session_reports(session, &reports, now);
    tick(1);
    ck_assert_int_eq(count(MSG_RELEASE_TYPE), 1);
    ck_assert_int_eq(count(MSG_BYE_TYPE), 1);
    ck_assert_int_eq(session_outcome(session, &err), KVF_EIO);
    ck_assert_str_eq(err.text, "slab torn");
}
END_TEST

START_TEST(unsendable_row_becomes_an_error)
{
    go_up();
    lend(3, 1);
    struct row *row = work.list[0]->samples[0].row;
    work.list[0]->samples[0].row = NULL;
    row_fill_error(row, "x");
    row->rec.finish = str_of("stop");
    row->rec.text = (struct str){"\xff", 1}; /* not UTF-8: the encoder refuses it */
    struct reports reports = {.rows = row};
    session_reports(session, &reports, now);
    sent.fail_once = KVF_EINVAL;
    tick(1);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 0);
    tick(100);
    ck_assert_int_eq(count(MSG_RESULT_TYPE), 1);
    ck_assert_str_eq(row->rec.finish.text, "error");
    ck_assert_ptr_nonnull(strstr(row->error, "text"));
    ck_assert_uint_eq(row->rec.sample_id, 300);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker: session");
    TCase *tc = tcase_create("session");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, hello_welcome_ready);
    tcase_add_test(tc, credit_and_leases);
    tcase_add_test(tc, used_credit_is_asked_for_again);
    tcase_add_test(tc, results_until_acknowledged);
    tcase_add_test(tc, revoke_drops_everything);
    tcase_add_test(tc, unknown_peer_says_hello_and_keeps_work);
    tcase_add_test(tc, full_socket_loses_nothing);
    tcase_add_test(tc, silence_is_probed_then_left);
    tcase_add_test(tc, no_welcome_backs_off);
    tcase_add_test(tc, goaway_shutting_down);
    tcase_add_test(tc, wrong_key_is_final_after_a_while);
    tcase_add_test(tc, absence_is_never_final);
    tcase_add_loop_test(tc, version_and_role_end_it, 0, 2);
    tcase_add_test(tc, drain_finishes_and_hands_back);
    tcase_add_test(tc, drain_deadline_abandons);
    tcase_add_test(tc, drain_without_coordinator);
    tcase_add_test(tc, idle_drain_is_immediate);
    tcase_add_test(tc, engine_failure_hands_back_and_ends);
    tcase_add_test(tc, unsendable_row_becomes_an_error);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
