#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "alloc/policy.h"
#include "coordinator/seed.h"
#include "coordinator/server_internal.h"
#include "proto/log.h"

void client_refuse(struct server *server, const struct wire_peer *wire, uint64_t request, const char *code,
                   const char *reason)
{
    struct msg_refused msg;

    msg_init(MSG_REFUSED_TYPE, &msg);
    msg.request = request;
    msg.code = str_of(code);
    msg.reason = str_of(reason);
    if (msg.reason.len > 1023) msg.reason.len = 1023;
    server_send(server, wire, MSG_REFUSED_TYPE, &msg);
}

/* REFUSED for a failed statement; what is lost with the connection is the server's business. */
static void refuse_store(struct server *server, const struct wire_peer *wire, uint64_t request, int code,
                         const struct kvf_err *err)
{
    if (code == KVF_ENOTFOUND)
        client_refuse(server, wire, request, "not_found", err->text);
    else if (server_write_failed(server, "request_failed", code, err))
        client_refuse(server, wire, request, "unavailable", err->text);
    else
        client_refuse(server, wire, request, "conflict", err->text);
}

/* Everything but queries needs the database. */
static bool refuse_away(struct server *server, const struct wire_peer *wire, uint64_t request)
{
    intake_commit(server);
    if (server_can_write(server)) return false;
    client_refuse(server, wire, request, "unavailable",
                  !server->db_up      ? "the database is not reachable: the coordinator waits for it"
                  : server->disk_full ? "the database's disk is full: the coordinator waits for room"
                                      : "the database has a conflict to settle: ask again");
    return true;
}

static void job_answer(struct server *server, const struct wire_peer *wire, uint64_t request,
                       const struct store_job *job, const char *state, bool resumed)
{
    struct msg_job msg;

    msg_init(MSG_JOB_TYPE, &msg);
    msg.request = request;
    msg.job_id = (uint64_t)job->job_id;
    msg.state = str_of(state);
    msg.received = job->received;
    msg.resumed = resumed;
    server_send(server, wire, MSG_JOB_TYPE, &msg);
}

/* ---- SUBMIT ---- */

static bool is_hash(struct str text)
{
    for (uint32_t i = 0; i < text.len; i++)
        if (strchr("0123456789abcdef", text.text[i]) == NULL || text.text[i] == '\0') return false;
    return text.len == 64;
}

static int cell_check(const struct rec_cell *cell, bool has_profile, struct kvf_err *err)
{
    char name[POLICY_NAME_MAX + 1];
    struct policy policy;
    int code;

    snprintf(name, sizeof name, "%.*s", (int)cell->policy.len, cell->policy.text);
    code = policy_parse(name, &policy, err);
    if (code == KVF_OK) code = policy_check_budget(&policy, (int)cell->budget_tokens, (int)cell->interval_tokens, err);
    if (code != KVF_OK) return code;
    if (!(cell->temperature >= 0 && cell->temperature <= 100))
        return kvf_fail(err, KVF_EINVAL, "temperature: expected 0 to 100, got %g", cell->temperature);
    if (!(cell->top_p > 0 && cell->top_p <= 1))
        return kvf_fail(err, KVF_EINVAL, "top_p: expected more than 0 and at most 1, got %g", cell->top_p);
    if (policy_needs_profile(&policy) && !has_profile)
        return kvf_fail(err, KVF_EINVAL, "policy %s needs a wave profile: kvfleet calibrate makes one", name);
    return KVF_OK;
}

static int submit_check(const struct msg_submit *submit, struct kvf_err *err)
{
    uint64_t samples = submit->repeats * submit->n_cells;

    if (!is_hash(submit->content_hash) || !is_hash(submit->model_hash) || !is_hash(submit->dataset_hash))
        return kvf_fail(err, KVF_EINVAL, "content, model and dataset hash: expected 64 lower-case hex digits each");
    if (submit->n_cells == 0) return kvf_fail(err, KVF_EINVAL, "the job has no cell: expected at least one policy");
    if (submit->n_problems > STORE_SAMPLES_MAX / samples)
        return kvf_fail(err, KVF_EINVAL,
                        "expected at most %d samples, got %" PRIu64 " problems x %" PRIu64 " repeats x %u cells",
                        STORE_SAMPLES_MAX, submit->n_problems, submit->repeats, submit->n_cells);
    for (uint32_t i = 0; i < submit->n_cells; i++) {
        struct kvf_err why = {""};
        if (cell_check(&submit->cells[i], submit->profile.text != NULL, &why) != KVF_OK)
            return kvf_fail(err, KVF_EINVAL, "cell %u: %.900s", i + 1, why.text);
    }
    return KVF_OK;
}

