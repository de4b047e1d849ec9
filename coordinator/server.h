/* server.h: the coordinator's main loop: one thread owns the ROUTER, the writing connection and the queue.
 *
 * A turn: wait; take messages; write the results that came, in one commit, and only then ACK them; expire, finish,
 * lend. While the database is away nothing is written or expired: what needs it waits in a bounded backlog (what does
 * not fit is sent again by the workers), heartbeats are still heard, clients are told `unavailable`.
 */
#ifndef KVF_SERVER_H
#define KVF_SERVER_H

#include <stdint.h>
#include "alloc/err.h"

struct server_options {
    const char *bind, *keys, *db, *db_read, *ready_file; /* db_read NULL: db; ready_file NULL: none */
    int64_t lease_ms, heartbeat_ms, db_wait_ms;
};
/* Serves until SIGTERM or SIGINT (0), which also end a wait for the database. KVF_EUNAVAIL: no database within db_wait;
 * KVF_ECONFLICT: port in use, or another coordinator; KVF_EUNSUPPORTED: schema; KVF_EDENIED, KVF_ENOTFOUND: keys.
 * SIGHUP reads the keys again. */
KVF_MUSTCHECK int server_run(const struct server_options *options, struct kvf_err *err);

#endif
