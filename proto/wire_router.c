#include "proto/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/socket.h"
#include "proto/zap.h"

#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93 /* declared in zmq.h for draft builds only, there in all of 4.3 */
#endif
#define SELF_TEST_MS      2000
#define DENIED_LOG_MIN_MS 1000

struct wire_router {
    void *socket;
    struct zap *zap;
    struct msg_out out;
    uint32_t sequence;
    uint64_t denied_logged;
    int64_t denied_log_at_ms;
    int has_context;
    char endpoint[256];
};

/* ZeroMQ replaces the file of an ipc:// endpoint even while another process listens on it, so ask first. */
static int ipc_is_taken(const char *endpoint)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = endpoint + 6;
    if (strncmp(endpoint, "ipc://", 6) != 0 || strlen(path) >= sizeof address.sun_path || path[0] == '@') return 0;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int taken = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    return taken;
}

/* The domain must be enforced: without that, libzmq lets any key in whenever no handler answers. */
static int domain_enforce(void *socket, struct kvf_err *err)
{
    int code = option_text(socket, ZMQ_ZAP_DOMAIN, "ZAP_DOMAIN", ZAP_DOMAIN, err);
    if (code == 0) code = option_int(socket, ZMQ_ZAP_ENFORCE_DOMAIN, "ZAP_ENFORCE_DOMAIN", 1, err);
    if (code != 0) return code;
    int enforced = 0;
    size_t len = sizeof enforced;
    if (zmq_getsockopt(socket, ZMQ_ZAP_ENFORCE_DOMAIN, &enforced, &len) == 0 && enforced == 1) return 0;
    return kvf_fail(err, KVF_EDENIED, "socket option ZAP_ENFORCE_DOMAIN: expected 1, got %d", enforced);
}

static int router_options(void *socket, const char *endpoint, const struct key_pair *keys, struct kvf_err *err)
{
    int code;
    if ((code = options_common(socket, endpoint, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_ROUTER_MANDATORY, "ROUTER_MANDATORY", 1, err)) != 0) return code;
    /* A worker that comes back before the old connection is known to be dead would be ignored without it. Routing ids
     * are 128 random bits that only the peer and this process know, and the key of every message is looked at. */
    if ((code = option_int(socket, ZMQ_ROUTER_HANDOVER, "ROUTER_HANDOVER", 1, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_BACKLOG, "BACKLOG", SOCKET_BACKLOG, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_CURVE_SERVER, "CURVE_SERVER", 1, err)) != 0) return code;
    if ((code = option_text(socket, ZMQ_CURVE_SECRETKEY, "CURVE_SECRETKEY", keys->secret_z85, err)) != 0) return code;
    return domain_enforce(socket, err);
}

static int router_bind(struct wire_router *router, const char *endpoint, struct kvf_err *err)
{
    if (ipc_is_taken(endpoint)) return kvf_fail(err, KVF_ECONFLICT, "endpoint %s: in use by another process", endpoint);
    if (zmq_bind(router->socket, endpoint) != 0) {
        if (errno == EADDRINUSE)
            return kvf_fail(err, KVF_ECONFLICT, "endpoint %s: in use by another process", endpoint);
        return kvf_fail(err, errno == EINVAL || errno == ENODEV ? KVF_EINVAL : KVF_EIO, "endpoint %s: cannot bind: %s",
                        endpoint, zmq_strerror(errno));
    }
    size_t len = sizeof router->endpoint;
    if (zmq_getsockopt(router->socket, ZMQ_LAST_ENDPOINT, router->endpoint, &len) == 0) return 0;
    return kvf_fail(err, KVF_EIO, "endpoint %s: %s", endpoint, zmq_strerror(errno));
}

