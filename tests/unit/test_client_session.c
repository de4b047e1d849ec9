/* The client's conversation, against a coordinator in a thread of this process that answers as each test tells it. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/client/session.h"
#include "coordinator/client/submission.h"

#define N_PROBLEMS 2500

/* The view of a QUERY says what the coordinator does with it. */
struct fake {
    char folder[64], endpoint[128];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready;
    int opened;
    struct kvf_err err;
    atomic_bool stop;
    int queries; /* seen so far */
    int n_received, n_chunks, submits, starts;
    bool in_order, resume;
    char content_hash[65], first_policy[64];
    uint64_t first_budget, n_cells;
};
static struct fake fake;

static bool view_is(const struct msg_query *query, const char *name)
{
    return query->view.len == strlen(name) && memcmp(query->view.text, name, query->view.len) == 0;
}

static void reply(struct wire_router *router, const struct wire_peer *peer, int type, const void *msg)
{
    struct kvf_err err;
    int code = wire_router_send(router, peer, type, msg, &err);

    ck_assert_msg(code == KVF_OK, "%s", err.text);
}

static void reply_rows(struct wire_router *router, const struct wire_peer *peer, uint64_t request, const char *rows,
                       int64_t next)
{
    struct msg_rows answer;

    msg_init(MSG_ROWS_TYPE, &answer);
    answer.request = request;
    answer.rows = str_of(rows);
    answer.next = next;
    reply(router, peer, MSG_ROWS_TYPE, &answer);
}

static void reply_refused(struct wire_router *router, const struct wire_peer *peer, uint64_t request, const char *code)
{
    struct msg_refused answer;

    msg_init(MSG_REFUSED_TYPE, &answer);
    answer.request = request;
    answer.code = str_of(code);
    answer.reason = str_of("the reason");
    reply(router, peer, MSG_REFUSED_TYPE, &answer);
}

static void answer_query(struct wire_router *router, const struct wire_peer *peer, const struct msg_query *query)
{
    fake.queries++;
    if (view_is(query, "silent") || (view_is(query, "second") && fake.queries == 1)) return;
    if (view_is(query, "unavailable") || (view_is(query, "later") && fake.queries == 1)) {
        reply_refused(router, peer, query->request, "unavailable");
    } else if (view_is(query, "conflict") || view_is(query, "not_found") || view_is(query, "denied") ||
               view_is(query, "bad_request")) {
        char code[32];
        snprintf(code, sizeof code, "%.*s", (int)query->view.len, query->view.text);
        reply_refused(router, peer, query->request, code);
    } else if (view_is(query, "pages")) { /* rows 1...5, two a page */
        char rows[64];
        int64_t after = query->after == MSG_NULL_INT ? 0 : query->after;
        snprintf(rows, sizeof rows, after < 4 ? "[{\"n\":%d},{\"n\":%d}]" : "[{\"n\":%d}]", (int)after + 1,
                 (int)after + 2);
        reply_rows(router, peer, query->request + 1000, "[{\"n\":99}]",
                   MSG_NULL_INT); /* an answer to another request */
        reply_rows(router, peer, query->request, rows, after < 4 ? after + 2 : MSG_NULL_INT);
    } else if (view_is(query, "no json")) {
        reply_rows(router, peer, query->request, "[{", MSG_NULL_INT);
    } else if (view_is(query, "loop")) {
        reply_rows(router, peer, query->request, "[]", 3);
    } else {
        reply_rows(router, peer, query->request, "[{\"ok\":true}]", MSG_NULL_INT);
    }
}

static void reply_job(struct wire_router *router, const struct wire_peer *peer, uint64_t request, const char *state)
{
    struct msg_job answer;

    msg_init(MSG_JOB_TYPE, &answer);
    answer.request = request;
    answer.job_id = 42;
    answer.state = str_of(state);
    answer.received = (uint64_t)fake.n_received;
    answer.resumed = fake.resume;
    reply(router, peer, MSG_JOB_TYPE, &answer);
}

