#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/server_internal.h"
#include "proto/log.h"

/* ---- peers ---- */

struct peer *peer_find(const struct server *server, const struct wire_peer *wire)
{
    struct peer *peer = map_get(&server->peer_by_id, wire->id, wire->id_len);

    return peer != NULL && strcmp(peer->wire.key_z85, wire->key_z85) == 0 ? peer : NULL;
}

void peer_drop(struct server *server, struct peer *peer)
{
    map_remove(&server->peer_by_id, peer->wire.id, peer->wire.id_len);
    map_remove(&server->peer_by_instance, peer->instance, strlen(peer->instance));
    if (peer->worker != NULL) queue_worker_remove(&server->queue, peer->worker);
    if (peer->prev != NULL)
        peer->prev->next = peer->next;
    else
        server->peers = peer->next;
    if (peer->next != NULL) peer->next->prev = peer->prev;
    free(peer);
}

void peer_heard(struct server *server, struct peer *peer)
{
    peer->heard_ms = server->now_ms;
    peer->seen = true;
    if (!peer->silent) return;
    peer->silent = false;
    log_event(LOG_INFO_LEVEL, "worker_back", "run=%" PRId64 " worker=%s@%s", peer->run_id, peer->wire.key_name,
              peer->host);
}

void peer_goaway(struct server *server, const struct wire_peer *wire, const char *code, const char *reason)
{
    struct msg_goaway msg;

    msg_init(MSG_GOAWAY_TYPE, &msg);
    msg.code = str_of(code);
    msg.reason = str_of(reason);
    if (msg.reason.len > 255) msg.reason.len = 255;
    msg.retry_ms = 1000;
    server_send(server, wire, MSG_GOAWAY_TYPE, &msg);
}

void peer_revoke(struct server *server, const struct wire_peer *wire, int64_t fence, const char *reason)
{
    struct msg_revoke msg;

    msg_init(MSG_REVOKE_TYPE, &msg);
    msg.fence = (uint64_t)fence;
    msg.reason = str_of(reason);
    if (msg.reason.len > 255) msg.reason.len = 255;
    server_send(server, wire, MSG_REVOKE_TYPE, &msg);
}

/* ---- HELLO ---- */

static void welcome(struct server *server, const struct peer *peer)
{
    struct msg_welcome msg;

    msg_init(MSG_WELCOME_TYPE, &msg);
    msg.proto = MSG_PROTO_MAJOR;
    msg.epoch = (uint64_t)server->epoch;
    msg.lease_ms = (uint64_t)server->options->lease_ms;
    msg.heartbeat_ms = (uint64_t)server->options->heartbeat_ms;
    msg.run_id = (uint64_t)peer->run_id;
    server_send(server, &peer->wire, MSG_WELCOME_TYPE, &msg);
}

static bool peer_rebind(struct server *server, struct peer *peer, const struct wire_peer *wire)
{
    map_remove(&server->peer_by_id, peer->wire.id, peer->wire.id_len);
    peer->wire = *wire;
    if (map_put(&server->peer_by_id, wire->id, wire->id_len, peer) == KVF_OK) return true;
    peer_drop(server, peer);
    return false;
}

static struct peer *peer_new(struct server *server, const struct wire_peer *wire, const struct msg_hello *hello,
                             int64_t run_id)
{
    struct peer *peer = calloc(1, sizeof *peer);
    struct kvf_err err = {"out of memory"};

    if (peer == NULL) return NULL;
    peer->wire = *wire;
    peer->run_id = run_id;
    snprintf(peer->instance, sizeof peer->instance, "%.*s", (int)hello->instance.len, hello->instance.text);
    snprintf(peer->host, sizeof peer->host, "%.*s", (int)hello->host.len, hello->host.text);
    peer->next = server->peers;
    if (server->peers != NULL) server->peers->prev = peer;
    server->peers = peer;
    if (map_put(&server->peer_by_id, wire->id, wire->id_len, peer) == KVF_OK &&
        map_put(&server->peer_by_instance, peer->instance, strlen(peer->instance), peer) == KVF_OK &&
        queue_worker_add(&server->queue, run_id, hello->models, hello->n_models, &peer->worker, &err) == KVF_OK) {
        peer->worker->owner = peer;
        return peer;
    }
    log_event(LOG_ERROR_LEVEL, "worker_refused", "why=%s", err.text);
    peer_drop(server, peer);
    return NULL;
}

