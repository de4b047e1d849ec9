#include "proto/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "proto/socket.h"

#define ROUTING_ID_BYTES 16
/* A server that closes the connection in the handshake does not say why. Once may be a server that was just ending;
 * this often, and never a refused connection between, means that the key in coordinator.public is not its key. */
#define HANDSHAKES_CUT_MAX 3

struct wire_dealer {
    void *socket;
    struct monitor monitor;
    struct msg_out out;
    uint32_t sequence;
    int has_context, is_up;
    int handshakes_cut;
    const char *trouble;
    char endpoint[256];
};

static int dealer_options(void *socket, const char *endpoint, const struct key_pair *keys, const char *server_public,
                          struct kvf_err *err)
{
    struct {
        unsigned char routing_id[ROUTING_ID_BYTES];
        uint32_t jitter;
    } random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return kvf_fail(err, KVF_EIO, "dealer %s: getrandom: %s", endpoint, strerror(errno));
    random.routing_id[0] |= 1; /* ids that start with 0 are the router's own */
    int code;
    if ((code = options_common(socket, endpoint, err)) != 0) return code;
    if (zmq_setsockopt(socket, ZMQ_ROUTING_ID, random.routing_id, ROUTING_ID_BYTES) != 0)
        return kvf_fail(err, KVF_EIO, "socket option ROUTING_ID: %s", zmq_strerror(errno));
    if ((code = option_int(socket, ZMQ_IMMEDIATE, "IMMEDIATE", 1, err)) != 0) return code;
    /* Every process with its own first interval, so that a fleet does not come back in one moment. */
    int interval_ms = 200 + (int)(random.jitter % 800);
    if ((code = option_int(socket, ZMQ_RECONNECT_IVL, "RECONNECT_IVL", interval_ms, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_RECONNECT_IVL_MAX, "RECONNECT_IVL_MAX", RECONNECT_MAX_MS, err)) != 0)
        return code;
    if ((code = option_int(socket, ZMQ_CONNECT_TIMEOUT, "CONNECT_TIMEOUT", CONNECT_TIMEOUT_MS, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_HEARTBEAT_IVL, "HEARTBEAT_IVL", HEARTBEAT_IVL_MS, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_HEARTBEAT_TIMEOUT, "HEARTBEAT_TIMEOUT", HEARTBEAT_TIMEOUT_MS, err)) != 0)
        return code;
    if ((code = option_int(socket, ZMQ_HEARTBEAT_TTL, "HEARTBEAT_TTL", HEARTBEAT_TIMEOUT_MS, err)) != 0) return code;
    if ((code = option_text(socket, ZMQ_CURVE_SERVERKEY, "CURVE_SERVERKEY", server_public, err)) != 0) return code;
    if ((code = option_text(socket, ZMQ_CURVE_PUBLICKEY, "CURVE_PUBLICKEY", keys->public_z85, err)) != 0) return code;
    return option_text(socket, ZMQ_CURVE_SECRETKEY, "CURVE_SECRETKEY", keys->secret_z85, err);
}

int wire_dealer_open(const char *endpoint, const char *key_folder, const char *name, struct wire_dealer **out,
                     struct kvf_err *err)
{
    *out = NULL;
    struct key_pair keys;
    char server_public[KEY_Z85_LEN + 1];
    int code = keys_load_coordinator_public(key_folder, server_public, err);
    if (code == 0) code = keys_load_pair(key_folder, name, &keys, err);
    if (code != 0) return code;
    struct wire_dealer *dealer = calloc(1, sizeof *dealer);
    void *context = dealer == NULL ? NULL : context_take();
    if (context == NULL) {
        free(dealer);
        explicit_bzero(&keys, sizeof keys);
        return kvf_fail(err, KVF_ENOMEM, "dealer %s: no ZeroMQ context: %s", endpoint, strerror(errno));
    }
    dealer->has_context = 1;
    dealer->trouble = "";
    snprintf(dealer->endpoint, sizeof dealer->endpoint, "%s", endpoint);
    if ((dealer->socket = zmq_socket(context, ZMQ_DEALER)) == NULL)
        code = kvf_fail(err, KVF_EIO, "dealer %s: %s", endpoint, zmq_strerror(errno));
    if (code == 0) code = dealer_options(dealer->socket, endpoint, &keys, server_public, err);
    explicit_bzero(&keys, sizeof keys);
    if (code == 0) code = monitor_open(context, dealer->socket, &dealer->monitor, err);
    if (code == 0 && zmq_connect(dealer->socket, endpoint) != 0)
        code = kvf_fail(err, errno == EINVAL ? KVF_EINVAL : KVF_EIO, "endpoint %s: cannot connect: %s", endpoint,
                        zmq_strerror(errno));
    if (code != 0) {
        wire_dealer_close(&dealer, 0);
        return code;
    }
    *out = dealer;
    return 0;
}

