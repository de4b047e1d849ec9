#include "proto/socket.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static void *context; /* under context_lock, as the count */
static int context_users;

void *context_take(void)
{
    pthread_mutex_lock(&context_lock);
    if (context == NULL) context = zmq_ctx_new();
    if (context != NULL) context_users++;
    void *taken = context;
    pthread_mutex_unlock(&context_lock);
    return taken;
}

void context_drop(void)
{
    /* Held while the context ends, so that nobody makes a second one beside it. */
    pthread_mutex_lock(&context_lock);
    if (--context_users == 0) {
        while (zmq_ctx_term(context) != 0 && errno == EINTR) {
        }
        context = NULL;
    }
    pthread_mutex_unlock(&context_lock);
}

int option_int(void *socket, int option, const char *name, int value, struct kvf_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return 0;
    return kvf_fail(err, KVF_EIO, "socket option %s = %d: %s", name, value, zmq_strerror(errno));
}

int option_text(void *socket, int option, const char *name, const char *value, struct kvf_err *err)
{
    /* The value is not in the line: it may be a secret key. */
    if (zmq_setsockopt(socket, option, value, strlen(value)) == 0) return 0;
    return kvf_fail(err, KVF_EIO, "socket option %s: %s", name, zmq_strerror(errno));
}

/* libzmq takes tcp://host:999999 and uses another port. */
static int endpoint_is_good(const char *endpoint)
{
    if (strncmp(endpoint, "ipc://", 6) == 0) return endpoint[6] != 0;
    if (strncmp(endpoint, "tcp://", 6) != 0) return 0;
    const char *colon = strrchr(endpoint + 6, ':');
    if (colon == NULL || colon == endpoint + 6) return 0;
    if (strcmp(colon + 1, "*") == 0) return 1;
    size_t digits = strspn(colon + 1, "0123456789");
    return digits >= 1 && digits <= 5 && colon[1 + digits] == 0 && atoi(colon + 1) <= 65535;
}

int options_common(void *socket, const char *endpoint, struct kvf_err *err)
{
    if (!endpoint_is_good(endpoint))
        return kvf_fail(err, KVF_EINVAL, "endpoint %s: expected tcp://HOST:PORT or ipc://PATH", endpoint);
    int64_t frame_max = FRAME_BYTES_MAX;
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) != 0)
        return kvf_fail(err, KVF_EIO, "socket option MAXMSGSIZE: %s", zmq_strerror(errno));
    int code;
    if ((code = option_int(socket, ZMQ_SNDHWM, "SNDHWM", SOCKET_HWM, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_RCVHWM, "RCVHWM", SOCKET_HWM, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_LINGER, "LINGER", 0, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_HANDSHAKE_IVL, "HANDSHAKE_IVL", HANDSHAKE_IVL_MS, err)) != 0) return code;
    if ((code = option_int(socket, ZMQ_TCP_MAXRT, "TCP_MAXRT", TCP_MAXRT_MS, err)) != 0) return code;
    /* Only where it is asked for by a literal address: with it on, IPv4 addresses would show as mapped ones. */
    return strchr(endpoint, '[') == NULL ? 0 : option_int(socket, ZMQ_IPV6, "IPV6", 1, err);
}

int frame_send(void *socket, const void *bytes, size_t len, bool more)
{
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, len) != 0) return errno;
    if (len > 0) memcpy(zmq_msg_data(&frame), bytes, len);
    int rc;
    do rc = zmq_msg_send(&frame, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    while (rc < 0 && errno == EINTR);
    if (rc >= 0) return 0;
    int failed = errno;
    zmq_msg_close(&frame);
    return failed;
}

struct frames *frames_new(void)
{
    struct frames *frames = malloc(sizeof *frames);
    if (frames == NULL) return NULL;
    zmq_msg_init(&frames->header);
    zmq_msg_init(&frames->body);
    return frames;
}

void frames_free(struct frames **frames)
{
    if (*frames == NULL) return;
    zmq_msg_close(&(*frames)->header);
    zmq_msg_close(&(*frames)->body);
    free(*frames);
    *frames = NULL;
}

int frames_recv(void *socket, struct frames *frames)
{
    int n = 0, more = 1;
    zmq_msg_t surplus;
    zmq_msg_init(&surplus);
    while (more) {
        zmq_msg_t *frame = n == 0 ? &frames->header : n == 1 ? &frames->body : &surplus;
        int rc;
        do rc = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            int failed = errno;
            zmq_msg_close(&surplus);
            errno = failed;
            return -1;
        }
        more = zmq_msg_more(frame);
        n++;
    }
    zmq_msg_close(&surplus);
    return n;
}

