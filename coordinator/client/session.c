#include "coordinator/client/session.h"

#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"

#define SLICE_MS  100  /* how soon a stop or a changed connection is seen */
#define REPEAT_MS 3000 /* an answer that takes longer may never come */
#define PAGE_ROWS 500
/* A coordinator that is there accepts a connection at once; no reason to wait for one as long as for a large answer. */
#define CONNECT_MS 10000

struct session {
    struct wire_dealer *dealer;
    const char *coordinator, *keys, *key;
    int64_t timeout_ms;
    const volatile sig_atomic_t *stop;
    uint64_t request;
};

int session_open(const struct session_options *options, struct session **out, struct kvf_err *err)
{
    struct session *session;
    int code;

    *out = NULL;
    if (options->keys == NULL)
        return kvf_fail(
            err, KVF_EINVAL,
            "--keys is required: the folder that holds %s.secret and coordinator.public (or set KVFLEET_KEYS)",
            options->key);
    session = calloc(1, sizeof *session);
    if (session == NULL) return kvf_fail(err, KVF_ENOMEM, "session: out of memory");
    session->coordinator = options->coordinator;
    session->keys = options->keys;
    session->key = options->key;
    session->timeout_ms = options->timeout_ms;
    session->stop = options->stop;
    code = wire_dealer_open(options->coordinator, options->keys, options->key, &session->dealer, err);
    if (code != KVF_OK) {
        free(session);
        return code;
    }
    *out = session;
    return KVF_OK;
}

void session_close(struct session **session)
{
    if (session == NULL || *session == NULL) return;
    wire_dealer_close(&(*session)->dealer, 0);
    free(*session);
    *session = NULL;
}

void session_set_timeout(struct session *session, int64_t timeout_ms)
{
    session->timeout_ms = timeout_ms;
}

static bool is_stopped(const struct session *session)
{
    return session->stop != NULL && *session->stop != 0;
}

static int denied(const struct session *session, const char *reason, size_t length, struct kvf_err *err)
{
    return kvf_fail(err, KVF_EDENIED, "coordinator %s does not let key '%s' of %s do this: %.*s", session->coordinator,
                    session->key, session->keys, (int)length, reason);
}

/* A handshake that failed is final: the key is not one of authorized/, or coordinator.public is another coordinator's.
 */
static int wrong_key(const struct session *session, struct kvf_err *err)
{
    return kvf_fail(
        err, KVF_EDENIED,
        "coordinator %s refused the key '%s' of %s: its public key must be in the coordinator's authorized/ "
        "folder, and coordinator.public must be that coordinator's",
        session->coordinator, session->key, session->keys);
}

static int no_answer(struct session *session, int type, bool sent, int64_t waited_ms, struct kvf_err *err)
{
    double seconds = (double)waited_ms / 1000;

    if (strcmp(wire_dealer_trouble(session->dealer), "wrong key") == 0) return wrong_key(session, err);
    if (sent && type == MSG_SUBMIT_TYPE)
        return kvf_fail(
            err, KVF_EUNAVAIL,
            "coordinator %s did not answer within %.1f s; whether the job was made is not known: look with kvfleet "
            "status, or run the same again with --resume",
            session->coordinator, seconds);
    if (sent)
        return kvf_fail(err, KVF_EUNAVAIL,
                        "coordinator %s did not answer within %.1f s; look at its log, or wait longer with --timeout",
                        session->coordinator, seconds);
    return kvf_fail(
        err, KVF_EUNAVAIL,
        "coordinator %s is not reachable (tried for %.1f s); is kvfleet-coordinator running there? --coordinator URL "
        "names another",
        session->coordinator, seconds);
}

static int refused(const struct session *session, const struct msg_refused *no, struct kvf_err *err)
{
    static const struct {
        const char *name;
        enum kvf_code code;
    } codes[] = {{"bad_request", KVF_EINVAL},
                 {"not_found", KVF_ENOTFOUND},
                 {"denied", KVF_EDENIED},
                 {"conflict", KVF_ECONFLICT},
                 {"unavailable", KVF_EAGAIN}};

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strlen(codes[i].name) != no->code.len || memcmp(codes[i].name, no->code.text, no->code.len) != 0) continue;
        if (codes[i].code == KVF_EDENIED) return denied(session, no->reason.text, no->reason.len, err);
        return kvf_fail(err, codes[i].code, "%.*s", (int)no->reason.len, no->reason.text);
    }
    return kvf_fail(err, KVF_EINVAL, "refused (%.*s): %.*s", (int)no->code.len, no->code.text, (int)no->reason.len,
                    no->reason.text);
}

/* What a message that came in means for the request in flight: KVF_OK it is the answer, NOT_OURS it is another's,
 * a negative code how the request ends. */
#define NOT_OURS 1
static int message_judge(const struct session *session, const struct wire_message *message, int answer_type,
                         struct kvf_err *err)
{
    if (message->in.type == MSG_GOAWAY_TYPE) {
        const struct msg_goaway *away = message->in.body;
        return denied(session, away->reason.text, away->reason.len, err);
    }
    if (message->in.type == MSG_REFUSED_TYPE) {
        const struct msg_refused *no = message->in.body;
        /* 0: the coordinator could not even read which request it was */
        return no->request == session->request || no->request == 0 ? refused(session, no, err) : NOT_OURS;
    }
    if (message->in.type != MSG_JOB_TYPE && message->in.type != MSG_ROWS_TYPE) return NOT_OURS;
    if (*(const uint64_t *)message->in.body != session->request) return NOT_OURS; /* an answer that came too late */
    if (message->in.type != answer_type)
        return kvf_fail(err, KVF_ECORRUPT, "coordinator %s answered with %s, expected %s", session->coordinator,
                        msg_name(message->in.type), msg_name(answer_type));
    return KVF_OK;
}

