/* loop.c: the worker process: opens its models, starts the engine's thread, and runs the network's thread (the
 * caller's): the socket, the clock, and the session between them. */
#include "worker/fleet.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "engine/engine.h"
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/wire.h"
#include "worker/handover.h"
#include "worker/machine.h"
#include "worker/runner.h"
#include "worker/session.h"

#define WAIT_MAX_MS 200  /* a signal that comes just before the wait is seen after so long */
#define FAREWELL_MS 2000 /* for BYE to leave the socket */
#define REOPEN_MS   1000 /* after a socket that could not be made */
#define MODELS_MAX  64

struct loop {
    const struct worker_options *options;
    struct wire_dealer *dealer;
    struct session *session;
    struct handover *handover;
    int64_t reopen_ms;
};

/* ---- who we are ---- */

struct identity {
    char instance[33], host[256], device[256], kernel_set[32];
    struct runner_model models[MODELS_MAX];
    struct rec_model names[MODELS_MAX];
    int n_models;
};

static int instance_make(char text[33], struct kvf_err *err)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return kvf_fail(err, KVF_EIO, "getrandom: %s", strerror(errno));
    for (size_t k = 0; k < sizeof bytes; k++) snprintf(text + 2 * k, 3, "%02x", bytes[k]);
    return 0;
}

static int models_read(const char *const *folders, struct identity *me, struct kvf_err *err)
{
    for (; folders[me->n_models] != NULL; me->n_models++) {
        const char *folder = folders[me->n_models];
        if (me->n_models == MODELS_MAX)
            return kvf_fail(err, KVF_EINVAL, "models: expected at most %d folders, got more", MODELS_MAX);
        struct runner_model *model = &me->models[me->n_models];
        model->folder = strdup(folder);
        if (model->folder == NULL) return kvf_fail(err, KVF_ENOMEM, "models: out of memory");
        size_t len = strlen(model->folder);
        while (len > 1 && model->folder[len - 1] == '/') model->folder[--len] = 0;
        const char *base = strrchr(model->folder, '/');
        snprintf(model->name, sizeof model->name, "%s", base == NULL || base[1] == 0 ? model->folder : base + 1);
        int rc = engine_model_hash(model->folder, model->hash, err);
        if (rc != 0) {
            free(model->folder);
            return rc;
        }
        me->names[me->n_models].name = str_of(model->name);
        me->names[me->n_models].hash = str_of(model->hash);
    }
    if (me->n_models == 0) return kvf_fail(err, KVF_EINVAL, "models: expected at least one model folder, got none");
    return 0;
}

static void identity_free(struct identity *me)
{
    for (int k = 0; k < me->n_models; k++) free(me->models[k].folder);
    free(me);
}

static struct msg_hello hello_of(const struct worker_options *options, struct identity *me,
                                 const struct engine_info *info)
{
    struct msg_hello hello;
    msg_init(MSG_HELLO_TYPE, &hello);
    hello.proto_min = hello.proto_max = MSG_PROTO_MAJOR;
    hello.instance = str_of(me->instance);
    hello.host = str_of(me->host);
    hello.pid = (uint64_t)getpid();
    hello.version = str_of(options->version);
    hello.revision = str_of(options->revision);
    hello.build_flags = str_of(options->build_flags);
    hello.backend = str_of("cpu");
    /* HELLO is said again after the engine was closed for another model. */
    snprintf(me->kernel_set, sizeof me->kernel_set, "%s", info->kernel_set);
    hello.kernel_set = str_of(me->kernel_set);
    hello.device = str_of(me->device);
    hello.threads = (uint64_t)info->threads;
    hello.max_batch = (uint64_t)info->max_batch;
    int64_t memory = machine_memory_bytes();
    hello.memory_bytes = memory < 0 ? MSG_NULL_INT : memory;
    hello.models = me->names;
    hello.n_models = (uint32_t)me->n_models;
    return hello;
}

/* ---- what the session calls ---- */

static int call_send(void *user, int type, const void *msg, struct kvf_err *err)
{
    struct loop *loop = user;
    return loop->dealer == NULL ? KVF_EAGAIN : wire_dealer_send(loop->dealer, type, msg, err);
}

