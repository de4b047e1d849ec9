#include "coordinator/reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "coordinator/pg.h"
#include "proto/clock.h"
#include "proto/log.h"

#define CONNECT_MS 3000
#define ANSWER_MS  20000 /* beyond the server's own limit on a statement */

/* Every view: $1 job, $2 sample, $3 cell, $4 failures only, $5 the key to go on after, $6 rows at most. A row is its
 * JSON and the key of its place. A seed does not fit the numbers of JSON readers: text. */
static const struct view {
    const char *name, *needs, *sql;
} views[] = {
    {"jobs", "",
     "SELECT row_to_json(v)::text, v.job_id FROM (SELECT * FROM v_job WHERE ($5::bigint IS NULL OR job_id < $5) "
     "ORDER BY job_id DESC LIMIT $6) v"},
    {"job", "j", "SELECT row_to_json(v)::text, v.job_id FROM v_job v WHERE v.job_id = $1 AND $5::bigint IS NULL"},
    {"cells", "j",
     "SELECT row_to_json(v)::text, v.ordinal FROM v_cell v WHERE v.job_id = $1 AND ($3::bigint IS NULL OR v.cell_id = "
     "$3) "
     "AND ($5::bigint IS NULL OR v.ordinal > $5) ORDER BY v.ordinal LIMIT $6"},
    {"samples", "j",
     "SELECT (to_jsonb(v) - 'problem' - 'text' || jsonb_build_object('seed', v.seed::text))::text, v.sample_id FROM "
     "v_sample v "
     "WHERE v.job_id = $1 AND ($3::bigint IS NULL OR v.cell_id = $3) AND ($4::bigint = 0 OR v.verdict IS DISTINCT FROM "
     "'correct') "
     "AND ($5::bigint IS NULL OR v.sample_id > $5) ORDER BY v.sample_id LIMIT $6"},
    {"sample", "js",
     "SELECT (to_jsonb(v) || jsonb_build_object('seed', v.seed::text))::text, v.sample_id FROM v_sample v "
     "WHERE v.job_id = $1 AND v.sample_id = $2 AND $5::bigint IS NULL"},
    {"workers", "",
     "SELECT row_to_json(v)::text, v.run_id FROM (SELECT * FROM v_worker WHERE ($5::bigint IS NULL OR run_id < $5) "
     "ORDER BY run_id DESC LIMIT $6) v"},
    /* of a job that is not in the coordinator's memory */
    {"progress", "j",
     "SELECT json_build_object('job_id', j.job_id, 'state', j.state, 'total', j.n_samples, 'done', j.done, 'errors', "
     "j.errors, "
     "'tokens', j.tokens, 'samples_per_s', NULL, 'tokens_per_s', j.tokens_per_s, 'eta_s', NULL, 'workers', 0, "
     "'elapsed_s', j.wall_s, 'cells', (SELECT coalesce(json_agg(json_build_object('cell_id', c.cell_id, 'label', "
     "c.policy || "
     "coalesce(' b=' || c.budget_tokens, ''), 'total', c.samples_total, 'done', c.samples, 'errors', c.errors, "
     "'correct', "
     "c.correct) ORDER BY c.ordinal), '[]') FROM v_cell c WHERE c.job_id = j.job_id))::text, j.job_id "
     "FROM v_job j WHERE j.job_id = $1 AND $5::bigint IS NULL"},
};

struct question {
    struct question *next;
    struct wire_peer peer;
    const struct view *view;
    uint64_t request;
    int64_t job_id, sample_id, cell_id, after;
    uint64_t failures, limit;
};

struct reader {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards everything down to stopping */
    pthread_cond_t wake;
    struct question *first, **last;
    struct reader_answer *answers, **answers_last;
    int n_waiting;
    bool stopping;
    int fd, stop_fd;
    char *conninfo;
    struct pg pg; /* the thread's */
};

void reader_answer_free(struct reader_answer *answer)
{
    if (answer == NULL) return;
    free(answer->rows);
    free(answer);
}

/* ---- the thread ---- */

static int connection_open(struct reader *reader, struct kvf_err *err)
{
    int64_t until = clock_ms() + CONNECT_MS;
    int code;

    if (reader->pg.conn != NULL && !reader->pg.connecting) return KVF_OK;
    code = pg_connect_start(&reader->pg, reader->conninfo, "kvfleet-coordinator reader", reader->stop_fd, err);
    while (code == KVF_OK && (code = pg_connect_poll(&reader->pg, 100, err)) == KVF_EAGAIN && clock_ms() < until)
        code = KVF_OK;
    if (code != KVF_OK && code != KVF_EAGAIN) return code;
    if (reader->pg.connecting) {
        pg_close(&reader->pg);
        return kvf_fail(err, KVF_EUNAVAIL, "database %s: no connection within %d s", reader->pg.where,
                        CONNECT_MS / 1000);
    }
    return pg_run(&reader->pg, "SET statement_timeout = '15s'", NULL, ANSWER_MS, NULL, err);
}