void client_submit(struct server *server, const struct wire_peer *wire, const struct msg_submit *submit)
{
    struct store_job job = {0};
    struct kvf_err err = {""};
    int code = submit_check(submit, &err);

    if (code != KVF_OK) {
        client_refuse(server, wire, submit->request, "bad_request", err.text);
        return;
    }
    if (refuse_away(server, wire, submit->request)) return;
    if (submit->resume) {
        code = store_job_unfinished(&server->store, submit->content_hash, &job.job_id, &err);
        if (code == KVF_OK) code = store_job_look(&server->store, job.job_id, &job, &err);
        if (code == KVF_OK) {
            log_event(LOG_INFO_LEVEL, "job_resumed", "job=%" PRId64 " state=%s by=%s", job.job_id, job.state,
                      wire->key_name);
            job_answer(server, wire, submit->request, &job, job.state, true);
            return;
        }
        if (code != KVF_ENOTFOUND) {
            refuse_store(server, wire, submit->request, code, &err);
            return;
        }
    }
    code = store_job_create(&server->store, submit, wire->key_name, &job.job_id, &err);
    if (code != KVF_OK) {
        refuse_store(server, wire, submit->request, code, &err);
        return;
    }
    log_event(LOG_INFO_LEVEL, "job_submitted",
              "job=%" PRId64 " cells=%u problems=%" PRIu64 " repeats=%" PRIu64 " by=%s", job.job_id, submit->n_cells,
              submit->n_problems, submit->repeats, wire->key_name);
    job_answer(server, wire, submit->request, &job, "receiving", false);
}

/* ---- PROBLEMS, START ---- */

void client_problems(struct server *server, const struct wire_peer *wire, const struct msg_problems *problems)
{
    struct store_job job;
    struct kvf_err err = {""};
    int code;

    if (refuse_away(server, wire, problems->request)) return;
    code = store_job_look(&server->store, (int64_t)problems->job_id, &job, &err);
    if (code != KVF_OK) {
        refuse_store(server, wire, problems->request, code, &err);
        return;
    }
    if (strcmp(job.state, "receiving") != 0) { /* sent again after START */
        job_answer(server, wire, problems->request, &job, job.state, false);
        return;
    }
    for (uint32_t i = 0; i < problems->n_problems && code == KVF_OK; i++)
        if (!problem_hash_matches(&problems->problems[i]))
            code = kvf_fail(&err, KVF_EINVAL, "problem %" PRIu64 ": content_hash is not that of its problem and answer",
                            problems->first + i);
    if (code == KVF_OK && (problems->first > job.received || problems->first + problems->n_problems > job.n_problems))
        code = kvf_fail(&err, KVF_EINVAL,
                        "job %" PRId64 ": expected problems from %" PRIu64 " on, at most %" PRIu64
                        " in all; got %u from %" PRIu64 " on",
                        job.job_id, job.received, job.n_problems, problems->n_problems, problems->first);
    if (code != KVF_OK) {
        client_refuse(server, wire, problems->request, "bad_request", err.text);
        return;
    }
    code =
        store_problems_add(&server->store, job.job_id, problems->first, problems->problems, problems->n_problems, &err);
    if (code != KVF_OK) {
        refuse_store(server, wire, problems->request, code, &err);
        return;
    }
    if (problems->first + problems->n_problems > job.received) job.received = problems->first + problems->n_problems;
    job_answer(server, wire, problems->request, &job, job.state, false);
}

static struct starting *starting_add(struct server *server, const struct store_job *job)
{
    struct starting **place = &server->starting;
    struct starting *starting = calloc(1, sizeof *starting);

    if (starting == NULL) return NULL;
    while (*place != NULL) place = &(*place)->next;
    starting->job = *job;
    *place = starting;
    log_event(LOG_INFO_LEVEL, "job_queued", "job=%" PRId64 " samples=%" PRIu64 " made=%" PRIu64, job->job_id,
              job->n_problems * job->repeats * job->n_cells, job->made);
    return starting;
}

int starting_load(struct server *server, struct kvf_err *err)
{
    struct store_job job = {0};
    int code;

    while ((code = store_job_queued(&server->store, job.job_id, &job, err)) == KVF_OK)
        if (starting_add(server, &job) == NULL)
            return kvf_fail(err, KVF_ENOMEM, "job %" PRId64 ": out of memory", job.job_id);
    return code == KVF_ENOTFOUND ? KVF_OK : code;
}

static struct starting *starting_find(const struct server *server, int64_t job_id)
{
    struct starting *starting = server->starting;

    while (starting != NULL && starting->job.job_id != job_id) starting = starting->next;
    return starting;
}

