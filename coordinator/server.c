#include "coordinator/server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "coordinator/server_internal.h"
#include "proto/clock.h"
#include "proto/log.h"

#define BACKOFF_MIN_MS    100
#define BACKOFF_MAX_MS    2000
#define DISK_RETRY_MS     1000
#define CONFLICT_RETRY_MS 50
#define LOCK_WAIT_MS      3000 /* for the connection of a coordinator that was killed a moment ago */

/* ---- the database ---- */

bool server_can_write(const struct server *server)
{
    return server->db_up && store_is_open(&server->store) && server->now_ms >= server->paused_until_ms;
}

static void database_lost(struct server *server, const char *why)
{
    if (!server->db_up) return;
    server->db_up = false;
    pg_close(&server->store.pg);
    log_event(LOG_ERROR_LEVEL, "database_down", "why=%s", why);
    server->backoff_ms = BACKOFF_MIN_MS;
    server->reconnect_ms = server->now_ms;
}

bool server_write_failed(struct server *server, const char *event, int code, const struct kvf_err *err)
{
    switch (code) {
    case KVF_EUNAVAIL:
        database_lost(server, err->text);
        return true;
    case KVF_EIO:
        if (!server->disk_full) log_event(LOG_ERROR_LEVEL, "disk_full", "during=%s why=%s", event, err->text);
        server->disk_full = true;
        server->paused_until_ms = server->now_ms + DISK_RETRY_MS;
        return true;
    case KVF_ECONFLICT:
    case KVF_EAGAIN:
    case KVF_ENOMEM:
        log_event(LOG_WARN_LEVEL, event, "again_in_ms=%d why=%s", CONFLICT_RETRY_MS, err->text);
        server->paused_until_ms = server->now_ms + CONFLICT_RETRY_MS;
        return true;
    default:
        log_event(LOG_ERROR_LEVEL, event, "why=%s", err->text);
        return false;
    }
}

/* Memory is what the tables say, whatever was on the way when the connection was lost. */
static int queue_reload(struct server *server, struct kvf_err *err)
{
    int64_t now_ms = clock_ms();
    int code;

    queue_reset(&server->queue, now_ms);
    code = store_load(&server->store, &server->queue, now_ms, err);
    if (code != KVF_OK) return code;
    for (const struct queue_job *job = server->queue.jobs; job != NULL; job = job->next)
        log_event(LOG_INFO_LEVEL, "job_loaded", "job=%" PRId64 " done=%" PRId64 " of=%" PRId64 " leases=%" PRId64,
                  job->job_id, job->done, job->total, job->n_leases);
    return KVF_OK;
}

/* Connecting, a step at a time. What cannot get better by waiting ends the server. */
static void database_step(struct server *server)
{
    struct kvf_err err = {""};
    bool stale = false;
    int code;

    if (server->db_up || server->now_ms < server->reconnect_ms) return;
    intake_hold(server);
    starting_drop(server, "the database connection was lost: ask again");
    code = store_open(&server->store, 20, &stale, &err);
    if (code == KVF_EAGAIN) return;
    if (code == KVF_OK) code = queue_reload(server, &err);
    if (code == KVF_OK) {
        server->db_up = true;
        server->paused_until_ms = 0;
        server->disk_full = false;
        log_event(LOG_INFO_LEVEL, "database_up", "epoch=%" PRId64, server->store.epoch);
        return;
    }
    pg_close(&server->store.pg);
    log_event(LOG_WARN_LEVEL, "database_away", "again_in_ms=%" PRId64 " why=%s", server->backoff_ms, err.text);
    if ((code == KVF_ECONFLICT && !stale) || code == KVF_EUNSUPPORTED || code == KVF_ENOMEM || code == KVF_ECORRUPT) {
        server->fatal = code;
        server->fatal_err = err;
    }
    server->reconnect_ms = clock_ms() + server->backoff_ms;
    server->backoff_ms = server->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : server->backoff_ms * 2;
}