static void answer_message(struct wire_router *router, const struct wire_message *message)
{
    if (message->in.type == MSG_QUERY_TYPE) answer_query(router, &message->peer, message->in.body);
    if (message->in.type == MSG_SUBMIT_TYPE) {
        const struct msg_submit *submit = message->in.body;
        fake.submits++;
        fake.resume = submit->resume;
        fake.n_cells = submit->n_cells;
        fake.first_budget = submit->cells[0].budget_tokens;
        snprintf(fake.first_policy, sizeof fake.first_policy, "%.*s", (int)submit->cells[0].policy.len,
                 submit->cells[0].policy.text);
        snprintf(fake.content_hash, sizeof fake.content_hash, "%.*s", (int)submit->content_hash.len,
                 submit->content_hash.text);
        reply_job(router, &message->peer, submit->request, "receiving");
    }
    if (message->in.type == MSG_PROBLEMS_TYPE) {
        const struct msg_problems *problems = message->in.body;
        if (problems->first != (uint64_t)fake.n_received) fake.in_order = false;
        for (uint32_t i = 0; i < problems->n_problems; i++) {
            char name[32];
            snprintf(name, sizeof name, "p%d", fake.n_received + (int)i);
            if (strlen(name) != problems->problems[i].name.len ||
                memcmp(name, problems->problems[i].name.text, strlen(name)) != 0)
                fake.in_order = false;
        }
        fake.n_received += (int)problems->n_problems;
        fake.n_chunks++;
        reply_job(router, &message->peer, problems->request, "receiving");
    }
    if (message->in.type == MSG_START_TYPE) {
        fake.starts++;
        reply_job(router, &message->peer, ((const struct msg_start *)message->in.body)->request, "running");
    }
}

static void *fake_run(void *unused)
{
    struct wire_router *router = NULL;
    int code = wire_router_open("tcp://127.0.0.1:*", fake.folder, &router, &fake.err);

    pthread_mutex_lock(&fake.lock);
    fake.opened = code;
    if (code == KVF_OK) snprintf(fake.endpoint, sizeof fake.endpoint, "%s", wire_router_endpoint(router));
    fake.ready = true;
    pthread_cond_signal(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    while (code == KVF_OK && !atomic_load(&fake.stop)) {
        struct wire_message message;
        struct kvf_err err;
        wire_router_wait(router, -1, 20);
        while (wire_router_recv(router, &message, &err) == KVF_OK) {
            answer_message(router, &message);
            wire_message_free(&message);
        }
    }
    wire_router_close(&router);
    return unused;
}

static void fake_start(void)
{
    memset(&fake, 0, sizeof fake);
    fake.in_order = true;
    strcpy(fake.folder, "/tmp/kvfleet-session.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake.folder));
    ck_assert_msg(keys_make_coordinator(fake.folder, &fake.err) == KVF_OK, "%s", fake.err.text);
    ck_assert_msg(keys_make_peer(fake.folder, "client", ROLE_CLIENT, &fake.err) == KVF_OK, "%s", fake.err.text);
    pthread_mutex_init(&fake.lock, NULL);
    pthread_cond_init(&fake.changed, NULL);
    pthread_create(&fake.thread, NULL, fake_run, NULL);
    pthread_mutex_lock(&fake.lock);
    while (!fake.ready) pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    ck_assert_msg(fake.opened == KVF_OK, "%s", fake.err.text);
}

static void folder_remove(const char *folder)
{
    static const char *const files[] = {"coordinator.secret", "coordinator.public", "client.secret",
                                        "authorized/client.public", "authorized"};
    char path[128];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        remove(path);
    }
    rmdir(folder);
}

static void fake_stop(void)
{
    atomic_store(&fake.stop, true);
    pthread_join(fake.thread, NULL);
    folder_remove(fake.folder);
}

static struct session *connect_with(const char *keys, int64_t timeout_ms, const volatile sig_atomic_t *stop)
{
    struct session_options options = {fake.endpoint, keys, "client", timeout_ms, stop};
    struct session *session;
    struct kvf_err err;

    ck_assert_msg(session_open(&options, &session, &err) == KVF_OK, "%s", err.text);
    return session;
}

static int ask(struct session *session, const char *view, json_t **rows, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY(view);

    return session_rows(session, &query, rows, NULL, err);
}

START_TEST(pages_become_one_list)
{
    struct session *session = connect_with(fake.folder, 10000, NULL);
    struct session_query query = SESSION_QUERY("pages");
    struct kvf_err err;
    json_t *rows;
    int64_t next;

    ck_assert_msg(session_rows(session, &query, &rows, &next, &err) == KVF_OK, "%s", err.text);
    ck_assert_uint_eq(json_array_size(rows), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(rows, (size_t)i), "n")), i + 1);
    ck_assert_int_eq(next, -1);
    json_decref(rows);

    query.limit = 2; /* one page, and where it goes on */
    ck_assert_int_eq(session_rows(session, &query, &rows, &next, &err), KVF_OK);
    ck_assert_uint_eq(json_array_size(rows), 2);
    ck_assert_int_eq(next, 2);
    json_decref(rows);
    session_close(&session);
}
END_TEST

