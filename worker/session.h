/* session.h: the worker's side of the protocol as a state machine: no socket, no clock, no thread.
 *
 *   DOWN      no connection; one is wanted at a certain time (backoff)
 *   GREETING  a socket is there, HELLO is out or wants out, WELCOME is awaited
 *   UP        welcomed: READY each heartbeat and when credit grows, results until ACKed
 *   OVER      drained, or hopeless; the exit code is known
 *
 * The owner (loop.c, or a test) makes and closes sockets as the session asks, feeds it messages, rows, trouble and time
 * (monotonic milliseconds), and carries its commands to the engine's thread. Leases and unacknowledged results survive
 * every loss of the connection: only an ACK or a REVOKE ends them.
 */
#ifndef KVF_WORKER_SESSION_H
#define KVF_WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/message.h"
#include "worker/handover.h"

struct session_options {
    struct msg_hello hello; /* kept as it is: its texts and lists must outlive the session */
    int max_batch;
    int64_t drain_ms;
    unsigned jitter;                 /* seed of the spread of reconnections; tests set it */
    const char *endpoint, *key_name; /* for messages */
};
struct session_calls {
    void *user;
    /* Hands a message to the socket: 0, KVF_EAGAIN (not now), or another code (cannot be sent at all). */
    int (*send)(void *user, int type, const void *msg, struct kvf_err *err);
    void (*lease)(void *user, struct lease *lease); /* takes it over */
    void (*revoke)(void *user, int64_t fence);
    void (*drain)(void *user);
    void (*abandon)(void *user);
};

enum session_state { SESSION_DOWN, SESSION_GREETING, SESSION_UP, SESSION_OVER };

struct session;
KVF_MUSTCHECK int session_new(const struct session_options *options, const struct session_calls *calls, int64_t now_ms,
                              struct session **out, struct kvf_err *err);
void session_destroy(struct session **session);
enum session_state session_state(const struct session *session);
/* Of SESSION_OVER: 0 drained, or the code that ended it with its line. */
int session_outcome(const struct session *session, struct kvf_err *err);

/* Whether a socket should exist now. The owner opens or closes one and says so with session_opened; closing needs no
 * word. */
bool session_wants_socket(const struct session *session);
void session_opened(struct session *session, int64_t now_ms);

void session_receive(struct session *session, int type, const void *msg, int64_t now_ms);
/* wire_dealer_trouble's word for the connection's state: "", "wrong key", "not reachable". */
void session_trouble(struct session *session, const char *trouble, int64_t now_ms);
/* What came from the engine's thread. Takes the rows over. */
void session_reports(struct session *session, struct reports *reports, int64_t now_ms);
/* A signal: finish or hand back, then OVER. */
void session_drain(struct session *session, int64_t now_ms);

/* Sends what is due. Returns when to call again at the latest. */
int64_t session_tick(struct session *session, int64_t now_ms);

/* Samples lent and not finished; results not acknowledged. */
int session_load(const struct session *session);
int session_unacknowledged(const struct session *session);

#endif