bool worker_hello(struct server *server, const struct wire_peer *wire, const struct msg_hello *hello)
{
    struct peer *peer = map_get(&server->peer_by_instance, hello->instance.text, hello->instance.len);
    struct peer *same_id = peer_find(server, wire);
    struct kvf_err err = {""};
    char reason[200];
    int64_t run_id;
    int code;

    if (hello->proto_min > MSG_PROTO_MAJOR || hello->proto_max < MSG_PROTO_MAJOR || hello->instance.len == 0) {
        snprintf(reason, sizeof reason, "expected protocol version %d, the worker speaks %" PRIu64 " to %" PRIu64,
                 MSG_PROTO_MAJOR, hello->proto_min, hello->proto_max);
        peer_goaway(server, wire, "version", reason);
        return true;
    }
    if (peer != NULL && strcmp(peer->wire.key_z85, wire->key_z85) != 0) {
        peer_goaway(server, wire, "duplicate", "another key's process has this instance id");
        return true;
    }
    if (same_id != NULL && same_id != peer) peer_drop(server, same_id);
    if (peer != NULL) { /* a new connection, or a word into a silence: known, so no need of the database */
        if (same_id != peer && !peer_rebind(server, peer, wire)) return true;
        peer->denied = false;
        peer_heard(server, peer);
        welcome(server, peer);
        return true;
    }
    if (!server_can_write(server)) return false;
    code = store_run_begin(&server->store, wire->key_name, hello, &run_id, &err);
    if (code == KVF_EDENIED) {
        peer_goaway(server, wire, "duplicate", err.text);
        return true;
    }
    if (code != KVF_OK) return !server_write_failed(server, "hello_failed", code, &err);
    peer = peer_new(server, wire, hello, run_id);
    if (peer == NULL) return true;
    peer_heard(server, peer);
    welcome(server, peer);
    log_event(LOG_INFO_LEVEL, "worker_joined",
              "run=%" PRId64 " worker=%s@%s pid=%" PRIu64 " kernel_set=%.*s device=%.*s models=%u leases=%u", run_id,
              wire->key_name, peer->host, hello->pid, (int)hello->kernel_set.len, hello->kernel_set.text,
              (int)hello->device.len, hello->device.text, hello->n_models, peer->worker->n_leases);
    return true;
}

/* ---- READY, RELEASE, BYE ---- */

static bool ended_well(const struct peer *peer, int64_t fence)
{
    for (int i = 0; i < RECENT_FENCES; i++)
        if (peer->recent[i] == fence) return true;
    return false;
}

void worker_ready(struct server *server, const struct wire_peer *wire, const struct msg_ready *ready)
{
    struct peer *peer = peer_find(server, wire);

    if (peer == NULL) {
        peer_goaway(server, wire, "unknown_peer", "say HELLO first");
        return;
    }
    peer_heard(server, peer);
    queue_worker_ready(&server->queue, peer->worker, (uint32_t)ready->credit, ready->leases, ready->n_leases,
                       server->now_ms);
    if (!server->db_up) return; /* which leases are active is not known for sure */
    for (uint32_t i = 0; i < ready->n_leases; i++) {
        int64_t fence = (int64_t)ready->leases[i].fence;
        const struct queue_lease *lease = queue_lease_find(&server->queue, fence);
        if ((lease == NULL || lease->worker != peer->worker) && !ended_well(peer, fence))
            peer_revoke(server, wire, fence, "the lease has ended");
    }
}

bool worker_release(struct server *server, const struct wire_peer *wire, const struct msg_release *release)
{
    struct peer *peer = peer_find(server, wire);
    struct kvf_err err = {""};
    int64_t *fences;
    uint32_t n = 0;
    int code;

    if (peer == NULL) {
        peer_goaway(server, wire, "unknown_peer", "say HELLO first");
        return true;
    }
    peer_heard(server, peer);
    intake_commit(server); /* what it sent before counts */
    if (!server_can_write(server)) return false;
    fences = calloc((size_t)release->n_leases + 1, sizeof *fences);
    if (fences == NULL) return true; /* they expire */
    for (uint32_t i = 0; i < release->n_leases; i++) {
        const struct queue_lease *lease = queue_lease_find(&server->queue, (int64_t)release->leases[i].fence);
        if (lease != NULL && lease->worker == peer->worker) fences[n++] = lease->fence;
    }
    code = n == 0 ? KVF_OK : store_leases_end(&server->store, fences, n, "released", &err);
    if (code == KVF_OK)
        for (uint32_t i = 0; i < n; i++) {
            struct queue_lease *lease = queue_lease_find(&server->queue, fences[i]);
            if (lease != NULL) queue_lease_end(&server->queue, lease, true);
        }
    free(fences);
    if (code != KVF_OK) return !server_write_failed(server, "release_failed", code, &err);
    if (n > 0)
        log_event(LOG_INFO_LEVEL, "leases_released", "run=%" PRId64 " leases=%u reason=%.*s", peer->run_id, n,
                  (int)release->reason.len, release->reason.text);
    return true;
}