_Static_assert(offsetof(struct msg_submit, request) == 0 && offsetof(struct msg_problems, request) == 0 &&
                   offsetof(struct msg_start, request) == 0 && offsetof(struct msg_cancel, request) == 0 &&
                   offsetof(struct msg_query, request) == 0 && offsetof(struct msg_job, request) == 0 &&
                   offsetof(struct msg_rows, request) == 0,
               "session_call fills in and compares the request number as the first field");

int session_call(struct session *session, int type, void *msg, int answer_type, struct wire_message *answer,
                 struct kvf_err *err)
{
    int64_t start = clock_ms(), deadline = start + session->timeout_ms, send_at = 0;
    int64_t connect_ms = session->timeout_ms < CONNECT_MS ? session->timeout_ms : CONNECT_MS;
    struct kvf_err ignored, away;
    bool sent = false, database_away = false;
    int code;

    *(uint64_t *)msg = ++session->request;
    for (;;) {
        int64_t now = clock_ms();
        if (is_stopped(session)) return kvf_fail(err, KVF_EAGAIN, "stopped");
        if (now >= deadline && database_away) return kvf_fail(err, KVF_EAGAIN, "%s", away.text);
        if (now >= deadline || (!sent && now >= start + connect_ms))
            return no_answer(session, type, sent, now - start, err);
        if (now >= send_at) {
            code = wire_dealer_send(session->dealer, type, msg, err);
            if (code == KVF_OK) {
                sent = true;
                send_at = type == MSG_SUBMIT_TYPE ? INT64_MAX : now + REPEAT_MS;
            } else if (code != KVF_EAGAIN) {
                return code;
            }
        }
        if (strcmp(wire_dealer_trouble(session->dealer), "wrong key") == 0) return wrong_key(session, err);
        wire_dealer_wait(session->dealer, -1, (int)(deadline - now < SLICE_MS ? deadline - now : SLICE_MS));
        while ((code = wire_dealer_recv(session->dealer, answer, &ignored)) == KVF_OK) {
            code = message_judge(session, answer, answer_type, err);
            if (code == KVF_OK) return KVF_OK;
            wire_message_free(answer);
            if (code == KVF_EAGAIN) { /* refused for now: ask again until the time is up */
                database_away = true;
                away = *err;
                send_at = clock_ms() + 500;
            } else if (code != NOT_OURS) {
                return code;
            }
        }
        if (code != KVF_EAGAIN && code != KVF_ECORRUPT) /* what does not decode is not our answer */
            return kvf_fail(err, code, "%s", ignored.text);
    }
}

static int rows_page(struct session *session, const struct session_query *query, int64_t after, int64_t limit,
                     json_t *rows, int64_t *next, struct kvf_err *err)
{
    struct msg_query ask;
    struct wire_message answer;
    const struct msg_rows *body;
    json_error_t bad;
    json_t *page;
    int code;

    msg_init(MSG_QUERY_TYPE, &ask);
    ask.view = str_of(query->view);
    ask.job_id = query->job_id < 0 ? MSG_NULL_INT : query->job_id;
    ask.sample_id = query->sample_id < 0 ? MSG_NULL_INT : query->sample_id;
    ask.cell_id = query->cell_id < 0 ? MSG_NULL_INT : query->cell_id;
    ask.failures = query->failures;
    ask.after = after < 0 ? MSG_NULL_INT : after;
    ask.limit = (uint64_t)limit;
    code = session_call(session, MSG_QUERY_TYPE, &ask, MSG_ROWS_TYPE, &answer, err);
    if (code != KVF_OK) return code;
    body = answer.in.body;
    page = json_loadb(body->rows.text, body->rows.len, JSON_ALLOW_NUL, &bad);
    *next = body->next == MSG_NULL_INT ? -1 : body->next;
    if (page == NULL || !json_is_array(page))
        code = kvf_fail(err, KVF_ECORRUPT, "coordinator %s: view %s: expected a JSON array, got %s (byte %d)",
                        session->coordinator, query->view, page == NULL ? bad.text : "something else",
                        page == NULL ? bad.position : 0);
    else if (json_array_extend(rows, page) != 0)
        code = kvf_fail(err, KVF_ENOMEM, "view %s: out of memory", query->view);
    json_decref(page);
    wire_message_free(&answer);
    return code;
}

int session_rows(struct session *session, const struct session_query *query, json_t **rows, int64_t *next,
                 struct kvf_err *err)
{
    int64_t after = query->after, left;
    json_t *all = json_array();
    int code;

    *rows = NULL;
    if (all == NULL) return kvf_fail(err, KVF_ENOMEM, "view %s: out of memory", query->view);
    do {
        int64_t asked_after = after;
        left = query->limit > 0 ? query->limit - (int64_t)json_array_size(all) : PAGE_ROWS;
        code = rows_page(session, query, asked_after, left < PAGE_ROWS ? left : PAGE_ROWS, all, &after, err);
        if (code == KVF_OK && after >= 0 && after == asked_after)
            code = kvf_fail(err, KVF_ECORRUPT, "coordinator %s: view %s: the page after %lld is itself",
                            session->coordinator, query->view, (long long)after);
    } while (code == KVF_OK && after >= 0 && (query->limit == 0 || (int64_t)json_array_size(all) < query->limit));
    if (code != KVF_OK) {
        json_decref(all);
        return code;
    }
    *rows = all;
    if (next != NULL) *next = after;
    return KVF_OK;
}