int wire_router_open(const char *endpoint, const char *key_folder, struct wire_router **out, struct kvf_err *err)
{
    *out = NULL;
    struct key_pair keys;
    int code = keys_load_pair(key_folder, "coordinator", &keys, err);
    if (code != 0) return code;
    struct wire_router *router = calloc(1, sizeof *router);
    void *context = router == NULL ? NULL : context_take();
    if (context == NULL) {
        free(router);
        explicit_bzero(&keys, sizeof keys);
        return kvf_fail(err, KVF_ENOMEM, "router %s: no ZeroMQ context: %s", endpoint, strerror(errno));
    }
    router->has_context = 1;
    code = zap_start(context, key_folder, &router->zap, err);
    if (code == 0 && (router->socket = zmq_socket(context, ZMQ_ROUTER)) == NULL)
        code = kvf_fail(err, KVF_EIO, "router %s: %s", endpoint, zmq_strerror(errno));
    if (code == 0) code = router_options(router->socket, endpoint, &keys, err);
    if (code == 0) code = router_bind(router, endpoint, err);
    if (code == 0) code = strangers_refused(router->endpoint, keys.public_z85, SELF_TEST_MS, err);
    explicit_bzero(&keys, sizeof keys);
    if (code != 0) {
        wire_router_close(&router);
        return code;
    }
    router->denied_logged = zap_denied(router->zap);
    *out = router;
    return 0;
}

void wire_router_close(struct wire_router **router)
{
    if (router == NULL || *router == NULL) return;
    if ((*router)->socket != NULL) zmq_close((*router)->socket);
    zap_stop(&(*router)->zap);
    if ((*router)->has_context) context_drop();
    msg_out_free(&(*router)->out);
    free(*router);
    *router = NULL;
}

const char *wire_router_endpoint(const struct wire_router *router)
{
    return router->endpoint;
}

int wire_router_reload_keys(struct wire_router *router, struct kvf_err *err)
{
    return zap_reload(router->zap, err);
}

/* ---- receive ---- */

