#include "coordinator/store.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/store_row.h"

/* Any number does, as long as it is always the same: "kvfleet" in ASCII. */
#define LOCK_KEY "30248004785366388"

int store_init(struct store *store, const char *conninfo, int stop_fd, struct kvf_err *err)
{
    char host[32] = "";

    memset(store, 0, sizeof *store);
    store->stop_fd = stop_fd;
    store->conninfo = strdup(conninfo);
    if (store->conninfo == NULL) return kvf_fail(err, KVF_ENOMEM, "store: out of memory");
    gethostname(host, sizeof host - 1);
    snprintf(store->application, sizeof store->application, "kvfleet-coordinator %s:%ld", host, (long)getpid());
    column_init(&store->fences, COLUMN_INT);
    column_init(&store->ids, COLUMN_INT);
    column_init(&store->runs, COLUMN_INT);
    column_init(&store->texts, COLUMN_TEXT);
    copy_init(&store->copy);
    store->copy_sql = row_copy_sql();
    return store->copy_sql == NULL ? kvf_fail(err, KVF_ENOMEM, "store: out of memory") : KVF_OK;
}

void store_free(struct store *store)
{
    pg_close(&store->pg);
    copy_free(&store->copy);
    free(store->copy_sql);
    column_free(&store->fences);
    column_free(&store->ids);
    column_free(&store->runs);
    column_free(&store->texts);
    free(store->conninfo);
    memset(store, 0, sizeof *store);
}

bool store_is_open(const struct store *store)
{
    return store->locked && store->pg.conn != NULL;
}

/* Its process ran on this host and is gone: PostgreSQL will notice and drop the lock. */
static bool holder_is_stale(const struct store *store, const char *application)
{
    const char *colon = strrchr(application, ':'), *ours = strrchr(store->application, ':');
    size_t len = (size_t)(ours - store->application) + 1;
    long pid = colon == NULL ? 0 : strtol(colon + 1, NULL, 10);

    if (strncmp(application, store->application, len) != 0 || pid <= 0) return false;
    if (pid == (long)getpid()) return true; /* our own lost connection */
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static int lock_refused(struct store *store, bool *stale, struct kvf_err *err)
{
    PGresult *result;
    int code =
        pg_run(&store->pg,
               "SELECT a.application_name, a.pid, coalesce(host(a.client_addr), 'this host') FROM pg_locks l "
               "JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
               "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
               "AND (l.classid::bigint << 32 | l.objid::bigint) = " LOCK_KEY,
               NULL, STORE_TIMEOUT_MS, &result, err);

    *stale = true;
    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0) { /* let go between the two statements */
        kvf_fail(err, KVF_ECONFLICT, "database %s: the lock was held a moment ago", store->pg.where);
    } else {
        const char *application = PQgetvalue(result, 0, 0);
        *stale = holder_is_stale(store, application);
        kvf_fail(
            err, KVF_ECONFLICT,
            "another coordinator serves database %s already: %s (connection of backend %s from %s); stop it first, or "
            "use another database",
            store->pg.where, application, PQgetvalue(result, 0, 1), PQgetvalue(result, 0, 2));
    }
    PQclear(result);
    pg_close(&store->pg);
    return KVF_ECONFLICT;
}

static int lock_take(struct store *store, bool *stale, struct kvf_err *err)
{
    PGresult *result;
    int code = pg_run(&store->pg, "SELECT pg_try_advisory_lock(" LOCK_KEY ")", NULL, STORE_TIMEOUT_MS, &result, err);
    bool taken;

    if (code != KVF_OK) return code;
    taken = strcmp(PQgetvalue(result, 0, 0), "t") == 0;
    PQclear(result);
    if (!taken) return lock_refused(store, stale, err);
    code = pg_run(&store->pg, "SELECT pg_current_xact_id()", NULL, STORE_TIMEOUT_MS, &result, err);
    if (code != KVF_OK) return code;
    store->epoch = pg_get_int(result, 0, 0);
    PQclear(result);
    return KVF_OK;
}

static int schema_check(struct store *store, struct kvf_err *err)
{
    PGresult *result;
    int64_t version;
    int code = pg_run(&store->pg, "SELECT to_regproc('public.schema_version') IS NOT NULL", NULL, STORE_TIMEOUT_MS,
                      &result, err);
    bool exists;

    if (code != KVF_OK) return code;
    exists = strcmp(PQgetvalue(result, 0, 0), "t") == 0;
    PQclear(result);
    if (!exists)
        return kvf_fail(err, KVF_EUNSUPPORTED,
                        "database %s has no kvfleet schema (expected version %d): run deploy/migrate", store->pg.where,
                        SCHEMA_VERSION);
    code = pg_run(&store->pg, "SELECT schema_version()", NULL, STORE_TIMEOUT_MS, &result, err);
    if (code != KVF_OK) return code;
    version = pg_get_int(result, 0, 0);
    PQclear(result);
    if (version == SCHEMA_VERSION) return KVF_OK;
    return kvf_fail(err, KVF_EUNSUPPORTED, "database schema %" PRId64 " is %s than this program (%d): %s", version,
                    version > SCHEMA_VERSION ? "newer" : "older", SCHEMA_VERSION,
                    version > SCHEMA_VERSION ? "use a newer kvfleet-coordinator" : "run deploy/migrate");
}

int store_open(struct store *store, int wait_ms, bool *stale, struct kvf_err *err)
{
    int code;

    *stale = false;
    if (store_is_open(store)) return KVF_OK;
    store->locked = false;
    if (store->pg.conn == NULL) {
        code = pg_connect_start(&store->pg, store->conninfo, store->application, store->stop_fd, err);
        if (code != KVF_OK) return code;
    }
    code = pg_connect_poll(&store->pg, wait_ms, err);
    if (code != KVF_OK) return code;
    code = schema_check(store, err);
    if (code == KVF_OK) code = lock_take(store, stale, err);
    if (code == KVF_OK) code = store_turn_prepare(store, err);
    store->locked = code == KVF_OK;
    if (code != KVF_OK) pg_close(&store->pg);
    return code;
}