/* Leases that it still had go back at once. False: not before the database can be written. */
static bool peer_leave(struct server *server, struct peer *peer, struct str reason)
{
    struct kvf_err err = {""};
    int code = KVF_OK;

    intake_commit(server);
    if (!server_can_write(server)) return false;
    while (peer->worker->leases != NULL && code == KVF_OK) {
        struct queue_lease *lease = peer->worker->leases;
        code = store_leases_end(&server->store, &lease->fence, 1, "released", &err);
        if (code == KVF_OK) queue_lease_end(&server->queue, lease, true);
    }
    if (code == KVF_OK) code = store_run_end(&server->store, peer->run_id, reason, &err);
    if (code != KVF_OK && server_write_failed(server, "bye_failed", code, &err)) return false;
    log_event(LOG_INFO_LEVEL, "worker_left", "run=%" PRId64 " worker=%s@%s reason=%.*s", peer->run_id,
              peer->wire.key_name, peer->host, (int)reason.len, reason.text);
    peer_drop(server, peer);
    return true;
}

bool worker_bye(struct server *server, const struct wire_peer *wire, const struct msg_bye *bye)
{
    struct peer *peer = peer_find(server, wire);

    return peer == NULL || peer_leave(server, peer, bye->reason);
}

void worker_denied(struct server *server, const struct wire_peer *wire)
{
    struct peer *peer = peer_find(server, wire);

    if (peer == NULL || peer_leave(server, peer, str_of("key revoked"))) return;
    peer->denied = true;
    queue_worker_silent(&server->queue, peer->worker);
}

/* ---- time ---- */

static void runs_seen(struct server *server)
{
    struct kvf_err err = {""};
    int64_t *runs = calloc((size_t)server->queue.n_workers + 1, sizeof *runs);
    uint32_t n = 0;
    int code;

    if (runs == NULL) return;
    for (struct peer *peer = server->peers; peer != NULL; peer = peer->next)
        if (peer->seen && n < server->queue.n_workers) runs[n++] = peer->run_id;
    code = n == 0 ? KVF_OK : store_runs_seen(&server->store, runs, n, &err);
    free(runs);
    if (code != KVF_OK)
        server_write_failed(server, "last_seen_failed", code, &err);
    else
        for (struct peer *peer = server->peers; peer != NULL; peer = peer->next) peer->seen = false;
}

void workers_housekeeping(struct server *server)
{
    int64_t silence_ms = SILENT_HEARTBEATS * server->options->heartbeat_ms;
    int64_t forget_ms = server->options->lease_ms > silence_ms ? server->options->lease_ms : silence_ms;
    struct peer *peer, *next;

    for (peer = server->peers; peer != NULL; peer = next) {
        int64_t silent_ms = server->now_ms - peer->heard_ms;
        struct kvf_err err = {""};
        int code;
        next = peer->next;
        if (peer->denied && peer_leave(server, peer, str_of("key revoked"))) continue;
        if (silent_ms < silence_ms || server->now_ms < server->queue.hold_until_ms) continue;
        if (!peer->silent) {
            peer->silent = true;
            queue_worker_silent(&server->queue, peer->worker);
            log_event(LOG_WARN_LEVEL, "worker_silent", "run=%" PRId64 " worker=%s@%s for_ms=%" PRId64 " leases=%u",
                      peer->run_id, peer->wire.key_name, peer->host, silent_ms, peer->worker->n_leases);
        }
        if (silent_ms < forget_ms || peer->worker->n_leases > 0 || !server_can_write(server)) continue;
        code = store_run_end(&server->store, peer->run_id, str_of("silent"), &err);
        if (code != KVF_OK) {
            server_write_failed(server, "run_end_failed", code, &err);
            return;
        }
        log_event(LOG_WARN_LEVEL, "worker_lost", "run=%" PRId64 " worker=%s@%s", peer->run_id, peer->wire.key_name,
                  peer->host);
        peer_drop(server, peer);
    }
    if (server->now_ms < server->seen_ms || !server_can_write(server)) return;
    server->seen_ms = server->now_ms + 10000;
    runs_seen(server);
}