static int question_run(struct reader *reader, const struct question *question, PGresult **out, struct kvf_err *err)
{
    struct pg_params params;
    int code = connection_open(reader, err);

    if (code != KVF_OK) return code;
    pg_params_init(&params);
    pg_int(&params, question->job_id);
    pg_int(&params, question->sample_id);
    pg_int(&params, question->cell_id);
    pg_int(&params, (int64_t)question->failures);
    pg_int(&params, question->after);
    pg_int(&params, (int64_t)question->limit + 1); /* one more tells whether there is a next page */
    code = pg_run(&reader->pg, question->view->sql, &params, ANSWER_MS, out, err);
    pg_params_free(&params);
    return code;
}

/* As many rows as fit one message. */
static int rows_join(const struct question *question, const PGresult *result, struct reader_answer *answer,
                     struct kvf_err *err)
{
    int n = PQntuples(result), taken = 0;
    size_t bytes = 2;

    while (taken < n && taken < (int)question->limit &&
           bytes + (size_t)PQgetlength(result, taken, 0) + 1 <= READER_REPLY_BYTES)
        bytes += (size_t)PQgetlength(result, taken++, 0) + 1;
    if (n > 0 && taken == 0)
        return kvf_fail(err, KVF_EUNSUPPORTED, "view %s: a row has %d bytes, at most %d can be sent",
                        question->view->name, PQgetlength(result, 0, 0), READER_REPLY_BYTES);
    answer->rows = malloc(bytes + 1);
    if (answer->rows == NULL) return kvf_fail(err, KVF_ENOMEM, "view %s: out of memory", question->view->name);
    answer->rows[answer->rows_len++] = '[';
    for (int i = 0; i < taken; i++) {
        if (i > 0) answer->rows[answer->rows_len++] = ',';
        memcpy(answer->rows + answer->rows_len, PQgetvalue(result, i, 0), (size_t)PQgetlength(result, i, 0));
        answer->rows_len += (size_t)PQgetlength(result, i, 0);
    }
    answer->rows[answer->rows_len++] = ']';
    if (taken < n) answer->page_next = pg_get_int(result, taken - 1, 1);
    return KVF_OK;
}

static void question_answer(struct reader *reader, const struct question *question, struct reader_answer *answer)
{
    struct kvf_err err = {""};
    PGresult *result = NULL;
    int code;

    answer->peer = question->peer;
    answer->request = question->request;
    answer->page_next = MSG_NULL_INT;
    code = question_run(reader, question, &result, &err);
    if (code == KVF_EUNAVAIL && reader->pg.conn == NULL)
        code = question_run(reader, question, &result, &err); /* it was restarted */
    if (code == KVF_OK) code = rows_join(question, result, answer, &err);
    PQclear(result);
    if (code == KVF_OK && question->view->needs[0] != '\0' && answer->rows_len == 2 &&
        question->after == MSG_NULL_INT && strcmp(question->view->name, "samples") != 0) {
        free(answer->rows);
        answer->rows = NULL;
        answer->refusal = "not_found";
        if (question->sample_id != MSG_NULL_INT)
            snprintf(answer->reason, sizeof answer->reason,
                     "job %" PRId64 ": it has no sample %" PRId64 " with a result", question->job_id,
                     question->sample_id);
        else
            snprintf(answer->reason, sizeof answer->reason, "job %" PRId64 ": there is no such job", question->job_id);
    } else if (code != KVF_OK) {
        answer->refusal = code == KVF_EUNAVAIL || code == KVF_ENOMEM ? "unavailable" : "bad_request";
        snprintf(answer->reason, sizeof answer->reason, "%.500s", err.text);
        log_event(LOG_WARN_LEVEL, "query_failed", "view=%s why=%s", question->view->name, err.text);
    }
}

static void *reader_main(void *arg)
{
    struct reader *reader = arg;

    pthread_mutex_lock(&reader->mutex);
    while (!reader->stopping) {
        struct question *question = reader->first;
        struct reader_answer *answer;
        uint64_t one = 1;
        if (question == NULL) {
            pthread_cond_wait(&reader->wake, &reader->mutex);
            continue;
        }
        reader->first = question->next;
        if (reader->first == NULL) reader->last = &reader->first;
        pthread_mutex_unlock(&reader->mutex);
        answer = calloc(1, sizeof *answer);
        if (answer != NULL) question_answer(reader, question, answer);
        free(question);
        pthread_mutex_lock(&reader->mutex);
        reader->n_waiting--;
        if (answer == NULL) continue; /* no memory for an answer: the client asks again */
        *reader->answers_last = answer;
        reader->answers_last = &answer->next;
        if (write(reader->fd, &one, sizeof one) != sizeof one) log_event(LOG_WARN_LEVEL, "eventfd", "write failed");
    }
    pthread_mutex_unlock(&reader->mutex);
    pg_close(&reader->pg);
    return NULL;
}

