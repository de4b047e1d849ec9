#include "coordinator/pg.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"

#define CONNECT_MS 5000

/* ---- parameters ---- */

void pg_params_init(struct pg_params *params)
{
    params->n = 0;
    params->failed = false;
}

void pg_params_free(struct pg_params *params)
{
    for (int i = 0; i < params->n; i++) free(params->texts[i]);
    pg_params_init(params);
}

static int param_add(struct pg_params *params, Oid type, const char *value, size_t len)
{
    int at = params->n;

    if (at == PG_PARAMS_MAX) {
        params->failed = true;
        return PG_PARAMS_MAX - 1;
    }
    params->n++;
    params->types[at] = type;
    params->formats[at] = 1;
    params->values[at] = value;
    params->lengths[at] = (int)len;
    params->texts[at] = NULL;
    return at;
}

enum { OID_INT8 = 20, OID_TEXT = 25, OID_FLOAT8 = 701, OID_NUMERIC = 1700 };

void pg_int(struct pg_params *params, int64_t value)
{
    int at = param_add(params, OID_INT8, NULL, 0);

    if (value == MSG_NULL_INT) return;
    params->lengths[at] = (int)binary_int(params->small[at], value);
    params->values[at] = params->small[at];
}

void pg_numeric(struct pg_params *params, uint64_t value)
{
    int at = param_add(params, OID_NUMERIC, NULL, 0);

    params->lengths[at] = (int)binary_numeric(params->small[at], value);
    params->values[at] = params->small[at];
}

void pg_text(struct pg_params *params, struct str value)
{
    int at = param_add(params, OID_TEXT, value.text, value.len);

    if (value.text == NULL || memchr(value.text, '\0', value.len) == NULL) return;
    params->texts[at] = malloc(3 * (size_t)value.len);
    if (params->texts[at] == NULL) {
        params->failed = true;
        return;
    }
    params->lengths[at] = (int)text_without_nul(params->texts[at], value);
    params->values[at] = params->texts[at];
}

void pg_column(struct pg_params *params, struct column *column)
{
    if (column_finish(column, NULL) != KVF_OK) params->failed = true;
    param_add(params, column_oid(column->kind), column->data, column->len);
}

/* ---- connection ---- */

/* libpq's messages end with a newline and may have several lines: one line it is. */
static void line_of(const char *message, char *out, size_t cap)
{
    size_t len = 0;

    for (; *message != '\0' && len + 1 < cap; message++)
        out[len++] = *message == '\n' || *message == '\t' ? ' ' : *message;
    while (len > 0 && out[len - 1] == ' ') len--;
    out[len] = '\0';
}

static int unavailable(struct pg *pg, const char *what, struct kvf_err *err)
{
    char line[512];

    line_of(pg->conn == NULL ? "" : PQerrorMessage(pg->conn), line, sizeof line);
    kvf_fail(err, KVF_EUNAVAIL, "database %s: %s%s%s", pg->where, what, line[0] == '\0' ? "" : ": ", line);
    pg_close(pg);
    return KVF_EUNAVAIL;
}

static const char *option_value(const PQconninfoOption *options, const char *key)
{
    for (; options->keyword != NULL; options++)
        if (strcmp(options->keyword, key) == 0) return options->val;
    return NULL;
}

int pg_connect_start(struct pg *pg, const char *conninfo, const char *application, int stop_fd, struct kvf_err *err)
{
    static const struct {
        const char *key, *value;
    } ours[] = {{"connect_timeout", "5"},
                {"keepalives_idle", "10"},
                {"keepalives_interval", "5"},
                {"keepalives_count", "3"},
                {"tcp_user_timeout", "15000"},
                {"client_encoding", "UTF8"},
                {"fallback_application_name", "kvfleet-coordinator"}};
    const char *keys[64], *values[64];
    int n = 0;
    char *why = NULL;
    PQconninfoOption *given = PQconninfoParse(conninfo, &why);

    pg_close(pg);
    pg->stop_fd = stop_fd;
    if (given == NULL) {
        char line[512];
        line_of(why == NULL ? "out of memory" : why, line, sizeof line);
        PQfreemem(why);
        return kvf_fail(err, KVF_EINVAL, "--db: not a connection string: %s", line);
    }
    for (const PQconninfoOption *option = given; option->keyword != NULL && n < 48; option++) {
        if (option->val == NULL || strcmp(option->keyword, "application_name") == 0) continue;
        keys[n] = option->keyword;
        values[n++] = option->val;
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (option_value(given, ours[i].key) != NULL) continue;
        keys[n] = ours[i].key;
        values[n++] = ours[i].value;
    }
    keys[n] = "application_name";
    values[n++] = application;
    keys[n] = values[n] = NULL;
    pg->conn = PQconnectStartParams(keys, values, 0);
    {
        const char *host = option_value(given, "host"), *name = option_value(given, "dbname");
        snprintf(pg->where, sizeof pg->where, "%s on %s", name == NULL ? "(default)" : name,
                 host == NULL ? "local socket" : host);
    }
    PQconninfoFree(given);
    if (pg->conn == NULL) return kvf_fail(err, KVF_ENOMEM, "database %s: out of memory", pg->where);
    if (PQstatus(pg->conn) == CONNECTION_BAD) return unavailable(pg, "cannot connect", err);
    pg->connecting = true;
    pg->deadline_ms = clock_ms() + CONNECT_MS;
    return KVF_OK;
}

