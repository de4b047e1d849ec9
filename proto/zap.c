#include "proto/zap.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"

struct zap {
    void *socket; /* REP: the thread's own once it runs */
    int stop_fd;
    pthread_t thread;
    char folder[PATH_MAX];
    pthread_mutex_t lock;
    struct key_table keys; /* under lock */
    atomic_uint_least64_t denied;
};

/* A request has version, request id, domain, address, identity, mechanism, credentials. */
enum { ZAP_VERSION, ZAP_REQUEST, ZAP_FOR_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_KEY, ZAP_FRAMES };
#define ZAP_FRAME_MAX 256

struct zap_request {
    unsigned char frame[ZAP_FRAMES][ZAP_FRAME_MAX];
    size_t len[ZAP_FRAMES];
    int n; /* all that came, also those beyond ZAP_FRAMES */
    int oversize;
};

static int request_recv(void *socket, struct zap_request *request)
{
    request->n = 0;
    request->oversize = 0;
    int more = 1;
    while (more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        int rc;
        do rc = zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            zmq_msg_close(&frame);
            return -1;
        }
        size_t len = zmq_msg_size(&frame);
        if (request->n < ZAP_FRAMES) {
            if (len > ZAP_FRAME_MAX) request->oversize = 1;
            request->len[request->n] = len > ZAP_FRAME_MAX ? 0 : len;
            memcpy(request->frame[request->n], zmq_msg_data(&frame), request->len[request->n]);
        }
        request->n++;
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    return 0;
}

static int frame_is(const struct zap_request *request, int index, const char *text)
{
    return request->len[index] == strlen(text) && memcmp(request->frame[index], text, request->len[index]) == 0;
}

/* Name of the key to let in, or 0. Anything unusual is refused. */
static int request_allowed(struct zap *zap, const struct zap_request *request, char key_z85[KEY_Z85_LEN + 1])
{
    if (request->n != ZAP_FRAMES || request->oversize) return 0;
    if (!frame_is(request, ZAP_VERSION, "1.0") || !frame_is(request, ZAP_FOR_DOMAIN, ZAP_DOMAIN)) return 0;
    if (!frame_is(request, ZAP_MECHANISM, "CURVE") || request->len[ZAP_KEY] != KEY_BYTES) return 0;
    pthread_mutex_lock(&zap->lock);
    const struct key_entry *entry = key_table_find(&zap->keys, request->frame[ZAP_KEY]);
    if (entry != NULL) memcpy(key_z85, entry->key_z85, KEY_Z85_LEN + 1);
    pthread_mutex_unlock(&zap->lock);
    return entry != NULL;
}

/* Every request gets its answer, malformed ones too: a REP socket that owes one is stuck for good. */
static void request_answer(struct zap *zap, const struct zap_request *request)
{
    char key_z85[KEY_Z85_LEN + 1] = "";
    int allowed = request_allowed(zap, request, key_z85);
    if (!allowed) atomic_fetch_add(&zap->denied, 1);
    const char *status = allowed ? "200" : "400", *text = allowed ? "OK" : "unknown key";
    size_t id_len = request->n > ZAP_REQUEST ? request->len[ZAP_REQUEST] : 0;
    zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(zap->socket, request->frame[ZAP_REQUEST], id_len, ZMQ_SNDMORE);
    zmq_send(zap->socket, status, strlen(status), ZMQ_SNDMORE);
    zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(zap->socket, key_z85, strlen(key_z85), ZMQ_SNDMORE); /* User-Id of every message of this peer */
    zmq_send(zap->socket, "", 0, 0);
}

static void *zap_run(void *arg)
{
    struct zap *zap = arg;
    struct zap_request request;
    for (;;) {
        zmq_pollitem_t items[] = {{zap->socket, 0, ZMQ_POLLIN, 0}, {NULL, zap->stop_fd, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, 2, -1) < 0 && errno != EINTR) break;
        if (items[1].revents != 0) break;
        while (request_recv(zap->socket, &request) == 0) request_answer(zap, &request);
    }
    zmq_close(zap->socket);
    return NULL;
}