static void call_lease(void *user, struct lease *lease)
{
    handover_lease(((struct loop *)user)->handover, lease);
}

static void call_revoke(void *user, int64_t fence)
{
    struct kvf_err why = {""};
    if (handover_revoke(((struct loop *)user)->handover, fence, &why) != 0)
        log_event(LOG_ERROR_LEVEL, "revoke_lost", "why=\"%s\"", why.text);
}

static void call_drain(void *user)
{
    handover_drain(((struct loop *)user)->handover);
}

static void call_abandon(void *user)
{
    handover_abandon(((struct loop *)user)->handover);
}

/* ---- the network's thread ---- */

/* Makes the socket exist or not, as the session wants. */
static int socket_settle(struct loop *loop, int64_t now_ms, struct kvf_err *err)
{
    if (!session_wants_socket(loop->session)) {
        wire_dealer_close(&loop->dealer, session_state(loop->session) == SESSION_OVER ? FAREWELL_MS : 0);
        return 0;
    }
    if (loop->dealer != NULL || now_ms < loop->reopen_ms) return 0;
    int rc = wire_dealer_open(loop->options->coordinator, loop->options->keys, loop->options->key, &loop->dealer, err);
    if (rc != 0) {
        loop->dealer = NULL;
        loop->reopen_ms = now_ms + REOPEN_MS;
        return rc;
    }
    session_opened(loop->session, now_ms);
    return 0;
}

static void messages_take(struct loop *loop, int64_t now_ms)
{
    while (loop->dealer != NULL && session_wants_socket(loop->session)) {
        struct wire_message message;
        struct kvf_err why = {""};
        int rc = wire_dealer_recv(loop->dealer, &message, &why);
        if (rc == KVF_EAGAIN) return;
        if (rc != 0) {
            log_event(LOG_WARN_LEVEL, "message_refused", "why=\"%s\"", why.text);
            if (rc != KVF_ECORRUPT && rc != KVF_EDENIED) return;
            continue;
        }
        session_receive(loop->session, message.in.type, message.in.body, now_ms);
        wire_message_free(&message);
    }
}

static void wait_until(struct loop *loop, int64_t until_ms)
{
    int64_t wait = until_ms - clock_ms();
    if (wait < 0) wait = 0;
    if (wait > WAIT_MAX_MS) wait = WAIT_MAX_MS;
    if (loop->dealer != NULL) {
        (void)wire_dealer_wait(loop->dealer, handover_fd(loop->handover), (int)wait);
        return;
    }
    struct timespec pause = {wait / 1000, wait % 1000 * 1000000};
    nanosleep(&pause, NULL); /* no connection: nothing can be told to anybody before the session wants one */
}

static void loop_run(struct loop *loop, const volatile sig_atomic_t *signals)
{
    while (session_state(loop->session) != SESSION_OVER) {
        int64_t now_ms = clock_ms();
        struct kvf_err why = {""};
        struct reports reports;
        if (*signals != 0) session_drain(loop->session, now_ms);
        handover_take_reports(loop->handover, &reports);
        session_reports(loop->session, &reports, now_ms);
        messages_take(loop, now_ms);
        if (loop->dealer != NULL) session_trouble(loop->session, wire_dealer_trouble(loop->dealer), now_ms);
        int64_t next_ms = session_tick(loop->session, now_ms);
        if (socket_settle(loop, now_ms, &why) != 0)
            log_event(LOG_ERROR_LEVEL, "socket_failed", "why=\"%s\"", why.text);
        else if (session_state(loop->session) != SESSION_OVER)
            wait_until(loop, next_ms);
    }
}

/* ---- start and end ---- */

static int backend_check(const char *backend, struct kvf_err *err)
{
    if (strcmp(backend, "auto") == 0 || strcmp(backend, "cpu") == 0) return 0;
    if (strcmp(backend, "cuda") == 0)
        return kvf_fail(err, KVF_EUNSUPPORTED, "backend: this build has no CUDA backend; expected auto or cpu");
    return kvf_fail(err, KVF_EINVAL, "backend: expected auto or cpu, got \"%s\"", backend);
}