/* KVF_OK: the socket is ready; KVF_EAGAIN: it is not; KVF_EUNAVAIL: a stop. */
static int socket_wait(struct pg *pg, short events, int64_t until_ms, struct kvf_err *err)
{
    struct pollfd fds[] = {{.fd = PQsocket(pg->conn), .events = events}, {.fd = pg->stop_fd, .events = POLLIN}};
    int64_t wait_ms = until_ms - clock_ms();

    if (poll(fds, 2, wait_ms < 0 ? 0 : (int)wait_ms) <= 0) return KVF_EAGAIN;
    return fds[0].revents != 0 ? KVF_OK : unavailable(pg, "not waited for any longer: the program stops", err);
}

int pg_connect_poll(struct pg *pg, int wait_ms, struct kvf_err *err)
{
    int64_t until = clock_ms() + wait_ms;
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;

    if (pg->conn == NULL) return kvf_fail(err, KVF_EUNAVAIL, "database %s: not connected", pg->where);
    if (!pg->connecting) return KVF_OK;
    for (;;) {
        int ready;
        if (clock_ms() >= pg->deadline_ms) return unavailable(pg, "no connection within 5 s", err);
        /* polling early is harmless: libpq looks at the socket itself without waiting */
        ready = socket_wait(pg, want == PGRES_POLLING_READING ? POLLIN : POLLIN | POLLOUT, until, err);
        if (ready == KVF_EUNAVAIL) return ready;
        if (ready == KVF_OK) {
            want = PQconnectPoll(pg->conn);
            if (want == PGRES_POLLING_FAILED) return unavailable(pg, "cannot connect", err);
            if (want == PGRES_POLLING_OK) break;
        }
        if (clock_ms() >= until) return kvf_fail(err, KVF_EAGAIN, "database %s: still connecting", pg->where);
    }
    pg->connecting = false;
    PQsetnonblocking(pg->conn, 1);
    return KVF_OK;
}

void pg_close(struct pg *pg)
{
    if (pg->conn != NULL) PQfinish(pg->conn);
    pg->conn = NULL;
    pg->connecting = false;
}

/* ---- statements ---- */

static int result_judge(struct pg *pg, const PGresult *result, struct kvf_err *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    char line[600];

    /* a lost connection has no SQLSTATE */
    if (state == NULL || PQstatus(pg->conn) == CONNECTION_BAD || strncmp(state, "08", 2) == 0 ||
        strncmp(state, "57P", 3) == 0 || strcmp(state, "25006") == 0 || strcmp(state, "53300") == 0) {
        line_of(PQresultErrorMessage(result), line, sizeof line);
        kvf_fail(err, KVF_EUNAVAIL, "database %s: %s", pg->where, line[0] == '\0' ? "connection lost" : line);
        pg_close(pg);
        return KVF_EUNAVAIL;
    }
    line_of(PQresultErrorMessage(result), line, sizeof line);
    kvf_fail(err, KVF_ECORRUPT, "database %s: SQLSTATE %s: %s", pg->where, state, line);
    if (strcmp(state, "53100") == 0) return KVF_EIO;
    /* out of memory or another limit, an error below the database, cancelled: the same statement may succeed later */
    if (strncmp(state, "53", 2) == 0 || strncmp(state, "58", 2) == 0 || strcmp(state, "57014") == 0) return KVF_EAGAIN;
    if (strcmp(state, "40001") == 0 || strcmp(state, "40P01") == 0 || strcmp(state, "55P03") == 0 ||
        strcmp(state, "23505") == 0)
        return KVF_ECONFLICT;
    return KVF_ECORRUPT;
}

/* Sends what is queued and waits until PQgetResult has something without waiting: never later than the deadline. */
static int result_wait(struct pg *pg, struct kvf_err *err)
{
    int flushing = 1;

    for (;;) {
        if (flushing != 0) flushing = PQflush(pg->conn);
        /* what the server said last before it went comes as a result */
        if (flushing < 0 || !PQconsumeInput(pg->conn))
            return PQisBusy(pg->conn) ? unavailable(pg, "connection lost", err) : KVF_OK;
        if (flushing == 0 && !PQisBusy(pg->conn)) return KVF_OK;
        if (clock_ms() >= pg->deadline_ms) return unavailable(pg, "no answer in time", err);
        if (socket_wait(pg, flushing ? POLLIN | POLLOUT : POLLIN, pg->deadline_ms, err) == KVF_EUNAVAIL)
            return KVF_EUNAVAIL;
    }
}

static bool result_is_good(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_COPY_IN;
}