/* At the start: waits, because there is nothing else to do. */
static int database_wait(struct server *server, struct kvf_err *err)
{
    int64_t start = clock_ms(), deadline = start + server->options->db_wait_ms;
    int64_t backoff_ms = BACKOFF_MIN_MS;
    struct kvf_err said = {""};

    for (;;) {
        bool stale = false;
        int code = store_open(&server->store, 200, &stale, err);
        int64_t now = clock_ms();
        if (code == KVF_OK) return KVF_OK;
        if (code == KVF_EAGAIN) continue;
        if (code != KVF_EUNAVAIL && code != KVF_ECONFLICT) return code;
        if (code == KVF_ECONFLICT && now >= start + (stale ? server->options->db_wait_ms : LOCK_WAIT_MS)) return code;
        if (now >= deadline) {
            struct kvf_err last = *err;
            return code == KVF_ECONFLICT ? code
                                         : kvf_fail(err, code, "no database within %.1f s (--db-wait): %.900s",
                                                    (double)server->options->db_wait_ms / 1000, last.text);
        }
        if (strcmp(said.text, err->text) != 0) log_event(LOG_INFO_LEVEL, "database_wait", "why=%s", err->text);
        said = *err;
        struct pollfd stop = {.fd = server->signal_fd, .events = POLLIN};
        if (poll(&stop, 1, (int)backoff_ms) > 0)
            return kvf_fail(err, KVF_EUNAVAIL, "stopped while waiting for the database");
        backoff_ms = backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : backoff_ms * 2;
    }
}

/* ---- messages ---- */

bool server_send(struct server *server, const struct wire_peer *peer, int type, const void *msg)
{
    struct kvf_err err = {""};
    int code = wire_router_send(server->router, peer, type, msg, &err);

    if (code != KVF_OK)
        log_event(code == KVF_EAGAIN || code == KVF_ENOTFOUND ? LOG_DEBUG_LEVEL : LOG_ERROR_LEVEL, "send_failed",
                  "type=%s key=%s why=%s", msg_name(type), peer->key_name, err.text);
    return code == KVF_OK;
}

void server_hold(struct server *server, struct wire_message *message)
{
    bool was_full = server->backlog_full;

    server->backlog_full = !backlog_put(&server->backlog, message);
    if (server->backlog_full && !was_full)
        log_event(LOG_WARN_LEVEL, "backlog_full", "messages=%u bytes=%zu", server->backlog.n, server->backlog.bytes);
}

void server_handle(struct server *server, struct wire_message *message)
{
    const struct wire_peer *wire = &message->peer;
    void *body = message->in.body;
    bool settled = true;

    switch (message->in.type) {
    case MSG_HELLO_TYPE:
        settled = worker_hello(server, wire, body);
        break;
    case MSG_READY_TYPE:
        worker_ready(server, wire, body);
        break;
    case MSG_RESULT_TYPE:
        if (!intake_add(server, message)) server_hold(server, message);
        return;
    case MSG_RELEASE_TYPE:
        settled = worker_release(server, wire, body);
        break;
    case MSG_BYE_TYPE:
        settled = worker_bye(server, wire, body);
        break;
    case MSG_SUBMIT_TYPE:
        client_submit(server, wire, body);
        break;
    case MSG_PROBLEMS_TYPE:
        client_problems(server, wire, body);
        break;
    case MSG_START_TYPE:
        client_start(server, wire, body);
        break;
    case MSG_CANCEL_TYPE:
        client_cancel(server, wire, body);
        break;
    case MSG_QUERY_TYPE:
        client_query(server, wire, body);
        break;
    default:
        break; /* the wire lets nothing else through */
    }
    if (settled)
        wire_message_free(message);
    else
        server_hold(server, message);
}

/* What waited for the database, in its order. */
static void backlog_step(struct server *server)
{
    struct wire_message message;

    for (uint32_t n = server->backlog.n; n > 0 && server_can_write(server) && backlog_take(&server->backlog, &message);
         n--)
        server_handle(server, &message);
}

