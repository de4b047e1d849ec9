/* session.c: see session.h. */
#include "worker/session.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/log.h"
#include "worker/machine.h"
#include "worker/outbox.h"

#define WELCOME_MS     15000 /* a connection that brings no WELCOME for so long is made anew; a refused key is final */
#define BACKOFF_MIN_MS 1000
#define BACKOFF_MAX_MS 10000
#define LINGER_MS      200 /* results wait so long for company */
#define RESEND_MS      5000
#define RETRY_MS       20 /* after a full socket */
#define CREDIT_MS      50 /* at most so often is grown credit told */
#define SILENT_BEATS   3
#define FAREWELL_MS    5000 /* after the drain deadline, for the last ACKs */
#define UNACKED_MAX    4096 /* rows: with more the database is behind, and no work is asked for */

/* A lease that is not over: it is named in each READY. */
struct held {
    struct held *next;
    int64_t fence;
    int left;      /* samples without a row yet */
    bool given_up; /* to be released once its rows are acknowledged */
};

struct session {
    struct session_options options;
    struct session_calls calls;
    enum session_state state;
    struct kvf_err outcome_line;
    int outcome;

    /* connection */
    int64_t retry_ms, backoff_ms; /* DOWN: when to try again */
    int64_t opened_ms, heard_ms;
    bool hello_due, fresh; /* fresh: the socket has not brought a WELCOME yet */
    int64_t probe_ms;      /* when the HELLO into a silence went out; negative: none is out */
    int64_t refused_ms;    /* since when the key is refused; negative: it is not */
    bool welcomed;         /* ever */
    char away[32];         /* trouble that was logged; "" when there is none */
    unsigned random;

    /* what WELCOME said */
    int64_t heartbeat_ms;
    uint64_t epoch;

    /* work */
    struct held *held;
    struct outbox outbox;
    int64_t send_after_ms; /* the socket was full */
    int64_t ready_ms;      /* last READY; negative: due at once */
    int told_credit;       /* of the last READY, less what was lent since: what the coordinator may still lend */
    int64_t emitted, emitted_then, emitted_then_ms;
    double rate;

    /* drain */
    bool draining, drained, abandoned;
    int64_t drain_until_ms;
    int failure; /* code of the engine's end */
    struct kvf_err failure_line;
};

int session_new(const struct session_options *options, const struct session_calls *calls, int64_t now_ms,
                struct session **out, struct kvf_err *err)
{
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL) return kvf_fail(err, KVF_ENOMEM, "session: out of memory");
    session->options = *options;
    session->calls = *calls;
    session->state = SESSION_DOWN;
    session->retry_ms = now_ms;
    session->backoff_ms = BACKOFF_MIN_MS;
    session->heard_ms = now_ms;
    session->probe_ms = session->refused_ms = session->ready_ms = -1;
    session->random = options->jitter | 1;
    session->heartbeat_ms = 1000;
    session->emitted_then_ms = now_ms;
    session->rate = NAN;
    outbox_init(&session->outbox, LINGER_MS, RESEND_MS);
    *out = session;
    return 0;
}

void session_destroy(struct session **session)
{
    struct session *self = *session;
    if (self == NULL) return;
    outbox_free(&self->outbox);
    while (self->held != NULL) {
        struct held *next = self->held->next;
        free(self->held);
        self->held = next;
    }
    free(self);
    *session = NULL;
}

enum session_state session_state(const struct session *session)
{
    return session->state;
}

int session_outcome(const struct session *session, struct kvf_err *err)
{
    if (session->outcome != 0 && err != NULL) *err = session->outcome_line;
    return session->outcome;
}

bool session_wants_socket(const struct session *session)
{
    return session->state == SESSION_GREETING || session->state == SESSION_UP;
}

int session_load(const struct session *session)
{
    int load = 0;
    for (const struct held *held = session->held; held != NULL; held = held->next) load += held->left;
    return load;
}

int session_unacknowledged(const struct session *session)
{
    return session->outbox.n_rows;
}

/* ---- transitions ---- */

__attribute__((format(printf, 3, 4))) static void end(struct session *session, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    session->outcome = kvf_vfail(&session->outcome_line, code, format, args);
    va_end(args);
    session->state = SESSION_OVER;
}

static unsigned random_next(struct session *session)
{
    session->random = session->random * 1664525u + 1013904223u;
    return session->random >> 8;
}