/* Whatever still comes of the statements that run, up to the end: the first failure among it, as when a statement that
 * gave rows could not be committed. */
static int results_drop(struct pg *pg, struct kvf_err *err)
{
    int code = KVF_OK;

    while (pg->conn != NULL) {
        PGresult *result;
        int waited = result_wait(pg, err);
        if (waited != KVF_OK) return waited;
        result = PQgetResult(pg->conn);
        if (result == NULL) break;
        if (code == KVF_OK && !result_is_good(result)) code = result_judge(pg, result, err);
        PQclear(result);
    }
    return code;
}

int pg_next(struct pg *pg, PGresult **out, struct kvf_err *err)
{
    struct kvf_err late = {""};
    PGresult *result;
    int code;

    *out = NULL;
    if (pg->conn == NULL) return kvf_fail(err, KVF_EUNAVAIL, "database %s: not connected", pg->where);
    code = result_wait(pg, err);
    if (code != KVF_OK) return code;
    result = PQgetResult(pg->conn);
    if (result == NULL && PQstatus(pg->conn) == CONNECTION_BAD) return unavailable(pg, "connection lost", err);
    if (result == NULL || result_is_good(result)) {
        *out = result;
        return KVF_OK;
    }
    code = result_judge(pg, result, err);
    PQclear(result);
    if (results_drop(pg, &late) != KVF_EUNAVAIL) return code;
    *err = late;
    return KVF_EUNAVAIL;
}

/* The end of one statement. */
static int statement_finish(struct pg *pg, PGresult **out, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = pg_next(pg, &result, err);

    if (code == KVF_OK && result == NULL) code = unavailable(pg, "connection lost", err);
    if (code == KVF_OK) code = results_drop(pg, err);
    if (code == KVF_OK && out != NULL)
        *out = result;
    else
        PQclear(result);
    return code;
}

static int statement_start(struct pg *pg, const struct pg_params *params, int timeout_ms, PGresult **out,
                           struct kvf_err *err)
{
    if (out != NULL) *out = NULL;
    if (params != NULL && params->failed)
        return kvf_fail(err, KVF_ENOMEM, "database %s: out of memory for a statement", pg->where);
    if (pg->conn == NULL || pg->connecting) return kvf_fail(err, KVF_EUNAVAIL, "database %s: not connected", pg->where);
    pg->deadline_ms = clock_ms() + timeout_ms;
    return KVF_OK;
}

int pg_run(struct pg *pg, const char *sql, const struct pg_params *params, int timeout_ms, PGresult **out,
           struct kvf_err *err)
{
    int code = statement_start(pg, params, timeout_ms, out, err), n = params == NULL ? 0 : params->n;

    if (code != KVF_OK) return code;
    if (!PQsendQueryParams(pg->conn, sql, n, n == 0 ? NULL : params->types, n == 0 ? NULL : params->values,
                           n == 0 ? NULL : params->lengths, n == 0 ? NULL : params->formats, 0))
        return unavailable(pg, "cannot send", err);
    return statement_finish(pg, out, err);
}

int pg_start(struct pg *pg, const char *sql, int timeout_ms, struct kvf_err *err)
{
    int code = statement_start(pg, NULL, timeout_ms, NULL, err);

    if (code != KVF_OK) return code;
    return PQsendQuery(pg->conn, sql) ? KVF_OK : unavailable(pg, "cannot send", err);
}

int pg_copy_put(struct pg *pg, const char *data, size_t len, struct kvf_err *err)
{
    int put;

    if (pg->conn == NULL) return kvf_fail(err, KVF_EUNAVAIL, "database %s: not connected", pg->where);
    while ((put = PQputCopyData(pg->conn, data, (int)len)) == 0) { /* libpq has no room: the server takes some first */
        if (clock_ms() >= pg->deadline_ms) return unavailable(pg, "no answer in time", err);
        if (socket_wait(pg, POLLIN | POLLOUT, pg->deadline_ms, err) == KVF_EUNAVAIL) return KVF_EUNAVAIL;
    }
    return put > 0 ? KVF_OK : unavailable(pg, "cannot send rows", err);
}

int pg_copy_end(struct pg *pg, const char *why, struct kvf_err *err)
{
    int put;

    if (pg->conn == NULL) return kvf_fail(err, KVF_EUNAVAIL, "database %s: not connected", pg->where);
    while ((put = PQputCopyEnd(pg->conn, why)) == 0) {
        if (clock_ms() >= pg->deadline_ms) return unavailable(pg, "no answer in time", err);
        if (socket_wait(pg, POLLIN | POLLOUT, pg->deadline_ms, err) == KVF_EUNAVAIL) return KVF_EUNAVAIL;
    }
    return put > 0 ? KVF_OK : unavailable(pg, "cannot send rows", err);
}

int64_t pg_get_int(const PGresult *result, int row, int column)
{
    return PQgetisnull(result, row, column) ? MSG_NULL_INT : strtoll(PQgetvalue(result, row, column), NULL, 10);
}