int zap_start(void *context, const char *key_folder, struct zap **out, struct kvf_err *err)
{
    *out = NULL;
    struct zap *zap = calloc(1, sizeof *zap);
    if (zap == NULL) return kvf_fail(err, KVF_ENOMEM, "ZAP handler: out of memory");
    pthread_mutex_init(&zap->lock, NULL);
    zap->stop_fd = -1;
    int code = 0;
    if (snprintf(zap->folder, sizeof zap->folder, "%s", key_folder) >= (int)sizeof zap->folder)
        code = kvf_fail(err, KVF_EINVAL, "key folder %s: path is too long", key_folder);
    if (code == 0) code = key_table_load(key_folder, &zap->keys, err);
    if (code == 0) {
        int linger = 0;
        zap->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (zap->stop_fd >= 0) zap->socket = zmq_socket(context, ZMQ_REP);
        if (zap->socket == NULL || zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof linger) != 0)
            code = kvf_fail(err, KVF_EIO, "ZAP handler: %s", zmq_strerror(errno));
        else if (zmq_bind(zap->socket, ZAP_ENDPOINT) != 0)
            code = kvf_fail(err, errno == EADDRINUSE ? KVF_ECONFLICT : KVF_EIO, "ZAP handler %s: %s", ZAP_ENDPOINT,
                            errno == EADDRINUSE ? "this process has one already" : zmq_strerror(errno));
    }
    if (code == 0) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
        int failed = pthread_create(&zap->thread, NULL, zap_run, zap);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (failed == 0) {
            *out = zap;
            return 0;
        }
        code = kvf_fail(err, KVF_EIO, "ZAP handler: thread: %s", strerror(failed));
    }
    if (zap->socket != NULL) zmq_close(zap->socket);
    if (zap->stop_fd >= 0) close(zap->stop_fd);
    key_table_free(&zap->keys);
    pthread_mutex_destroy(&zap->lock);
    free(zap);
    return code;
}

void zap_stop(struct zap **zap)
{
    if (*zap == NULL) return;
    eventfd_write((*zap)->stop_fd, 1);
    pthread_join((*zap)->thread, NULL);
    close((*zap)->stop_fd);
    key_table_free(&(*zap)->keys);
    pthread_mutex_destroy(&(*zap)->lock);
    free(*zap);
    *zap = NULL;
}

int zap_reload(struct zap *zap, struct kvf_err *err)
{
    struct key_table keys;
    int code = key_table_load(zap->folder, &keys, err);
    if (code != 0) return code;
    pthread_mutex_lock(&zap->lock);
    for (size_t i = 0; i < zap->keys.n_slots; i++) {
        if (zap->keys.slots[i].role == ROLE_NONE) continue;
        struct key_entry *entry = key_table_find(&keys, zap->keys.slots[i].key);
        if (entry != NULL) entry->strikes = zap->keys.slots[i].strikes;
    }
    struct key_table old = zap->keys;
    zap->keys = keys;
    pthread_mutex_unlock(&zap->lock);
    key_table_free(&old);
    return 0;
}

static struct key_entry *entry_of(struct zap *zap, const char *key_z85)
{
    unsigned char key[KEY_BYTES];
    if (strlen(key_z85) != KEY_Z85_LEN || zmq_z85_decode(key, key_z85) == NULL) return NULL;
    return key_table_find(&zap->keys, key);
}

int zap_find(struct zap *zap, const char *key_z85, enum key_role *role, char name[64])
{
    pthread_mutex_lock(&zap->lock);
    const struct key_entry *entry = entry_of(zap, key_z85);
    if (entry != NULL) {
        *role = entry->role;
        memcpy(name, entry->name, sizeof entry->name);
    }
    pthread_mutex_unlock(&zap->lock);
    return entry != NULL;
}

uint64_t zap_strike(struct zap *zap, const char *key_z85)
{
    pthread_mutex_lock(&zap->lock);
    struct key_entry *entry = entry_of(zap, key_z85);
    uint64_t strikes = entry == NULL ? 0 : ++entry->strikes;
    pthread_mutex_unlock(&zap->lock);
    return strikes;
}

uint64_t zap_denied(struct zap *zap)
{
    return atomic_load(&zap->denied);
}