/* A message that is none, or that this key may not send. */
static void message_refused(struct server *server, const struct wire_peer *wire, int code, const struct kvf_err *err)
{
    if (wire->id_len == 0 || wire->role == ROLE_NONE) return;
    if (code == KVF_EDENIED)
        peer_goaway(server, wire, "role", err->text);
    else if (wire->role == ROLE_CLIENT)
        client_refuse(server, wire, 0, "bad_request", err->text);
    else if (peer_find(server, wire) == NULL)
        peer_goaway(server, wire, "version", err->text);
}

static void messages_take(struct server *server)
{
    for (int i = 0; i < TURN_MESSAGES && !intake_is_full(server); i++) {
        struct wire_message message;
        struct kvf_err err = {""};
        int code = wire_router_recv(server->router, &message, &err);
        if (code == KVF_EAGAIN) return;
        if (code == KVF_OK)
            server_handle(server, &message);
        else
            message_refused(server, &message.peer, code, &err);
        if (code == KVF_EIO || code == KVF_ENOMEM) {
            log_event(LOG_ERROR_LEVEL, "receive_failed", "why=%s", err.text);
            return;
        }
    }
}

/* ---- signals and start ---- */

static void signals_take(struct server *server)
{
    struct signalfd_siginfo info;

    while (read(server->signal_fd, &info, sizeof info) == sizeof info) {
        struct kvf_err err = {""};
        if (info.ssi_signo != SIGHUP) {
            server->stopping = true;
            log_event(LOG_INFO_LEVEL, "stopping", "signal=%u", info.ssi_signo);
        } else if (wire_router_reload_keys(server->router, &err) != KVF_OK) {
            log_event(LOG_ERROR_LEVEL, "keys_kept", "why=%s", err.text);
        } else {
            log_event(LOG_INFO_LEVEL, "keys_reloaded", "folder=%s", server->options->keys);
        }
    }
}

/* Before any thread is made: threads inherit the mask. */
static int signals_open(struct server *server, struct kvf_err *err)
{
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    server->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->signal_fd < 0 || server->epoll_fd < 0) return kvf_fail(err, KVF_EIO, "signals: %s", strerror(errno));
    return KVF_OK;
}

static int epoll_watch(struct server *server, int fd, struct kvf_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return KVF_OK;
    return kvf_fail(err, KVF_EIO, "epoll: %s", strerror(errno));
}

static int ready_file_write(const struct server *server, struct kvf_err *err)
{
    const char *path = server->options->ready_file;
    char temporary[4096];
    FILE *file;

    if (path == NULL) return KVF_OK;
    snprintf(temporary, sizeof temporary, "%s.new", path);
    file = fopen(temporary, "w");
    if (file == NULL) return kvf_fail(err, KVF_EIO, "--ready-file: %s: %s", temporary, strerror(errno));
    fprintf(file, "%s\n", wire_router_endpoint(server->router));
    if (fclose(file) != 0 || rename(temporary, path) != 0)
        return kvf_fail(err, KVF_EIO, "--ready-file: %s: %s", path, strerror(errno));
    return KVF_OK;
}

/* A wrong key folder is known at once, not after the wait for a database. */
static int keys_check(const char *folder, struct kvf_err *err)
{
    struct key_pair pair;
    const int code = keys_load_pair(folder, "coordinator", &pair, err);

    explicit_bzero(&pair, sizeof pair);
    return code;
}

static int server_open(struct server *server, struct kvf_err *err)
{
    const struct server_options *options = server->options;
    int code = keys_check(options->keys, err);

    if (code == KVF_OK) code = signals_open(server, err);
    if (code == KVF_OK) code = store_init(&server->store, options->db, err);
    if (code == KVF_OK) code = database_wait(server, err);
    if (code == KVF_OK) {
        server->now_ms = clock_ms();
        queue_init(&server->queue, options->lease_ms, options->heartbeat_ms, server->now_ms);
        code = queue_reload(server, err);
    }
    if (code == KVF_OK)
        code = reader_start(options->db_read == NULL ? options->db : options->db_read, &server->reader, err);
    if (code == KVF_OK) code = wire_router_open(options->bind, options->keys, &server->router, err);
    if (code == KVF_OK) code = epoll_watch(server, server->signal_fd, err);
    if (code == KVF_OK) code = epoll_watch(server, reader_fd(server->reader), err);
    if (code == KVF_OK) code = ready_file_write(server, err);
    if (code != KVF_OK) return code;
    server->db_up = true;
    server->epoch = server->store.epoch;
    log_event(LOG_INFO_LEVEL, "serving", "endpoint=%s epoch=%" PRId64 " lease_ms=%" PRId64 " heartbeat_ms=%" PRId64,
              wire_router_endpoint(server->router), server->epoch, options->lease_ms, options->heartbeat_ms);
    return KVF_OK;
}