void wire_dealer_close(struct wire_dealer **dealer, int linger_ms)
{
    if (dealer == NULL || *dealer == NULL) return;
    monitor_close(&(*dealer)->monitor);
    if ((*dealer)->socket != NULL) {
        zmq_setsockopt((*dealer)->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close((*dealer)->socket);
    }
    if ((*dealer)->has_context) context_drop();
    msg_out_free(&(*dealer)->out);
    free(*dealer);
    *dealer = NULL;
}

static void monitor_drain(struct wire_dealer *dealer)
{
    int event;
    uint32_t value;
    while (monitor_next(&dealer->monitor, &event, &value)) {
        switch (event) {
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
            dealer->is_up = 1;
            dealer->handshakes_cut = 0;
            dealer->trouble = "";
            break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
            dealer->trouble = "wrong key";
            break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            /* A server that is stopped or overloaded times out instead, and that is no sign of a wrong key. */
            if (value == EPIPE || value == ECONNRESET) dealer->handshakes_cut++;
            dealer->trouble = dealer->handshakes_cut >= HANDSHAKES_CUT_MAX ? "wrong key" : "not reachable";
            break;
        case ZMQ_EVENT_CLOSED: /* a connection that never came to be */
            dealer->handshakes_cut = 0;
            dealer->trouble = "not reachable";
            break;
        case ZMQ_EVENT_DISCONNECTED:
            if (dealer->is_up) dealer->trouble = "not reachable";
            dealer->is_up = 0;
            break;
        default:
            break;
        }
    }
}

const char *wire_dealer_trouble(struct wire_dealer *dealer)
{
    monitor_drain(dealer);
    return dealer->trouble;
}

int wire_dealer_send(struct wire_dealer *dealer, int type, const void *msg, struct kvf_err *err)
{
    int direction = msg_direction(type);
    if (direction != 'W' && direction != 'C')
        return kvf_fail(err, KVF_EINVAL, "message type %d: expected one that a worker or a client sends", type);
    int code = msg_encode(type, msg, ++dealer->sequence, &dealer->out, err);
    if (code != 0) return code;
    int failed = frame_send(dealer->socket, dealer->out.header, MSG_HEADER_BYTES, true);
    if (failed == 0) failed = frame_send(dealer->socket, dealer->out.body, dealer->out.body_len, false);
    if (failed == 0) return 0;
    if (failed == EAGAIN)
        return kvf_fail(err, KVF_EAGAIN, "message %s to %s: not connected, or the queue is full", msg_name(type),
                        dealer->endpoint);
    return kvf_fail(err, KVF_EIO, "message %s to %s: %s", msg_name(type), dealer->endpoint, zmq_strerror(failed));
}

static int answer_check(struct frames *frames, int n, struct wire_message *out, struct kvf_err *err)
{
    if (n != 2) return kvf_fail(err, KVF_ECORRUPT, "message from the coordinator: expected 2 frames, got %d", n);
    int code = msg_decode(zmq_msg_data(&frames->header), zmq_msg_size(&frames->header), zmq_msg_data(&frames->body),
                          zmq_msg_size(&frames->body), &out->in, err);
    if (code != 0) return code;
    int direction = msg_direction(out->in.type);
    if (direction == 'w' || direction == 'c') return 0;
    code = kvf_fail(err, KVF_EDENIED, "message %s: expected one that a coordinator sends", msg_name(out->in.type));
    msg_in_free(&out->in);
    return code;
}

int wire_dealer_recv(struct wire_dealer *dealer, struct wire_message *out, struct kvf_err *err)
{
    *out = (struct wire_message){0};
    struct frames *frames = frames_new();
    if (frames == NULL) return kvf_fail(err, KVF_ENOMEM, "dealer %s: out of memory", dealer->endpoint);
    int n = frames_recv(dealer->socket, frames);
    int code;
    if (n < 0 && errno == EAGAIN)
        code = kvf_fail(err, KVF_EAGAIN, "dealer %s: no message", dealer->endpoint);
    else if (n < 0)
        code = kvf_fail(err, KVF_EIO, "dealer %s: receive: %s", dealer->endpoint, zmq_strerror(errno));
    else
        code = answer_check(frames, n, out, err);
    if (code != 0) frames_free(&frames);
    out->frames = frames;
    return code;
}

int wire_dealer_wait(struct wire_dealer *dealer, int extra_fd, int timeout_ms)
{
    zmq_pollitem_t items[] = {
        {dealer->socket, 0, ZMQ_POLLIN, 0}, {dealer->monitor.pair, 0, ZMQ_POLLIN, 0}, {NULL, extra_fd, ZMQ_POLLIN, 0}};
    int ready = zmq_poll(items, extra_fd >= 0 ? 3 : 2, timeout_ms);
    /* Always emptied: the I/O thread would wait on a full monitor. */
    monitor_drain(dealer);
    if (ready <= 0) return 0;
    return (items[0].revents != 0 ? 1 : 0) | (extra_fd >= 0 && items[2].revents != 0 ? 2 : 0);
}