/* Closes the connection; the next one comes after the backoff, or after what the coordinator asked for. */
static void go_down(struct session *session, int64_t now_ms, int64_t asked_ms)
{
    int64_t wait = asked_ms > session->backoff_ms ? asked_ms : session->backoff_ms;
    /* Spread over half as much again: a fleet that lost its coordinator must not come back in one instant. */
    session->retry_ms = now_ms + wait + (int64_t)(random_next(session) % (unsigned)(wait / 2 + 1));
    session->backoff_ms = session->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : session->backoff_ms * 2;
    session->state = SESSION_DOWN;
}

static void go_greeting(struct session *session, int64_t now_ms)
{
    session->state = SESSION_GREETING;
    session->hello_due = true;
    session->opened_ms = now_ms;
    session->probe_ms = -1;
    session->send_after_ms = now_ms;
}

void session_opened(struct session *session, int64_t now_ms)
{
    session->fresh = true;
    go_greeting(session, now_ms);
}

/* One line each time that the coordinator goes away or comes back. */
static void note_away(struct session *session, const char *why)
{
    if (strcmp(session->away, why) == 0) return;
    snprintf(session->away, sizeof session->away, "%s", why);
    if (why[0] != 0)
        log_event(LOG_WARN_LEVEL, "coordinator_away", "endpoint=%s why=\"%s\" leased=%d unacknowledged=%d",
                  session->options.endpoint, why, session_load(session), session->outbox.n_rows);
}

void session_trouble(struct session *session, const char *trouble, int64_t now_ms)
{
    if (session->state == SESSION_OVER || session->state == SESSION_DOWN || trouble[0] == 0) return;
    note_away(session, trouble);
    if (strcmp(trouble, "wrong key") != 0) {
        session->refused_ms = -1;
        return;
    }
    if (session->refused_ms < 0) session->refused_ms = now_ms;
    go_down(session, now_ms, 0); /* a socket that was refused never connects again */
}

/* ---- leases ---- */

static struct held *held_find(struct session *session, int64_t fence)
{
    struct held *held = session->held;
    while (held != NULL && held->fence != fence) held = held->next;
    return held;
}

static void held_forget(struct session *session, int64_t fence)
{
    for (struct held **at = &session->held; *at != NULL; at = &(*at)->next)
        if ((*at)->fence == fence) {
            struct held *gone = *at;
            *at = gone->next;
            free(gone);
            return;
        }
}

static int count_held(const struct session *session)
{
    int count = 0;
    for (const struct held *held = session->held; held != NULL; held = held->next) count++;
    return count;
}

static void lease_taken(struct session *session, const struct msg_lease *message)
{
    int64_t fence = (int64_t)message->fence;
    if (held_find(session, fence) != NULL) return; /* told twice */
    struct held *held = calloc(1, sizeof *held);
    struct lease *lease = NULL;
    struct kvf_err why = {""};
    if (held == NULL || lease_new(message, &lease, &why) != 0) {
        free(held);
        log_event(LOG_ERROR_LEVEL, "lease_dropped", "fence=%lld why=\"%s\"", (long long)fence, why.text);
        return; /* not renewed, so it expires */
    }
    held->fence = fence;
    held->left = lease->n_samples;
    session->told_credit -= lease->n_samples;
    /* During a drain nothing is begun: the engine's thread hands it straight back. */
    struct held **end_of_list = &session->held;
    while (*end_of_list != NULL) end_of_list = &(*end_of_list)->next;
    *end_of_list = held;
    log_event(LOG_DEBUG_LEVEL, "lease", "fence=%lld samples=%d", (long long)fence, lease->n_samples);
    session->calls.lease(session->calls.user, lease);
}

static void lease_revoked(struct session *session, const struct msg_revoke *message)
{
    int64_t fence = (int64_t)message->fence;
    int rows = outbox_revoke(&session->outbox, fence);
    bool known = held_find(session, fence) != NULL;
    held_forget(session, fence);
    if (!known) return;
    session->calls.revoke(session->calls.user, fence);
    log_event(LOG_INFO_LEVEL, "lease_revoked", "fence=%lld results_dropped=%d reason=\"%.*s\"", (long long)fence, rows,
              (int)message->reason.len, message->reason.text);
}

/* A lease is over when every sample has a row and every row its ACK. */
static void held_settle(struct session *session, int64_t fence)
{
    struct held *held = held_find(session, fence);
    if (held != NULL && held->left == 0 && !held->given_up && !outbox_holds(&session->outbox, fence))
        held_forget(session, fence);
}