/* ---- the main loop's side ---- */

int reader_start(const char *conninfo, struct reader **out, struct kvf_err *err)
{
    struct reader *reader = calloc(1, sizeof *reader);

    *out = NULL;
    if (reader == NULL || (reader->conninfo = strdup(conninfo)) == NULL) {
        free(reader);
        return kvf_fail(err, KVF_ENOMEM, "reader: out of memory");
    }
    reader->last = &reader->first;
    reader->answers_last = &reader->answers;
    reader->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    reader->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&reader->mutex, NULL);
    pthread_cond_init(&reader->wake, NULL);
    if (reader->fd < 0 || reader->stop_fd < 0 || pthread_create(&reader->thread, NULL, reader_main, reader) != 0) {
        if (reader->fd >= 0) close(reader->fd);
        if (reader->stop_fd >= 0) close(reader->stop_fd);
        free(reader->conninfo);
        free(reader);
        return kvf_fail(err, KVF_EIO, "reader: cannot start a thread");
    }
    *out = reader;
    return KVF_OK;
}

void reader_stop(struct reader **reader)
{
    struct reader *self = *reader;

    if (self == NULL) return;
    pthread_mutex_lock(&self->mutex);
    self->stopping = true;
    pthread_cond_signal(&self->wake);
    pthread_mutex_unlock(&self->mutex);
    eventfd_write(self->stop_fd, 1);
    pthread_join(self->thread, NULL);
    while (self->first != NULL) {
        struct question *next = self->first->next;
        free(self->first);
        self->first = next;
    }
    while (self->answers != NULL) {
        struct reader_answer *next = self->answers->next;
        reader_answer_free(self->answers);
        self->answers = next;
    }
    pthread_cond_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    close(self->fd);
    close(self->stop_fd);
    free(self->conninfo);
    free(self);
    *reader = NULL;
}

int reader_fd(const struct reader *reader)
{
    return reader->fd;
}

int reader_ask(struct reader *reader, const struct wire_peer *peer, const struct msg_query *query, struct kvf_err *err)
{
    const struct view *view = NULL;
    struct question *question;
    int code = KVF_OK;

    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (query->view.len == strlen(views[i].name) && memcmp(query->view.text, views[i].name, query->view.len) == 0)
            view = &views[i];
    if (view == NULL)
        return kvf_fail(err, KVF_EINVAL, "view '%.*s': expected jobs, job, cells, samples, sample, workers or progress",
                        (int)query->view.len, query->view.text);
    if ((strchr(view->needs, 'j') != NULL && query->job_id == MSG_NULL_INT) ||
        (strchr(view->needs, 's') != NULL && query->sample_id == MSG_NULL_INT))
        return kvf_fail(err, KVF_EINVAL, "view %s: expected %s", view->name,
                        strchr(view->needs, 's') != NULL ? "job_id and sample_id" : "job_id");
    question = calloc(1, sizeof *question);
    if (question == NULL) return kvf_fail(err, KVF_EAGAIN, "view %s: out of memory", view->name);
    *question = (struct question){.peer = *peer,
                                  .view = view,
                                  .request = query->request,
                                  .job_id = query->job_id,
                                  .sample_id = query->sample_id,
                                  .cell_id = query->cell_id,
                                  .after = query->after,
                                  .failures = query->failures,
                                  .limit = query->limit};
    pthread_mutex_lock(&reader->mutex);
    if (reader->n_waiting >= READER_WAITING_MAX) {
        code = kvf_fail(err, KVF_EAGAIN, "%d queries are waiting already", READER_WAITING_MAX);
        free(question);
    } else {
        *reader->last = question;
        reader->last = &question->next;
        reader->n_waiting++;
        pthread_cond_signal(&reader->wake);
    }
    pthread_mutex_unlock(&reader->mutex);
    return code;
}

struct reader_answer *reader_take(struct reader *reader)
{
    struct reader_answer *answers;
    uint64_t count;

    if (read(reader->fd, &count, sizeof count) < 0)
        count = 0; /* nothing was written: there may be answers all the same */
    pthread_mutex_lock(&reader->mutex);
    answers = reader->answers;
    reader->answers = NULL;
    reader->answers_last = &reader->answers;
    pthread_mutex_unlock(&reader->mutex);
    return answers;
}