/* Makes the job queued; NULL: START has its answer already. */
static struct starting *job_queue(struct server *server, const struct wire_peer *wire, const struct msg_start *start)
{
    struct starting *starting;
    struct store_job job;
    struct kvf_err err = {""};
    bool receiving;
    int code = store_job_look(&server->store, (int64_t)start->job_id, &job, &err);

    receiving = code == KVF_OK && strcmp(job.state, "receiving") == 0;
    if (receiving && job.received != job.n_problems) {
        kvf_fail(&err, KVF_ECONFLICT, "job %" PRId64 ": expected %" PRIu64 " problems before START, got %" PRIu64,
                 job.job_id, job.n_problems, job.received);
        client_refuse(server, wire, start->request, "conflict", err.text);
        return NULL;
    }
    if (code == KVF_OK && !receiving && strcmp(job.state, "queued") != 0) {
        job_answer(server, wire, start->request, &job, job.state, false);
        return NULL;
    }
    if (receiving) code = store_job_queue(&server->store, job.job_id, &err);
    if (code != KVF_OK) {
        refuse_store(server, wire, start->request, code, &err);
        return NULL;
    }
    starting = starting_add(server, &job);
    if (starting == NULL) client_refuse(server, wire, start->request, "unavailable", "out of memory");
    return starting;
}

void client_start(struct server *server, const struct wire_peer *wire, const struct msg_start *start)
{
    struct starting *starting;

    if (refuse_away(server, wire, start->request)) return;
    starting = starting_find(server, (int64_t)start->job_id);
    if (starting == NULL) starting = job_queue(server, wire, start);
    if (starting == NULL) return;
    starting->peer = *wire; /* asked again: the newest question is answered */
    starting->request = start->request;
}

/* Forgets it; whoever waits is told why. */
static void starting_end(struct server *server, struct starting *starting, const char *code, const char *reason)
{
    struct starting **place = &server->starting;

    while (*place != starting) place = &(*place)->next;
    *place = starting->next;
    if (starting->peer.id_len > 0) client_refuse(server, &starting->peer, starting->request, code, reason);
    free(starting);
}

void starting_drop(struct server *server, const char *reason)
{
    while (server->starting != NULL) starting_end(server, server->starting, "unavailable", reason);
}

/* Into memory first: what the database calls running is lent out. */
static int starting_run(struct server *server, int64_t job_id, struct kvf_err *err)
{
    int code = store_load_job(&server->store, &server->queue, job_id, server->now_ms, err);

    if (code != KVF_OK) return code;
    code = store_job_start(&server->store, job_id, err);
    if (code != KVF_OK) queue_job_drop(&server->queue, queue_job_find(&server->queue, job_id));
    return code;
}

/* One chunk a turn, so that results and heartbeats are not kept waiting by a large job. */
void starting_step(struct server *server)
{
    struct starting *starting = server->starting;
    struct store_job *job;
    struct kvf_err err = {""};
    int code;

    if (starting == NULL || !server_can_write(server)) return;
    job = &starting->job;
    code = store_samples_make(&server->store, job, &err);
    if (code == KVF_OK && job->made < job->n_problems * job->repeats * job->n_cells) return;
    if (code == KVF_OK) code = starting_run(server, job->job_id, &err);
    if (code == KVF_OK) {
        log_event(LOG_INFO_LEVEL, "job_started", "job=%" PRId64 " samples=%" PRIu64, job->job_id,
                  job->n_problems * job->repeats * job->n_cells);
        if (starting->peer.id_len > 0) job_answer(server, &starting->peer, starting->request, job, "running", false);
        server->starting = starting->next;
        free(starting);
        return;
    }
    if (server_write_failed(server, "start_failed", code, &err)) return; /* again, or dropped with the connection */
    starting_end(server, starting, "conflict", err.text);
}

/* ---- CANCEL ---- */

void client_cancel(struct server *server, const struct wire_peer *wire, const struct msg_cancel *cancel)
{
    struct queue_job *queued;
    struct starting *starting;
    struct store_job job;
    struct kvf_err err = {""};
    int code;

    if (refuse_away(server, wire, cancel->request)) return;
    code = store_job_cancel(&server->store, (int64_t)cancel->job_id, &job, &err);
    if (code != KVF_OK) {
        refuse_store(server, wire, cancel->request, code, &err);
        return;
    }
    starting = starting_find(server, job.job_id);
    if (starting != NULL) starting_end(server, starting, "conflict", "the job was cancelled");
    queued = queue_job_find(&server->queue, job.job_id);
    if (queued != NULL && queued->state == JOB_RUNNING && strcmp(job.state, "cancelled") == 0) {
        for (struct queue_lease *lease = server->queue.first; lease != NULL; lease = lease->next) {
            const struct peer *peer = lease->worker == NULL ? NULL : lease->worker->owner;
            if (lease->job == queued && peer != NULL)
                peer_revoke(server, &peer->wire, lease->fence, "the job was cancelled");
        }
        queue_job_cancel(&server->queue, queued, server->now_ms);
        log_event(LOG_INFO_LEVEL, "job_cancelled", "job=%" PRId64 " done=%" PRId64 " of=%" PRId64 " by=%s", job.job_id,
                  queued->done, queued->total, wire->key_name);
    }
    job_answer(server, wire, cancel->request, &job, job.state, false);
}