/* Runs the fleet loop around an open engine, which it takes over. */
static int engine_serve(struct loop *loop, struct identity *me, const struct engine_options *engine_options,
                        struct engine *engine, const volatile sig_atomic_t *signals, const sigset_t *usual,
                        struct kvf_err *err)
{
    struct runner *runner = NULL;
    pthread_t thread;
    unsigned jitter = 1;
    memcpy(&jitter, me->instance, sizeof jitter);
    struct session_options session_options = {
        .hello = hello_of(loop->options, me, engine_info(engine)),
        .max_batch = engine_info(engine)->max_batch,
        .drain_ms = loop->options->drain_ms,
        .jitter = jitter,
        .endpoint = loop->options->coordinator,
        .key_name = loop->options->key,
    };
    struct session_calls calls = {loop, call_send, call_lease, call_revoke, call_drain, call_abandon};
    int rc = handover_new(&loop->handover, err);
    if (rc == 0) rc = runner_new(loop->handover, engine_options, me->models, me->n_models, 0, engine, &runner, err);
    if (rc != 0) {
        engine_close(&engine);
        goto out;
    }
    rc = session_new(&session_options, &calls, clock_ms(), &loop->session, err);
    if (rc != 0) goto out;
    /* The first socket is made here so that wrong settings end the program at once. */
    (void)session_tick(loop->session, clock_ms());
    rc = socket_settle(loop, clock_ms(), err);
    if (rc != 0) goto out;
    rc = pthread_create(&thread, NULL, runner_thread, runner);
    if (rc != 0) {
        rc = kvf_fail(err, KVF_EIO, "engine's thread: %s", strerror(rc));
        goto out;
    }
    pthread_sigmask(SIG_SETMASK, usual, NULL); /* every other thread is made */
    loop_run(loop, signals);
    handover_stop(loop->handover);
    pthread_join(thread, NULL);
    rc = session_outcome(loop->session, err);
out:
    wire_dealer_close(&loop->dealer, 0);
    session_destroy(&loop->session);
    runner_destroy(&runner);
    handover_destroy(&loop->handover);
    return rc;
}

int worker_run(const struct worker_options *options, const volatile sig_atomic_t *signals, struct kvf_err *err)
{
    int rc = backend_check(options->backend, err);
    if (rc != 0) return rc;
    struct identity *me = calloc(1, sizeof *me);
    if (me == NULL) return kvf_fail(err, KVF_ENOMEM, "out of memory");
    machine_host(me->host, sizeof me->host);
    machine_device(me->device, sizeof me->device);
    sigset_t everything, before;
    /* Threads made from here on must leave signals to the main thread, whose wait they end; but not SIGBUS: a lost page of
     * the model is told by the thread that touches it (lost_file.h), and blocked it ends the process without a word. */
    sigfillset(&everything);
    sigdelset(&everything, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &everything, &before);
    struct engine_options engine_options = {
        .kernels = options->kernels,
        .kv_type = options->kv_type,
        .threads = options->threads > 0 ? options->threads : machine_cores(),
        .max_batch = options->max_batch,
        .prefill_chunk_tokens = options->prefill_chunk_tokens,
        .kv_bytes = options->kv_bytes,
    };
    struct engine *engine = NULL;
    struct loop loop = {.options = options};
    rc = instance_make(me->instance, err);
    if (rc == 0) rc = models_read(options->models, me, err);
    if (rc == 0) {
        engine_options.model_folder = me->models[0].folder;
        rc = engine_open(&engine_options, &engine, err);
    }
    if (rc == 0) {
        const struct engine_info *info = engine_info(engine);
        log_event(LOG_INFO_LEVEL, "worker_started",
                  "model=%s hash=%.16s kernels=%s threads=%d max_batch=%d kv_bytes=%lld", me->models[0].name,
                  info->model_hash, info->kernel_set, info->threads, info->max_batch,
                  (long long)info->kv_reserved_bytes);
        rc = engine_serve(&loop, me, &engine_options, engine, signals, &before, err);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    identity_free(me);
    return rc;
}
