/* pg.h: libpq with deadlines: no wait is without an end, a stop ends it at once, every failure has one of five
 * meanings.
 *
 *   KVF_EUNAVAIL   the connection is lost or the server is not there: connect again (the outcome is not known)
 *   KVF_EIO        disk full (SQLSTATE 53100): nothing was written, the connection is good, try again later
 *   KVF_EAGAIN     the server cancelled the statement (57014: it took too long); nothing was written
 *   KVF_ECONFLICT  serialisation, deadlock, lock timeout, unique key: nothing was written, try again now
 *   KVF_ECORRUPT   the statement is refused: a mistake in it or in its values; nothing was written
 * One thread a connection.
 */
#ifndef KVF_PG_H
#define KVF_PG_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "coordinator/column.h"

#define PG_PARAMS_MAX 64
struct pg_params {
    const char *values[PG_PARAMS_MAX];
    int lengths[PG_PARAMS_MAX], formats[PG_PARAMS_MAX];
    Oid types[PG_PARAMS_MAX];
    int n;
    char small[PG_PARAMS_MAX][BINARY_VALUE_MAX];
    char *texts[PG_PARAMS_MAX]; /* owned copies, of texts with NUL bytes */
    bool failed;
};
void pg_params_init(struct pg_params *params);
void pg_params_free(struct pg_params *params);
void pg_int(struct pg_params *params, int64_t value);      /* bigint; MSG_NULL_INT: NULL */
void pg_numeric(struct pg_params *params, uint64_t value); /* numeric */
void pg_text(struct pg_params *params, struct str value);  /* text; must live until the statement ran; NULL: NULL */
void pg_column(struct pg_params *params, struct column *column); /* finishes it; must live until the statement ran */

struct pg {
    PGconn *conn; /* NULL: none */
    bool connecting;
    int64_t deadline_ms; /* of the connection attempt, or of the statements that run */
    int stop_fd;         /* readable: nothing is waited for any more; -1: none */
    char where[256];     /* for messages: host and database, never a password */
};

/* Starts to connect, without waiting. Settings of ours are added where `conninfo` has none. Once stop_fd is readable,
 * every wait on the connection ends as if it were lost. */
KVF_MUSTCHECK int pg_connect_start(struct pg *pg, const char *conninfo, const char *application, int stop_fd,
                                   struct kvf_err *err);
/* Goes on with it for at most wait_ms: 0 connected, KVF_EAGAIN not yet, KVF_EUNAVAIL failed (closed). */
KVF_MUSTCHECK int pg_connect_poll(struct pg *pg, int wait_ms, struct kvf_err *err);
void pg_close(struct pg *pg);

/* Runs one statement; *out (NULL: not wanted) must be cleared with PQclear. At the deadline the connection is closed.
 */
KVF_MUSTCHECK int pg_run(struct pg *pg, const char *sql, const struct pg_params *params, int timeout_ms, PGresult **out,
                         struct kvf_err *err);
/* Several statements without parameters in one message; together they are one transaction, which is committed when the
 * last one's result is there and rolled back as a whole when one of them fails. pg_next gives their results in order,
 * NULL after the last; a failure ends them all. A result of status PGRES_COPY_IN asks for the rows of a COPY:
 * pg_copy_put as often as needed, then pg_copy_end, with why the whole of it is to fail or NULL. At the deadline the
 * connection is closed. */
KVF_MUSTCHECK int pg_start(struct pg *pg, const char *sql, int timeout_ms, struct kvf_err *err);
KVF_MUSTCHECK int pg_next(struct pg *pg, PGresult **out, struct kvf_err *err);
KVF_MUSTCHECK int pg_copy_put(struct pg *pg, const char *data, size_t len, struct kvf_err *err);
KVF_MUSTCHECK int pg_copy_end(struct pg *pg, const char *why, struct kvf_err *err);

int64_t pg_get_int(const PGresult *result, int row, int column); /* MSG_NULL_INT for NULL */

#endif