START_TEST(refusals_are_errors)
{
    static const struct {
        const char *view;
        int code;
    } cases[] = {{"bad_request", KVF_EINVAL},
                 {"not_found", KVF_ENOTFOUND},
                 {"denied", KVF_EDENIED},
                 {"conflict", KVF_ECONFLICT}};
    struct session *session = connect_with(fake.folder, 10000, NULL);
    struct kvf_err err;
    json_t *rows;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(ask(session, cases[i].view, &rows, &err), cases[i].code);
        ck_assert_ptr_nonnull(strstr(err.text, "the reason"));
        ck_assert_ptr_null(rows);
    }
    ck_assert_int_eq(ask(session, "no json", &rows, &err), KVF_ECORRUPT);
    ck_assert_int_eq(ask(session, "loop", &rows, &err), KVF_ECORRUPT);
    session_close(&session);
}
END_TEST

START_TEST(a_database_that_comes_back_is_waited_for)
{
    struct session *session = connect_with(fake.folder, 10000, NULL);
    struct kvf_err err;
    json_t *rows;

    ck_assert_msg(ask(session, "later", &rows, &err) == KVF_OK, "%s", err.text);
    ck_assert_int_eq(fake.queries, 2);
    json_decref(rows);
    session_set_timeout(session, 300);
    ck_assert_int_eq(ask(session, "unavailable", &rows, &err), KVF_EAGAIN);
    ck_assert_str_eq(err.text, "the reason");
    session_close(&session);
}
END_TEST

START_TEST(a_lost_request_is_sent_again)
{
    struct session *session = connect_with(fake.folder, 20000, NULL);
    struct kvf_err err;
    json_t *rows;

    ck_assert_msg(ask(session, "second", &rows, &err) == KVF_OK, "%s", err.text);
    ck_assert_int_ge(fake.queries, 2);
    json_decref(rows);
    session_close(&session);
}
END_TEST

START_TEST(silence_has_an_end)
{
    static volatile sig_atomic_t stop;
    struct session *session = connect_with(fake.folder, 400, &stop);
    struct kvf_err err;
    json_t *rows;

    ck_assert_int_eq(ask(session, "silent", &rows, &err), KVF_EUNAVAIL);
    ck_assert_ptr_nonnull(strstr(err.text, fake.endpoint));
    ck_assert_msg(ask(session, "any", &rows, &err) == KVF_OK, "%s", err.text); /* and the next request is answered */
    json_decref(rows);
    stop = 1;
    session_set_timeout(session, 60000);
    ck_assert_int_eq(ask(session, "silent", &rows, &err), KVF_EAGAIN);
    session_close(&session);
}
END_TEST

START_TEST(nobody_there)
{
    struct session_options options = {"ipc:///tmp/kvfleet-session-nobody.sock", fake.folder, "client", 300, NULL};
    struct session *session;
    struct kvf_err err;
    json_t *rows;

    ck_assert_int_eq(session_open(&options, &session, &err), KVF_OK);
    ck_assert_int_eq(ask(session, "any", &rows, &err), KVF_EUNAVAIL);
    ck_assert_ptr_nonnull(strstr(err.text, options.coordinator));
    session_close(&session);

    options.keys = NULL;
    ck_assert_int_eq(session_open(&options, &session, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "--keys"));
}
END_TEST