static void row_taken(struct session *session, struct row *row, int64_t now_ms)
{
    struct held *held = held_find(session, row->fence);
    int64_t fence = row->fence;
    if (held == NULL) { /* revoked while it was made */
        row_free(row);
        return;
    }
    if (row->kind == ROW_RELEASED) {
        held->given_up = true;
        held->left = 0;
        outbox_close(&session->outbox, fence);
        row_free(row);
        return;
    }
    held->left--;
    if (outbox_add(&session->outbox, row, now_ms) != 0) {
        log_event(LOG_ERROR_LEVEL, "result_dropped", "fence=%lld why=\"out of memory\"", (long long)fence);
        row_free(row);
        held->given_up = true; /* what was lost is done elsewhere */
    }
    if (held->left == 0) outbox_close(&session->outbox, fence);
}

void session_reports(struct session *session, struct reports *reports, int64_t now_ms)
{
    while (reports->rows != NULL) {
        struct row *next = reports->rows->next;
        row_taken(session, reports->rows, now_ms);
        reports->rows = next;
    }
    session->emitted = reports->emitted_tokens;
    session->drained |= reports->drained;
    if (reports->failed && session->failure == 0) {
        session->failure = KVF_EIO;
        session->failure_line = reports->failure;
        log_event(LOG_ERROR_LEVEL, "engine_failed", "why=\"%s\"", reports->failure.text);
        session_drain(session, now_ms);
    }
}

void session_drain(struct session *session, int64_t now_ms)
{
    if (session->draining || session->state == SESSION_OVER) return;
    session->draining = true;
    session->drain_until_ms = now_ms + session->options.drain_ms;
    session->ready_ms = -1;
    log_event(LOG_INFO_LEVEL, "draining", "leased=%d unacknowledged=%d", session_load(session), session->outbox.n_rows);
    session->calls.drain(session->calls.user);
}

/* ---- messages ---- */

static void welcome_taken(struct session *session, const struct msg_welcome *message, int64_t now_ms)
{
    bool again = session->fresh || message->epoch != session->epoch || session->state == SESSION_GREETING;
    session->heartbeat_ms = (int64_t)message->heartbeat_ms;
    session->backoff_ms = BACKOFF_MIN_MS;
    session->refused_ms = -1;
    session->fresh = false;
    session->epoch = message->epoch;
    session->state = SESSION_UP;
    session->hello_due = false;
    if (!again) return; /* the answer into a silence */
    session->welcomed = true;
    session->ready_ms = -1;
    session->send_after_ms = now_ms;
    outbox_rewind(&session->outbox);
    log_event(LOG_INFO_LEVEL, "joined", "endpoint=%s run=%llu epoch=%llu lease_ms=%llu heartbeat_ms=%llu",
              session->options.endpoint, (unsigned long long)message->run_id, (unsigned long long)message->epoch,
              (unsigned long long)message->lease_ms, (unsigned long long)message->heartbeat_ms);
}

static bool str_is(struct str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.text, text, s.len) == 0;
}

static void goaway_taken(struct session *session, const struct msg_goaway *message, int64_t now_ms)
{
    struct str code = message->code, reason = message->reason;
    if (str_is(code, "unknown_peer")) {
        if (session->state == SESSION_UP) go_greeting(session, now_ms);
        return;
    }
    if (str_is(code, "version")) {
        end(session, KVF_ECONFLICT, "%s: the coordinator speaks another protocol version: %.*s",
            session->options.endpoint, (int)reason.len, reason.text);
        return;
    }
    if (str_is(code, "role") && !session->welcomed) {
        end(session, KVF_EDENIED, "%s: key \"%s\" is not a worker's: %.*s", session->options.endpoint,
            session->options.key_name, (int)reason.len, reason.text);
        return;
    }
    char why[32];
    snprintf(why, sizeof why, "%.*s", (int)(code.len < 31 ? code.len : 31), code.text);
    note_away(session, why);
    go_down(session, now_ms, (int64_t)message->retry_ms);
}

void session_receive(struct session *session, int type, const void *msg, int64_t now_ms)
{
    if (!session_wants_socket(session)) return;
    session->heard_ms = now_ms;
    session->probe_ms = -1;
    if (type != MSG_GOAWAY_TYPE) note_away(session, "");
    switch (type) {
    case MSG_WELCOME_TYPE:
        welcome_taken(session, msg, now_ms);
        break;
    case MSG_LEASE_TYPE:
        lease_taken(session, msg);
        break;
    case MSG_ACK_TYPE: {
        const struct msg_ack *ack = msg;
        outbox_ack(&session->outbox, (int64_t)ack->fence, (int64_t)ack->batch);
        held_settle(session, (int64_t)ack->fence);
        break;
    }
    case MSG_REVOKE_TYPE:
        lease_revoked(session, msg);
        break;
    case MSG_GOAWAY_TYPE:
        goaway_taken(session, msg, now_ms);
        break;
    default:
        break; /* the wire lets nothing else through */
    }
}