/* Routing id of the next message: 0, or errno. */
static int peer_recv(void *socket, struct wire_peer *peer, int *more)
{
    zmq_msg_t id;
    zmq_msg_init(&id);
    int rc;
    do rc = zmq_msg_recv(&id, socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    int failed = rc < 0 ? errno : 0;
    if (failed == 0) {
        size_t len = zmq_msg_size(&id);
        peer->id_len = len <= PEER_ID_MAX ? len : 0;
        memcpy(peer->id, zmq_msg_data(&id), peer->id_len);
        *more = zmq_msg_more(&id);
    }
    zmq_msg_close(&id);
    return failed;
}

/* Who sent it: from the handshake, by way of the payload frame (the routing id frame has no metadata after a poll). */
static void peer_identify(struct wire_router *router, const zmq_msg_t *payload, struct wire_peer *peer)
{
    const char *user = zmq_msg_gets(payload, "User-Id");
    if (user == NULL || strlen(user) != KEY_Z85_LEN) return;
    memcpy(peer->key_z85, user, KEY_Z85_LEN + 1);
    zap_find(router->zap, user, &peer->role, peer->key_name);
}

static int message_check(struct frames *frames, int n, struct wire_message *out, struct kvf_err *err)
{
    const struct wire_peer *peer = &out->peer;
    if (peer->id_len == 0)
        return kvf_fail(err, KVF_ECORRUPT, "message: expected a routing id of 1 to %d bytes", PEER_ID_MAX);
    if (peer->role == ROLE_NONE)
        return kvf_fail(err, KVF_EDENIED, "message: the sender's key is not authorized any more");
    if (n != 2) return kvf_fail(err, KVF_ECORRUPT, "message from key %s: expected 2 frames, got %d", peer->key_name, n);
    zmq_msg_t *header = &frames->header, *body = &frames->body;
    const unsigned char *head = zmq_msg_data(header);
    size_t head_len = zmq_msg_size(header);
    /* The role before the body: who may not say it need not be listened to. */
    int direction = head_len == MSG_HEADER_BYTES ? msg_direction(head[MSG_HEADER_TYPE_AT]) : 0;
    if (direction != 0 && direction != (peer->role == ROLE_WORKER ? 'W' : 'C'))
        return kvf_fail(err, KVF_EDENIED, "message %s: expected from a %s, got it from key %s, which is a %s",
                        msg_name(head[MSG_HEADER_TYPE_AT]),
                        direction == 'W'   ? "worker"
                        : direction == 'C' ? "client"
                                           : "coordinator",
                        peer->key_name, key_role_name(peer->role));
    return msg_decode(head, head_len, zmq_msg_data(body), zmq_msg_size(body), &out->in, err);
}

static int is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

int wire_router_recv(struct wire_router *router, struct wire_message *out, struct kvf_err *err)
{
    *out = (struct wire_message){0};
    int more = 0;
    int failed = peer_recv(router->socket, &out->peer, &more);
    if (failed == EAGAIN) return kvf_fail(err, KVF_EAGAIN, "router %s: no message", router->endpoint);
    if (failed != 0) return kvf_fail(err, KVF_EIO, "router %s: receive: %s", router->endpoint, zmq_strerror(failed));
    struct frames *frames = frames_new();
    if (frames == NULL) return kvf_fail(err, KVF_ENOMEM, "router %s: out of memory", router->endpoint);
    int n = more ? frames_recv(router->socket, frames) : 0;
    int code;
    if (n < 0) {
        code = kvf_fail(err, KVF_EIO, "router %s: receive: %s", router->endpoint, zmq_strerror(errno));
    } else {
        struct kvf_err fault;
        peer_identify(router, &frames->header, &out->peer);
        code = message_check(frames, n, out, &fault);
        if (code != 0) {
            uint64_t strikes = zap_strike(router->zap, out->peer.key_z85);
            /* A peer that keeps at it fills no disk: its 1st, 2nd, 4th, 8th message is logged. */
            if (strikes == 0 || is_power_of_two(strikes))
                log_event(LOG_WARN_LEVEL, "message_refused", "key=%s strikes=%llu reason=%s", out->peer.key_name,
                          (unsigned long long)strikes, fault.text);
            code = kvf_fail(err, (enum kvf_code)code, "%s", fault.text);
        }
    }
    if (code != 0) frames_free(&frames);
    out->frames = frames;
    return code;
}

void wire_message_free(struct wire_message *message)
{
    if (message == NULL) return;
    msg_in_free(&message->in);
    struct frames *frames = message->frames;
    frames_free(&frames);
    message->frames = NULL;
}

/* ---- send ---- */

int wire_router_send(struct wire_router *router, const struct wire_peer *peer, int type, const void *msg,
                     struct kvf_err *err)
{
    int direction = msg_direction(type);
    if (direction != 'w' && direction != 'c')
        return kvf_fail(err, KVF_EINVAL, "message type %d: expected one that a coordinator sends", type);
    int code = msg_encode(type, msg, ++router->sequence, &router->out, err);
    if (code != 0) return code;
    /* Once the id is taken, the other frames go the same way without waiting. */
    int failed = frame_send(router->socket, peer->id, peer->id_len, true);
    if (failed == 0) failed = frame_send(router->socket, router->out.header, MSG_HEADER_BYTES, true);
    if (failed == 0) failed = frame_send(router->socket, router->out.body, router->out.body_len, false);
    if (failed == 0) return 0;
    if (failed == EAGAIN)
        return kvf_fail(err, KVF_EAGAIN, "message %s to key %s: its queue is full", msg_name(type), peer->key_name);
    if (failed == EHOSTUNREACH)
        return kvf_fail(err, KVF_ENOTFOUND, "message %s to key %s: the peer is gone", msg_name(type), peer->key_name);
    return kvf_fail(err, KVF_EIO, "message %s to key %s: %s", msg_name(type), peer->key_name, zmq_strerror(failed));
}

int wire_router_wait(struct wire_router *router, int extra_fd, int timeout_ms)
{
    zmq_pollitem_t items[] = {{router->socket, 0, ZMQ_POLLIN, 0}, {NULL, extra_fd, ZMQ_POLLIN, 0}};
    int ready = zmq_poll(items, extra_fd >= 0 ? 2 : 1, timeout_ms);
    uint64_t denied = zap_denied(router->zap);
    if (denied != router->denied_logged && clock_ms() - router->denied_log_at_ms >= DENIED_LOG_MIN_MS) {
        log_event(LOG_WARN_LEVEL, "keys_denied", "handshakes=%llu new=%llu", (unsigned long long)denied,
                  (unsigned long long)(denied - router->denied_logged));
        router->denied_logged = denied;
        router->denied_log_at_ms = clock_ms();
    }
    if (ready <= 0) return 0;
    return (items[0].revents != 0 ? 1 : 0) | (extra_fd >= 0 && items[1].revents != 0 ? 2 : 0);
}