int monitor_open(void *in_context, void *socket, struct monitor *out, struct kvf_err *err)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "inproc://kvfleet.monitor.%p", socket);
    *out = (struct monitor){socket, zmq_socket(in_context, ZMQ_PAIR)};
    if (out->pair == NULL || zmq_socket_monitor(socket, endpoint, ZMQ_EVENT_ALL) != 0 ||
        zmq_connect(out->pair, endpoint) != 0) {
        int failed = errno;
        monitor_close(out);
        return kvf_fail(err, KVF_EIO, "socket monitor: %s", zmq_strerror(failed));
    }
    int linger = 0;
    zmq_setsockopt(out->pair, ZMQ_LINGER, &linger, sizeof linger);
    return 0;
}

void monitor_close(struct monitor *monitor)
{
    if (monitor->monitored != NULL) zmq_socket_monitor(monitor->monitored, NULL, 0);
    if (monitor->pair != NULL) zmq_close(monitor->pair);
    *monitor = (struct monitor){NULL, NULL};
}

int monitor_next(struct monitor *monitor, int *event, uint32_t *value)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    int found = 0;
    if (zmq_msg_recv(&frame, monitor->pair, ZMQ_DONTWAIT) >= 0) {
        uint16_t number = 0;
        *value = 0;
        if (zmq_msg_size(&frame) == sizeof number + sizeof *value) {
            memcpy(&number, zmq_msg_data(&frame), sizeof number);
            memcpy(value, (char *)zmq_msg_data(&frame) + sizeof number, sizeof *value);
        }
        *event = number;
        while (zmq_msg_more(&frame) && zmq_msg_recv(&frame, monitor->pair, ZMQ_DONTWAIT) >= 0) {
        }
        found = 1;
    }
    zmq_msg_close(&frame);
    return found;
}

static int stranger_verdict(struct monitor *monitor, int64_t deadline_ms, struct kvf_err *err)
{
    const char *last = "no answer";
    for (;;) {
        int event;
        uint32_t value;
        while (monitor_next(monitor, &event, &value)) {
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && value == 400) return 0;
            if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
                return kvf_fail(err, KVF_EDENIED, "self-test: expected a random key to be refused, it was let in");
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) last = "a closed connection";
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) last = "another refusal";
        }
        int64_t left = deadline_ms - clock_ms();
        if (left <= 0)
            return kvf_fail(err, KVF_EDENIED, "self-test: expected a random key to be refused with status 400, got %s",
                            last);
        zmq_pollitem_t item = {monitor->pair, 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, (long)left);
    }
}

int strangers_refused(const char *endpoint, const char *server_public_z85, int timeout_ms, struct kvf_err *err)
{
    void *in_context = context_take();
    if (in_context == NULL) return kvf_fail(err, KVF_EIO, "self-test: %s", zmq_strerror(errno));
    void *stranger = zmq_socket(in_context, ZMQ_DEALER);
    struct monitor monitor = {NULL, NULL};
    char public_z85[KEY_Z85_LEN + 1], secret_z85[KEY_Z85_LEN + 1];
    int code = stranger == NULL || zmq_curve_keypair(public_z85, secret_z85) != 0
                   ? kvf_fail(err, KVF_EIO, "self-test: %s", zmq_strerror(errno))
                   : 0;
    if (code == 0) code = options_common(stranger, endpoint, err);
    if (code == 0) code = option_text(stranger, ZMQ_CURVE_SERVERKEY, "CURVE_SERVERKEY", server_public_z85, err);
    if (code == 0) code = option_text(stranger, ZMQ_CURVE_PUBLICKEY, "CURVE_PUBLICKEY", public_z85, err);
    if (code == 0) code = option_text(stranger, ZMQ_CURVE_SECRETKEY, "CURVE_SECRETKEY", secret_z85, err);
    if (code == 0) code = monitor_open(in_context, stranger, &monitor, err);
    if (code == 0 && zmq_connect(stranger, endpoint) != 0)
        code = kvf_fail(err, KVF_EIO, "self-test: connect to %s: %s", endpoint, zmq_strerror(errno));
    if (code == 0) code = stranger_verdict(&monitor, clock_ms() + timeout_ms, err);
    monitor_close(&monitor);
    if (stranger != NULL) zmq_close(stranger);
    context_drop();
    return code;
}
