/* socket.h: what the ROUTER and the DEALER have in common: the context, options, monitor, two-frame messages.
 * Internal to proto/. */
#ifndef KVF_PROTO_SOCKET_H
#define KVF_PROTO_SOCKET_H

#include <stdbool.h>
#include <zmq.h>
#include "proto/wire.h"

#define SOCKET_HWM           256
#define SOCKET_BACKLOG       4096
#define HANDSHAKE_IVL_MS     5000
#define TCP_MAXRT_MS         20000
#define CONNECT_TIMEOUT_MS   5000
#define HEARTBEAT_IVL_MS     20000
#define HEARTBEAT_TIMEOUT_MS 60000
#define RECONNECT_MAX_MS     10000
#define FRAME_BYTES_MAX      (MSG_BODY_MAX + 64)

/* The process has one context at a time: two that use CURVE can crash when one ends (libzmq 4.3.4). The first user
 * makes it, the last one ends it, which waits for lingering sockets. Thread-safe. NULL: out of memory or files (errno).
 */
void *context_take(void);
void context_drop(void);

int option_int(void *socket, int option, const char *name, int value, struct kvf_err *err);
int option_text(void *socket, int option, const char *name, const char *value, struct kvf_err *err);
/* Options of both ends; refuses endpoints that are neither tcp:// nor ipc://. */
int options_common(void *socket, const char *endpoint, struct kvf_err *err);

/* A frame sent as far as possible: 0 or errno. Takes the bytes by copy, never waits. */
int frame_send(void *socket, const void *bytes, size_t len, bool more);

/* Header and body of a received message, alive as long as the decoded message points into the body. */
struct frames {
    zmq_msg_t header, body;
};
struct frames *frames_new(void);
void frames_free(struct frames **frames);
/* Reads the frames of one message after its first one was announced: returns their number, which is 2 in a good message
 * (the rest is read and dropped), or -1 with errno. */
int frames_recv(void *socket, struct frames *frames);

/* Socket events, read in the thread of the socket. */
struct monitor {
    void *monitored, *pair;
};
int monitor_open(void *context, void *socket, struct monitor *out, struct kvf_err *err);
void monitor_close(struct monitor *monitor);
/* 1: an event, 0: none is waiting. */
int monitor_next(struct monitor *monitor, int *event, uint32_t *value);

/* Proves that the server at `endpoint` refuses a key that nobody has: 0 when the refusal (ZAP status 400) came within
 * timeout_ms, KVF_EDENIED with what happened otherwise. */
int strangers_refused(const char *endpoint, const char *server_public_z85, int timeout_ms, struct kvf_err *err);

#endif