/* ---- QUERY ---- */

static void rows_answer(struct server *server, const struct wire_peer *wire, uint64_t request, struct str rows,
                        int64_t next)
{
    struct msg_rows msg;

    msg_init(MSG_ROWS_TYPE, &msg);
    msg.request = request;
    msg.rows = rows;
    msg.next = next;
    server_send(server, wire, MSG_ROWS_TYPE, &msg);
}

static json_t *real_or_null(bool known, double value)
{
    return known ? json_real(value) : json_null();
}

/* The view `progress` of a job in memory. */
static char *progress_text(const struct server *server, const struct queue_job *job)
{
    static const char *const states[] = {[JOB_RUNNING] = "running",
                                         [JOB_DONE] = "done",
                                         [JOB_DONE_WITH_ERRORS] = "done_with_errors",
                                         [JOB_CANCELLED] = "cancelled"};
    const struct queue_job *before = queue_job_before(&server->queue, job);
    bool running = job->state == JOB_RUNNING;
    double samples_per_s, tokens_per_s;
    int64_t end_ms = running ? server->now_ms : job->ended_ms;
    json_t *cells = json_array(), *rows;
    char *text;

    queue_job_rates(job, server->now_ms, &samples_per_s, &tokens_per_s);
    for (uint32_t i = 0; i < job->n_cells; i++) {
        const struct queue_cell *cell = &job->cells[i];
        json_array_append_new(cells, json_pack("{s:I, s:s, s:I, s:I, s:I, s:I}", "cell_id",
                                               (json_int_t)cell->spec.cell_id, "label", cell->label, "total",
                                               (json_int_t)cell->total, "done", (json_int_t)cell->done, "errors",
                                               (json_int_t)cell->errors, "correct", (json_int_t)cell->correct));
    }
    rows = json_pack("[{s:I, s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:f}]", "job_id",
                     (json_int_t)job->job_id, "state", states[job->state], "cells", cells, "total",
                     (json_int_t)job->total, "done", (json_int_t)job->done, "errors", (json_int_t)job->errors, "tokens",
                     (json_int_t)job->tokens, "samples_per_s", real_or_null(running, samples_per_s), "tokens_per_s",
                     real_or_null(running, tokens_per_s), "eta_s",
                     real_or_null(running && samples_per_s > 0, (double)(job->total - job->done) / samples_per_s),
                     "workers", (json_int_t)queue_job_workers(&server->queue, job), "after_job",
                     before == NULL ? json_null() : json_integer(before->job_id), "elapsed_s",
                     (double)(end_ms - job->started_ms) / 1000);
    text = rows == NULL ? NULL : json_dumps(rows, JSON_COMPACT);
    json_decref(rows);
    return text;
}

void client_query(struct server *server, const struct wire_peer *wire, const struct msg_query *query)
{
    const struct queue_job *job = NULL;
    struct kvf_err err = {""};
    int code;

    if (query->view.len == 8 && memcmp(query->view.text, "progress", 8) == 0 && query->job_id != MSG_NULL_INT)
        job = queue_job_find(&server->queue, query->job_id);
    if (job != NULL) {
        char *text = progress_text(server, job);
        if (text == NULL)
            client_refuse(server, wire, query->request, "unavailable", "out of memory");
        else
            rows_answer(server, wire, query->request, str_of(text), MSG_NULL_INT);
        free(text);
        return;
    }
    code = reader_ask(server->reader, wire, query, &err);
    if (code != KVF_OK)
        client_refuse(server, wire, query->request, code == KVF_EINVAL ? "bad_request" : "unavailable", err.text);
}

void client_answers(struct server *server)
{
    struct reader_answer *answer = reader_take(server->reader), *next;

    for (; answer != NULL; answer = next) {
        next = answer->next;
        if (answer->rows == NULL)
            client_refuse(server, &answer->peer, answer->request, answer->refusal, answer->reason);
        else
            rows_answer(server, &answer->peer, answer->request, (struct str){answer->rows, (uint32_t)answer->rows_len},
                        answer->page_next);
        reader_answer_free(answer);
    }
}
