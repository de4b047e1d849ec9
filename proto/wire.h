/* wire.h: sockets: the coordinator's ROUTER, the DEALER of workers and clients, CURVE keys, ZAP. The only folder that
 * includes zmq.h. One ZeroMQ context at a time in a process, made by the first socket and ended by the last one closed;
 * a socket belongs to the thread that made it.
 */
#ifndef KVF_WIRE_H
#define KVF_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/message.h"

/* ---- keys ---- */

#define KEY_Z85_LEN 40
enum key_role { ROLE_NONE, ROLE_WORKER, ROLE_CLIENT };

struct key_pair {
    char public_z85[KEY_Z85_LEN + 1], secret_z85[KEY_Z85_LEN + 1];
};
/* Key folder: coordinator.secret (0600: public and secret, one a line), coordinator.public,
 * NAME.secret (0600) and authorized/NAME.public: "worker Z85" or "client Z85". */
/* Creates what is missing, never overwrites: safe to run again. */
KVF_MUSTCHECK int keys_make_coordinator(const char *folder, struct kvf_err *err);
KVF_MUSTCHECK int keys_make_peer(const char *folder, const char *name, enum key_role role, struct kvf_err *err);
/* NAME.secret or coordinator.secret; a file readable by others is refused. */
KVF_MUSTCHECK int keys_load_pair(const char *folder, const char *name, struct key_pair *out, struct kvf_err *err);
KVF_MUSTCHECK int keys_load_coordinator_public(const char *folder, char public_z85[KEY_Z85_LEN + 1],
                                               struct kvf_err *err);

/* ---- the coordinator's end ---- */

struct wire_router;
/* Starts the ZAP thread (domain "kvfleet", enforced) on authorized/, binds, and proves that a random key is refused:
 * if that self-test is let in, KVF_EDENIED. Port in use: KVF_ECONFLICT. Endpoints tcp:// and ipc:// only. */
KVF_MUSTCHECK int wire_router_open(const char *endpoint, const char *key_folder, struct wire_router **out,
                                   struct kvf_err *err);
void wire_router_close(struct wire_router **router);
/* Endpoint really bound (a port chosen by the system filled in). */
const char *wire_router_endpoint(const struct wire_router *router);
/* Reads authorized/ again (SIGHUP). */
KVF_MUSTCHECK int wire_router_reload_keys(struct wire_router *router, struct kvf_err *err);

#define PEER_ID_MAX 64
struct wire_peer {
    unsigned char id[PEER_ID_MAX]; /* routing id */
    size_t id_len;
    enum key_role role; /* from the CURVE key */
    char key_z85[KEY_Z85_LEN + 1], key_name[64];
};
struct wire_message {
    struct wire_peer peer;
    struct msg_in in;
    void *frames; /* internal */
};
/* Next message without waiting: KVF_EAGAIN when there is none; KVF_ECORRUPT (peer filled in, message dropped) when it
 * does not decode or its direction does not fit the peer's role: KVF_EDENIED. Free with wire_message_free in each case
 * 0. */
KVF_MUSTCHECK int wire_router_recv(struct wire_router *router, struct wire_message *out, struct kvf_err *err);
void wire_message_free(struct wire_message *message);
/* Never blocks. KVF_EAGAIN: the peer's queue is full; KVF_ENOTFOUND: it is gone. */
KVF_MUSTCHECK int wire_router_send(struct wire_router *router, const struct wire_peer *peer, int type, const void *msg,
                                   struct kvf_err *err);

/* ---- the worker's and the client's end ---- */

struct wire_dealer;
/* Connects (does not wait). `name` is the key's name in the folder. */
KVF_MUSTCHECK int wire_dealer_open(const char *endpoint, const char *key_folder, const char *name,
                                   struct wire_dealer **out, struct kvf_err *err);
/* linger_ms: how long unsent messages may still go out. */
void wire_dealer_close(struct wire_dealer **dealer, int linger_ms);
/* Never blocks. KVF_EAGAIN: not connected (yet), or the queue is full: wait, then send again. */
KVF_MUSTCHECK int wire_dealer_send(struct wire_dealer *dealer, int type, const void *msg, struct kvf_err *err);
/* As wire_router_recv; the peer stays empty. */
KVF_MUSTCHECK int wire_dealer_recv(struct wire_dealer *dealer, struct wire_message *out, struct kvf_err *err);
/* Why the connection is down, from the socket monitor: "wrong key" (handshake refused), "not reachable", or "". */
const char *wire_dealer_trouble(struct wire_dealer *dealer);

/* ---- waiting ---- */

/* Waits until the socket is readable, `extra_fd` (or -1) is readable, or timeout_ms passed; a signal ends the wait too.
 * Returns 1 for the socket, 2 for the fd, 3 for both. The wait of a dealer also ends (with 0) when its connection comes
 * up or goes down. */
int wire_router_wait(struct wire_router *router, int extra_fd, int timeout_ms);
int wire_dealer_wait(struct wire_dealer *dealer, int extra_fd, int timeout_ms);

#endif
