/* server_internal.h: what the files of the server share. */
#ifndef KVF_SERVER_INTERNAL_H
#define KVF_SERVER_INTERNAL_H

#include <stdbool.h>
#include "coordinator/backlog.h"
#include "coordinator/map.h"
#include "coordinator/queue.h"
#include "coordinator/reader.h"
#include "coordinator/server.h"
#include "coordinator/store.h"
#include "proto/wire.h"

#define TURN_MESSAGES     512
#define TURN_ROWS         8192
#define TURN_BYTES        (32u << 20) /* of result texts */
#define TURN_LEASES       512
#define SILENT_HEARTBEATS 3
#define RECENT_FENCES     64

/* A worker process that said HELLO. Clients have no state. */
struct peer {
    struct peer *prev, *next;
    struct wire_peer wire;
    char instance[33], host[256];
    int64_t run_id, heard_ms;
    bool silent, seen; /* seen: heard since last_seen_at was written */
    bool denied;       /* its key was taken back: it leaves as soon as that can be written */
    struct queue_worker *worker;
    int64_t recent[RECENT_FENCES]; /* leases that ended well: naming them once more is no mistake */
    uint32_t n_recent;
};

/* Results of this turn, not committed yet. Rows point into the messages. */
struct intake_batch {
    struct wire_message message;
    int64_t fence;
    uint64_t batch;
};
struct intake_row {
    struct queue_lease *lease;
    int place;
    bool is_error, failed; /* failed: not stored, the sample is tried again */
    const struct rec_result *result;
};
struct intake {
    struct intake_batch *batches;
    uint32_t n_batches, cap_batches;
    struct intake_row *rows;
    uint32_t n_rows, cap_rows;
    struct store_row *stored;
    int64_t *done, *fences, *fenced;
    size_t bytes;
};

/* A queued job, and who waits for the answer to START. */
struct starting {
    struct starting *next;
    struct store_job job;
    struct wire_peer peer; /* id_len 0: nobody, it was queued before this start */
    uint64_t request;
};

struct server {
    const struct server_options *options;
    struct wire_router *router;
    struct store store;
    struct reader *reader;
    struct queue queue;
    struct map peer_by_id, peer_by_instance;
    struct peer *peers;
    struct backlog backlog;
    bool backlog_full; /* the last message found no room */
    struct intake intake;
    struct starting *starting;
    int epoll_fd, stop_fd, hangup_fd; /* signals that stop us; SIGHUP */
    bool stopping;
    int fatal; /* code that ends the server; its line is in fatal_err */
    struct kvf_err fatal_err;
    int64_t now_ms; /* of this turn */
    /* database */
    bool db_up;           /* connected, locked, loaded */
    int64_t reconnect_ms; /* when to try next */
    int64_t backoff_ms;
    int64_t paused_until_ms; /* disk full, or a conflict: no writing before */
    bool disk_full;
    int64_t epoch; /* of this process, as WELCOME says it */
    int64_t housekeeping_ms, seen_ms;
    uint64_t results_stored, results_duplicate, results_fenced, leases_expired;
};

/* ---- server.c ---- */

bool server_can_write(const struct server *server);
/* What a failed write means. Returns true when it may be tried again later (the database is away or full; nothing of
 * the attempt was written), false when it never will: it has been logged under `event`. */
bool server_write_failed(struct server *server, const char *event, int code, const struct kvf_err *err);
/* Sends; a peer that is gone or full is no failure of ours: true when it went out. */
bool server_send(struct server *server, const struct wire_peer *peer, int type, const void *msg);
/* Takes the message over, to be handled when writing is possible again; what there is no room for is sent again. */
void server_hold(struct server *server, struct wire_message *message);
void server_handle(struct server *server, struct wire_message *message); /* takes it over */

/* ---- server_worker.c: each returns false when the message must wait for the database ---- */

struct peer *peer_find(const struct server *server, const struct wire_peer *wire);
void peer_drop(struct server *server, struct peer *peer);
void peer_heard(struct server *server, struct peer *peer);
void peer_goaway(struct server *server, const struct wire_peer *wire, const char *code, const char *reason);
void peer_revoke(struct server *server, const struct wire_peer *wire, int64_t fence, const char *reason);
bool worker_hello(struct server *server, const struct wire_peer *wire, const struct msg_hello *hello);
void worker_ready(struct server *server, const struct wire_peer *wire, const struct msg_ready *ready);
bool worker_release(struct server *server, const struct wire_peer *wire, const struct msg_release *release);
bool worker_bye(struct server *server, const struct wire_peer *wire, const struct msg_bye *bye);
/* The sender's key is no worker's any more. If it was one it leaves, now or once the database is back. */
void worker_denied(struct server *server, const struct wire_peer *wire);
void workers_housekeeping(struct server *server);
/* Ends leases of workers that were not heard in time. */
void leases_expire(struct server *server);
void leases_grant(struct server *server);
/* Of leases that queue_grant made: they are in the database under these fences; or they could not be written. */
void leases_confirm(struct server *server, struct queue_lease *const *leases, const int64_t *fences, uint32_t n);
void leases_undo(struct server *server, struct queue_lease *const *leases, uint32_t n);
/* Tells the workers; what does not get through goes back. */
void leases_send(struct server *server, const int64_t *fences, uint32_t n);

/* ---- server_result.c ---- */

/* Takes the message over when true. */
bool intake_add(struct server *server, struct wire_message *message);
bool intake_is_full(const struct server *server);
void intake_commit(struct server *server);
/* The same with new leases, if there is anything to commit. */
void intake_commit_and_lend(struct server *server);
/* The database is gone: everything goes to the backlog. */
void intake_hold(struct server *server);
void intake_free(struct server *server);
/* Error rows of samples whose attempts are used up; jobs that are complete. */
void jobs_settle(struct server *server);

/* ---- server_client.c ---- */

void client_submit(struct server *server, const struct wire_peer *wire, const struct msg_submit *submit);
void client_problems(struct server *server, const struct wire_peer *wire, const struct msg_problems *problems);
void client_start(struct server *server, const struct wire_peer *wire, const struct msg_start *start);
void client_cancel(struct server *server, const struct wire_peer *wire, const struct msg_cancel *cancel);
void client_query(struct server *server, const struct wire_peer *wire, const struct msg_query *query);
void client_refuse(struct server *server, const struct wire_peer *wire, uint64_t request, const char *code,
                   const char *reason);
void client_answers(struct server *server); /* of the reader */
/* The jobs that the database has as queued; nothing is starting before. */
KVF_MUSTCHECK int starting_load(struct server *server, struct kvf_err *err);
/* One chunk of samples of the first job that is starting. */
void starting_step(struct server *server);
void starting_drop(struct server *server, const char *reason); /* all, with REFUSED unavailable */

#endif