START_TEST(strangers_are_told_that_it_is_the_key)
{
    char folder[] = "/tmp/kvfleet-session.XXXXXX", from[128], to[128], key[256];
    struct session *session;
    struct kvf_err err;
    json_t *rows;
    FILE *file;
    size_t length;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(keys_make_peer(folder, "client", ROLE_CLIENT, &err), KVF_OK);
    snprintf(from, sizeof from, "%s/coordinator.public", fake.folder);
    snprintf(to, sizeof to, "%s/coordinator.public", folder);
    file = fopen(from, "r");
    length = fread(key, 1, sizeof key, file);
    fclose(file);
    file = fopen(to, "w");
    fwrite(key, 1, length, file);
    fclose(file);
    session = connect_with(folder, 15000, NULL);
    ck_assert_int_eq(ask(session, "any", &rows, &err), KVF_EDENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "key 'client'"));
    ck_assert_int_eq(fake.queries, 0);
    session_close(&session);
    folder_remove(folder);
}
END_TEST

START_TEST(a_job_arrives_whole_and_in_order)
{
    static struct dataset_problem problems[N_PROBLEMS];
    static char names[N_PROBLEMS][16];
    static char long_text[4001];
    struct session *session = connect_with(fake.folder, 20000, NULL);
    struct settings settings = {.interval = 32,
                                .repeats = 1,
                                .top_p = 1,
                                .max_new_tokens = 64,
                                .template_name = "auto",
                                .max_attempts = 3,
                                .resume = true};
    struct plan_cell cells[2] = {{.policy = {.name = "full"}}, {.policy = {.name = "rkv"}, .budget_tokens = 96}};
    struct submission job = {.plan = {cells, 2, false},
                             .dataset = {.name = "d", .problems = problems, .count = N_PROBLEMS},
                             .model_name = "m",
                             .title = "t",
                             .spec = "{}",
                             .settings = &settings};
    struct kvf_err err;
    int64_t job_id;
    bool resumed;

    memset(long_text, 'x', sizeof long_text - 1);
    memset(job.model_hash, 'a', 64);
    memset(job.content_hash, 'b', 64);
    memset(job.dataset.hash, 'c', 64);
    for (int i = 0; i < N_PROBLEMS; i++) {
        snprintf(names[i], sizeof names[i], "p%d", i);
        problems[i] = (struct dataset_problem){.name = names[i], .problem = long_text, .answer = "1"};
        memset(problems[i].content_hash, 'd', 64);
    }
    ck_assert_msg(submission_send(&job, session, &job_id, &resumed, &err) == KVF_OK, "%s", err.text);
    session_close(&session);
    ck_assert_int_eq(job_id, 42);
    ck_assert(resumed);
    ck_assert_int_eq(fake.submits, 1);
    ck_assert_int_eq(fake.starts, 1);
    ck_assert_int_eq(fake.n_received, N_PROBLEMS);
    ck_assert(fake.in_order);
    ck_assert_int_ge(fake.n_chunks, 5); /* 2,500 problems of 4 kB are cut by bytes, not by number */
    ck_assert_uint_eq(fake.n_cells, 2);
    ck_assert_str_eq(fake.first_policy, "full");
    ck_assert_uint_eq(fake.first_budget, 0);
    ck_assert_str_eq(fake.content_hash, job.content_hash);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client session");
    TCase *tc = tcase_create("session");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(tc, fake_start, fake_stop);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, pages_become_one_list);
    tcase_add_test(tc, refusals_are_errors);
    tcase_add_test(tc, a_database_that_comes_back_is_waited_for);
    tcase_add_test(tc, a_lost_request_is_sent_again);
    tcase_add_test(tc, silence_has_an_end);
    tcase_add_test(tc, nobody_there);
    tcase_add_test(tc, strangers_are_told_that_it_is_the_key);
    tcase_add_test(tc, a_job_arrives_whole_and_in_order);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