static void server_close(struct server *server)
{
    if (server->router != NULL) {
        for (const struct peer *peer = server->peers; peer != NULL; peer = peer->next)
            peer_goaway(server, &peer->wire, "shutting_down", "the coordinator stops");
        starting_drop(server, "the coordinator stops");
        wire_router_wait(server->router, -1, 50); /* the last words go out meanwhile */
    }
    intake_free(server);
    backlog_free(&server->backlog);
    while (server->peers != NULL) peer_drop(server, server->peers);
    map_free(&server->peer_by_id);
    map_free(&server->peer_by_instance);
    queue_free(&server->queue);
    reader_stop(&server->reader);
    wire_router_close(&server->router);
    store_free(&server->store);
    if (server->signal_fd >= 0) close(server->signal_fd);
    if (server->epoll_fd >= 0) close(server->epoll_fd);
    if (server->options->ready_file != NULL) unlink(server->options->ready_file);
}

/* ---- the loop ---- */

static int wait_ms(const struct server *server)
{
    int64_t until = server->housekeeping_ms;

    if (server_can_write(server)) {
        int64_t next = queue_next_ms(&server->queue);
        if (next < until) until = next;
        if (server->starting != NULL || server->backlog.n > 0 || server->intake.n_batches > 0) return 0;
    } else if (server->db_up) {
        if (server->paused_until_ms < until) until = server->paused_until_ms;
    } else {
        if (server->store.pg.connecting) return 10;
        if (server->reconnect_ms < until) until = server->reconnect_ms;
    }
    until -= clock_ms();
    return until < 0 ? 0 : until > 1000 ? 1000 : (int)until;
}

static void server_turn(struct server *server)
{
    int ready = wire_router_wait(server->router, server->epoll_fd, wait_ms(server));
    bool was_full = server->disk_full;

    server->now_ms = clock_ms();
    queue_tick(&server->queue, server->now_ms);
    if (ready & 2) {
        signals_take(server);
        client_answers(server);
    }
    database_step(server);
    intake_commit(server); /* what a full disk left over */
    backlog_step(server);
    messages_take(server);
    intake_commit_and_lend(server);
    if (was_full && server_can_write(server)) {
        server->disk_full = false;
        log_event(LOG_INFO_LEVEL, "disk_has_room", "results=%" PRIu64, server->results_stored);
    }
    leases_expire(server);
    jobs_settle(server);
    starting_step(server);
    leases_grant(server);
    if (server->now_ms < server->housekeeping_ms) return;
    server->housekeeping_ms = server->now_ms + server->options->heartbeat_ms;
    workers_housekeeping(server);
}

int server_run(const struct server_options *options, struct kvf_err *err)
{
    struct server *server = calloc(1, sizeof *server);
    int code;

    if (server == NULL) return kvf_fail(err, KVF_ENOMEM, "coordinator: out of memory");
    server->options = options;
    server->epoll_fd = server->signal_fd = -1;
    server->backoff_ms = BACKOFF_MIN_MS;
    code = server_open(server, err);
    while (code == KVF_OK && !server->stopping && server->fatal == KVF_OK) server_turn(server);
    if (code == KVF_OK && server->fatal != KVF_OK) {
        code = server->fatal;
        *err = server->fatal_err;
    }
    if (code == KVF_OK)
        log_event(LOG_INFO_LEVEL, "stopped",
                  "results=%" PRIu64 " duplicate=%" PRIu64 " fenced=%" PRIu64 " expired=%" PRIu64,
                  server->results_stored, server->results_duplicate, server->results_fenced, server->leases_expired);
    server_close(server);
    free(server);
    return code;
}