/* ---- sending ---- */

/* False when the socket takes nothing now; then nothing is tried for a moment. */
static bool put(struct session *session, int type, const void *msg, int64_t now_ms)
{
    struct kvf_err why = {""};
    int rc = session->calls.send(session->calls.user, type, msg, &why);
    if (rc == 0) return true;
    if (rc != KVF_EAGAIN) log_event(LOG_ERROR_LEVEL, "send_failed", "message=%s why=\"%s\"", msg_name(type), why.text);
    session->send_after_ms = now_ms + RETRY_MS;
    return false;
}

/* Rows that the wire does not take become error rows: a batch that can never leave would hold up its lease for ever. */
static void batch_check(struct batch *batch)
{
    struct msg_out scratch = {0};
    batch->checked = true;
    for (struct row *row = batch->rows; row != NULL; row = row->next) {
        struct kvf_err why = {""};
        struct msg_result message;
        msg_init(MSG_RESULT_TYPE, &message);
        message.fence = (uint64_t)batch->fence;
        message.batch = (uint64_t)batch->number;
        message.results = &row->rec;
        message.n_results = 1;
        if (msg_encode(MSG_RESULT_TYPE, &message, 0, &scratch, &why) == 0) continue;
        log_event(LOG_ERROR_LEVEL, "result_not_sendable", "sample=%llu why=\"%s\"",
                  (unsigned long long)row->rec.sample_id, why.text);
        row_fill_error(row, why.text);
    }
    msg_out_free(&scratch);
}

static int credit_of(const struct session *session)
{
    if (session->draining || session->outbox.n_rows > UNACKED_MAX) return 0;
    int credit = session->options.max_batch + session->options.max_batch / 2 - session_load(session);
    return credit < 0 ? 0 : credit;
}

static void ready_put(struct session *session, int credit, int64_t now_ms)
{
    struct msg_ready ready;
    msg_init(MSG_READY_TYPE, &ready);
    struct rec_fence *fences = calloc((size_t)count_held(session) + 1, sizeof *fences);
    if (fences == NULL) return; /* the next heartbeat is soon */
    for (const struct held *held = session->held; held != NULL; held = held->next)
        fences[ready.n_leases++].fence = (uint64_t)held->fence;
    ready.leases = fences;
    ready.credit = (uint64_t)credit;
    int64_t rss = machine_rss_bytes();
    ready.rss_bytes = rss < 0 ? MSG_NULL_INT : rss;
    if (now_ms - session->emitted_then_ms >= 1000) {
        session->rate =
            (double)(session->emitted - session->emitted_then) * 1000.0 / (double)(now_ms - session->emitted_then_ms);
        session->emitted_then = session->emitted;
        session->emitted_then_ms = now_ms;
    }
    ready.tokens_per_s = session->rate;
    if (put(session, MSG_READY_TYPE, &ready, now_ms)) {
        session->ready_ms = now_ms;
        session->told_credit = credit;
    }
    free(fences);
}

static bool batch_put(struct session *session, struct batch *batch, int64_t now_ms)
{
    struct rec_result rows[OUTBOX_BATCH_ROWS];
    struct msg_result message;
    msg_init(MSG_RESULT_TYPE, &message);
    message.fence = (uint64_t)batch->fence;
    message.batch = (uint64_t)batch->number;
    message.results = rows;
    for (const struct row *row = batch->rows; row != NULL; row = row->next) rows[message.n_results++] = row->rec;
    struct kvf_err why = {""};
    int rc = session->calls.send(session->calls.user, MSG_RESULT_TYPE, &message, &why);
    if (rc == 0) {
        outbox_sent(batch, now_ms);
        return true;
    }
    if (rc != KVF_EAGAIN && !batch->checked) batch_check(batch);
    session->send_after_ms = now_ms + RETRY_MS;
    return false;
}

/* Leases that were given up, once their results are safe: the coordinator lends them again at once. */
static void releases_put(struct session *session, int64_t now_ms)
{
    struct held *held = session->held;
    while (held != NULL) {
        struct held *next = held->next;
        if (held->given_up && held->left == 0 && !outbox_holds(&session->outbox, held->fence)) {
            struct rec_fence fence = {.fence = (uint64_t)held->fence};
            struct msg_release message;
            msg_init(MSG_RELEASE_TYPE, &message);
            message.leases = &fence;
            message.n_leases = 1;
            message.reason = str_of(session->draining ? "drain" : "given up");
            if (!put(session, MSG_RELEASE_TYPE, &message, now_ms)) return;
            held_forget(session, held->fence);
        }
        held = next;
    }
}