void leases_expire(struct server *server)
{
    struct queue_lease *lease;

    while (server_can_write(server) && (lease = queue_lease_expired(&server->queue, server->now_ms)) != NULL) {
        struct peer *peer = lease->worker == NULL ? NULL : lease->worker->owner;
        struct kvf_err err = {""};
        int code = store_leases_end(&server->store, &lease->fence, 1, "expired", &err);
        if (code != KVF_OK) {
            if (!server_write_failed(server, "expire_failed", code, &err))
                queue_hold(&server->queue, server->now_ms + 1000);
            return;
        }
        server->leases_expired++;
        log_event(LOG_WARN_LEVEL, "lease_expired",
                  "fence=%" PRId64 " job=%" PRId64 " run=%" PRId64 " samples=%u open=%u", lease->fence,
                  lease->job->job_id, lease->run_id, lease->n_samples, lease->n_open);
        if (peer != NULL) peer_revoke(server, &peer->wire, lease->fence, "the lease expired");
        queue_lease_end(&server->queue, lease, false);
    }
}

/* ---- lending ---- */

static bool lease_send(struct server *server, const struct queue_lease *lease)
{
    const struct queue_job *job = lease->job;
    const struct peer *peer = lease->worker->owner;
    struct rec_sample samples[QUEUE_LEASE_SAMPLES];
    struct rec_cell cells[QUEUE_LEASE_SAMPLES];
    struct msg_lease msg;

    msg_init(MSG_LEASE_TYPE, &msg);
    msg.fence = (uint64_t)lease->fence;
    msg.job_id = (uint64_t)job->job_id;
    msg.model_hash = str_of(job->model_hash);
    if (job->profile != NULL) msg.profile = str_of(job->profile);
    msg.cells = cells;
    msg.samples = samples;
    for (uint32_t i = 0; i < lease->n_samples; i++) {
        const struct queue_sample *sample = &job->samples[lease->samples[i]];
        const struct rec_cell *cell = &job->cells[sample->cell].spec;
        uint32_t known = 0;
        while (known < msg.n_cells && cells[known].cell_id != cell->cell_id) known++;
        if (known == msg.n_cells) cells[msg.n_cells++] = *cell;
        samples[msg.n_samples++] = (struct rec_sample){.sample_id = (uint64_t)sample->sample_id,
                                                       .cell_id = cell->cell_id,
                                                       .attempt = sample->attempts,
                                                       .seed = sample->seed,
                                                       .problem = job->problems[sample->problem].problem,
                                                       .answer = job->problems[sample->problem].answer};
    }
    return server_send(server, &peer->wire, MSG_LEASE_TYPE, &msg);
}

/* A lease that there is no memory for stays unknown to the queue: leases_send ends it. */
void leases_confirm(struct server *server, struct queue_lease *const *leases, const int64_t *fences, uint32_t n)
{
    struct kvf_err err = {""};

    for (uint32_t i = 0; i < n; i++)
        if (queue_lease_confirm(&server->queue, leases[i], fences[i], server->now_ms, &err) != KVF_OK)
            queue_lease_undo(&server->queue, leases[i]);
}

void leases_undo(struct server *server, struct queue_lease *const *leases, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) queue_lease_undo(&server->queue, leases[i]);
}

void leases_send(struct server *server, const int64_t *fences, uint32_t n)
{
    int64_t unsent[TURN_LEASES];
    uint32_t n_unsent = 0;
    struct kvf_err err = {""};
    int code;

    for (uint32_t i = 0; i < n; i++) {
        struct queue_lease *lease = queue_lease_find(&server->queue, fences[i]);
        if (lease != NULL && lease_send(server, lease)) continue;
        if (lease != NULL) {
            queue_worker_silent(&server->queue, lease->worker); /* until it asks again */
            queue_lease_end(&server->queue, lease, true);
        }
        unsent[n_unsent++] = fences[i];
    }
    if (n_unsent == 0) return;
    code = store_leases_end(&server->store, unsent, n_unsent, "released", &err);
    if (code != KVF_OK) server_write_failed(server, "release_failed", code, &err);
}

/* The fence is in the database before anybody hears of it. */
void leases_grant(struct server *server)
{
    struct queue_lease *leases[TURN_LEASES];
    int64_t granted[TURN_LEASES];
    struct store_turn turn = {.leases = leases, .granted = granted};
    struct kvf_err err = {""};
    int code;

    if (!server_can_write(server)) return;
    turn.n_leases = queue_grant(&server->queue, leases, TURN_LEASES);
    if (turn.n_leases == 0) return;
    code = store_turn_write(&server->store, &turn, &err);
    if (code != KVF_OK) {
        leases_undo(server, leases, turn.n_leases);
        if (!server_write_failed(server, "grant_failed", code, &err)) server->paused_until_ms = server->now_ms + 1000;
        return;
    }
    leases_confirm(server, leases, granted, turn.n_leases);
    leases_send(server, granted, turn.n_leases);
}