static void tick_up(struct session *session, int64_t now_ms)
{
    if (now_ms < session->send_after_ms) return;
    struct batch *batch;
    while ((batch = outbox_due(&session->outbox, now_ms)) != NULL)
        if (!batch_put(session, batch, now_ms)) return;
    releases_put(session, now_ms);
    if (now_ms < session->send_after_ms) return;
    int credit = credit_of(session);
    bool beat = session->ready_ms < 0 || now_ms - session->ready_ms >= session->heartbeat_ms;
    bool grown = credit > session->told_credit && now_ms - session->ready_ms >= CREDIT_MS;
    if (beat || grown) ready_put(session, credit, now_ms);
    /* With nothing to say the coordinator is silent: HELLO makes a living one speak. */
    if (session->probe_ms < 0 && now_ms - session->heard_ms >= SILENT_BEATS * session->heartbeat_ms &&
        put(session, MSG_HELLO_TYPE, &session->options.hello, now_ms))
        session->probe_ms = now_ms;
    if (session->probe_ms >= 0 && now_ms - session->probe_ms >= WELCOME_MS) {
        note_away(session, "silent");
        go_down(session, now_ms, 0);
    }
}

static void tick_greeting(struct session *session, int64_t now_ms)
{
    if (session->hello_due && now_ms >= session->send_after_ms)
        session->hello_due = !put(session, MSG_HELLO_TYPE, &session->options.hello, now_ms);
    if (now_ms - session->opened_ms < WELCOME_MS) return;
    note_away(session, session->away[0] != 0 ? session->away : "no answer");
    go_down(session, now_ms, 0);
}

static void tick_drain(struct session *session, int64_t now_ms)
{
    if (!session->drained && !session->abandoned && now_ms >= session->drain_until_ms) {
        session->abandoned = true;
        session->calls.abandon(session->calls.user);
    }
    bool delivered = session->outbox.n_rows == 0 && session->held == NULL;
    if (session->drained && delivered) {
        struct msg_bye bye;
        msg_init(MSG_BYE_TYPE, &bye);
        bye.reason = str_of(session->failure == 0 ? "drained" : "engine failed");
        if (session->state == SESSION_UP && !put(session, MSG_BYE_TYPE, &bye, now_ms) &&
            now_ms < session->drain_until_ms + FAREWELL_MS)
            return;
        end(session, session->failure, "%s", session->failure_line.text);
    } else if (now_ms >= session->drain_until_ms + FAREWELL_MS) {
        if (session->failure != 0)
            end(session, session->failure, "%s", session->failure_line.text);
        else
            end(session, KVF_EUNAVAIL, "%s: %d results and %d leases could not be handed over before the end",
                session->options.endpoint, session->outbox.n_rows, count_held(session));
    }
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* When something is due next, as far as it is known now; messages and rows come on their own. */
static int64_t next_ms(const struct session *session, int64_t now_ms)
{
    int64_t next = INT64_MAX;
    switch (session->state) {
    case SESSION_DOWN:
        next = session->retry_ms;
        if (session->refused_ms >= 0 && !session->welcomed) next = sooner(next, session->refused_ms + WELCOME_MS);
        break;
    case SESSION_GREETING:
        next = session->opened_ms + WELCOME_MS;
        if (session->hello_due) next = sooner(next, session->send_after_ms);
        break;
    case SESSION_UP:
        next = sooner(session->ready_ms + session->heartbeat_ms, outbox_next_ms(&session->outbox));
        if (credit_of(session) > session->told_credit) next = sooner(next, session->ready_ms + CREDIT_MS);
        if (next < session->send_after_ms) next = session->send_after_ms;
        break;
    case SESSION_OVER:
        return now_ms;
    }
    if (session->draining) next = sooner(next, now_ms + RETRY_MS);
    return next < now_ms ? now_ms : next;
}

int64_t session_tick(struct session *session, int64_t now_ms)
{
    if (session->refused_ms >= 0 && !session->welcomed && now_ms - session->refused_ms >= WELCOME_MS)
        end(session, KVF_EDENIED, "%s: the coordinator refuses key \"%s\"; expected one of its authorized worker keys",
            session->options.endpoint, session->options.key_name);
    if (session->state == SESSION_DOWN && now_ms >= session->retry_ms) go_greeting(session, now_ms);
    if (session->state == SESSION_GREETING) tick_greeting(session, now_ms);
    if (session->state == SESSION_UP) tick_up(session, now_ms);
    if (session->draining && session->state != SESSION_OVER) tick_drain(session, now_ms);
    return next_ms(session, now_ms);
}
