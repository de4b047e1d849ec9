#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/server_internal.h"
#include "proto/log.h"

/* ---- what came in this turn ---- */

bool intake_is_full(const struct server *server)
{
    return server->intake.n_batches >= TURN_MESSAGES || server->intake.n_rows >= TURN_ROWS ||
           server->intake.bytes >= TURN_BYTES;
}

static void *list_room(void *list, uint32_t *cap, uint32_t need, size_t size)
{
    uint32_t grown = *cap == 0 ? 256 : *cap;
    void *more;

    if (need <= *cap) return list;
    while (grown < need) grown *= 2;
    more = realloc(list, grown * size);
    if (more != NULL) *cap = grown;
    return more;
}

static bool intake_room(struct intake *intake, uint32_t rows)
{
    uint32_t cap = intake->cap_rows, need = intake->n_rows + rows;
    void *batches = list_room(intake->batches, &intake->cap_batches, intake->n_batches + 1, sizeof *intake->batches);
    void *more;

    if (batches == NULL) return false;
    intake->batches = batches;
    if (need <= cap) return true;
    if ((more = list_room(intake->rows, &intake->cap_rows, need, sizeof *intake->rows)) == NULL) return false;
    intake->rows = more;
    if ((more = realloc(intake->stored, intake->cap_rows * sizeof *intake->stored)) == NULL) goto fail;
    intake->stored = more;
    if ((more = realloc(intake->done, intake->cap_rows * sizeof *intake->done)) == NULL) goto fail;
    intake->done = more;
    if ((more = realloc(intake->fences, intake->cap_rows * sizeof *intake->fences)) == NULL) goto fail;
    intake->fences = more;
    if ((more = realloc(intake->fenced, intake->cap_rows * sizeof *intake->fenced)) == NULL) goto fail;
    intake->fenced = more;
    return true;
fail:
    intake->cap_rows = cap;
    return false;
}

static void batch_ack(struct server *server, const struct wire_peer *wire, int64_t fence, uint64_t batch)
{
    struct msg_ack msg;

    msg_init(MSG_ACK_TYPE, &msg);
    msg.fence = (uint64_t)fence;
    msg.batch = batch;
    server_send(server, wire, MSG_ACK_TYPE, &msg);
}

/* Sent again after its lease ended: if all of it is settled the worker may forget it, else it is fenced off. */
static bool batch_unknown(struct server *server, const struct wire_peer *wire, const struct msg_result *result)
{
    struct kvf_err err = {""};
    bool known = false;
    int code =
        store_batch_known(&server->store, (int64_t)result->fence, result->results, result->n_results, &known, &err);

    if (code != KVF_OK) return !server_write_failed(server, "result_failed", code, &err);
    if (known) {
        server->results_duplicate += result->n_results;
        batch_ack(server, wire, (int64_t)result->fence, result->batch);
        return true;
    }
    server->results_fenced += result->n_results;
    log_event(LOG_WARN_LEVEL, "results_fenced", "fence=%" PRIu64 " rows=%u key=%s", result->fence, result->n_results,
              wire->key_name);
    peer_revoke(server, wire, (int64_t)result->fence, "the lease has ended");
    return true;
}

/* What the worker sent cannot be used: its lease ends, others try. */
static bool batch_invalid(struct server *server, const struct wire_peer *wire, struct queue_lease *lease,
                          const char *why)
{
    struct kvf_err err = {""};
    int64_t fence = lease->fence;
    int code;

    intake_commit(server); /* rows of this lease may be among what waits */
    if (!server_can_write(server)) return false;
    log_event(LOG_ERROR_LEVEL, "results_refused", "fence=%" PRId64 " key=%s why=%s", fence, wire->key_name, why);
    code = store_leases_end(&server->store, &fence, 1, "revoked", &err);
    if (code != KVF_OK && server_write_failed(server, "revoke_failed", code, &err)) return false;
    lease = queue_lease_find(&server->queue, fence);
    if (lease != NULL) queue_lease_end(&server->queue, lease, false);
    peer_revoke(server, wire, fence, why);
    return true;
}

static size_t text_bytes(const struct rec_result *result)
{
    return (size_t)result->text.len + result->error.len + result->extracted.len;
}

/* Checks the whole batch first, so that it counts as a whole or not at all. */
static int batch_check(const struct queue_lease *lease, const struct msg_result *result, struct kvf_err *err)
{
    for (uint32_t i = 0; i < result->n_results; i++) {
        const struct rec_result *row = &result->results[i];
        int place = queue_lease_place(lease, (int64_t)row->sample_id);
        int code = store_result_check(row, err);
        if (code != KVF_OK) return code;
        if (place == -1)
            return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 " is not one of lease %" PRId64, row->sample_id,
                            lease->fence);
        if (place >= 0 && lease->job->samples[lease->samples[place]].seed != row->seed)
            return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": expected seed %" PRIu64 ", got %" PRIu64,
                            row->sample_id, lease->job->samples[lease->samples[place]].seed, row->seed);
    }
    return KVF_OK;
}

/* After a reload a lease may hold fewer samples than it was granted; its results for the others count only where they
 * are in the database already, and must not be acknowledged away where they are not. */
static bool batch_strays(const struct queue_lease *lease, const struct msg_result *result)
{
    for (uint32_t i = 0; lease->partial && i < result->n_results; i++)
        if (queue_lease_place(lease, (int64_t)result->results[i].sample_id) < 0 &&
            !queue_sample_is_settled(lease->job, (int64_t)result->results[i].sample_id))
            return true;
    return false;
}

static void rows_claim(struct intake *intake, struct queue_lease *lease, const struct msg_result *result)
{
    for (uint32_t i = 0; i < result->n_results; i++) {
        struct rec_result *row = &result->results[i];
        int place = queue_lease_place(lease, (int64_t)row->sample_id);
        bool is_error = row->finish.len == 5 && memcmp(row->finish.text, "error", 5) == 0;
        if (place < 0 || lease->claimed & (1u << place)) continue; /* sent twice */
        lease->claimed |= 1u << place;
        row->attempt = lease->job->samples[lease->samples[place]].attempts;
        intake->rows[intake->n_rows++] =
            (struct intake_row){.lease = lease,
                                .place = place,
                                .is_error = is_error,
                                .failed = is_error && (int)row->attempt < lease->job->max_attempts,
                                .result = row};
        intake->bytes += text_bytes(row);
        if (is_error)
            log_event(LOG_WARN_LEVEL, "sample_error",
                      "job=%" PRId64 " sample=%" PRIu64 " attempt=%" PRIu64 " of=%d why=%.*s", lease->job->job_id,
                      row->sample_id, row->attempt, lease->job->max_attempts, (int)row->error.len,
                      row->error.text == NULL ? "" : row->error.text);
    }
}

bool intake_add(struct server *server, struct wire_message *message)
{
    const struct msg_result *result = message->in.body;
    struct peer *peer = peer_find(server, &message->peer);
    struct queue_lease *lease;
    struct kvf_err err = {""};

    if (peer == NULL) {
        peer_goaway(server, &message->peer, "unknown_peer", "say HELLO first");
        wire_message_free(message);
        return true;
    }
    peer_heard(server, peer);
    if (!server_can_write(server)) return false;
    if (intake_is_full(server)) intake_commit(server);
    if (!server_can_write(server)) return false;
    lease = queue_lease_find(&server->queue, (int64_t)result->fence);
    if (lease == NULL || lease->worker != peer->worker) {
        if (!batch_unknown(server, &message->peer, result)) return false;
        wire_message_free(message);
        return true;
    }
    queue_lease_renew(&server->queue, lease, server->now_ms);
    if (batch_check(lease, result, &err) != KVF_OK) {
        if (!batch_invalid(server, &message->peer, lease, err.text)) return false;
        wire_message_free(message);
        return true;
    }
    if (batch_strays(lease, result)) { /* the lease runs out by itself; whoever has its samples now brings them */
        peer_revoke(server, &message->peer, lease->fence, "some of its samples are lent to others");
        wire_message_free(message);
        return true;
    }
    if (!intake_room(&server->intake, result->n_results)) { /* no memory now: the worker sends it again */
        wire_message_free(message);
        return true;
    }
    rows_claim(&server->intake, lease, result);
    server->intake.batches[server->intake.n_batches++] =
        (struct intake_batch){.message = *message, .fence = (int64_t)result->fence, .batch = result->batch};
    return true;
}

/* ---- into the database ---- */

static void intake_clear(struct server *server)
{
    for (uint32_t i = 0; i < server->intake.n_batches; i++) wire_message_free(&server->intake.batches[i].message);
    server->intake.n_batches = server->intake.n_rows = 0;
    server->intake.bytes = 0;
}

void intake_free(struct server *server)
{
    intake_clear(server);
    free(server->intake.batches);
    free(server->intake.rows);
    free(server->intake.stored);
    free(server->intake.done);
    free(server->intake.fences);
    free(server->intake.fenced);
    memset(&server->intake, 0, sizeof server->intake);
}

void intake_hold(struct server *server)
{
    for (uint32_t i = 0; i < server->intake.n_batches; i++) server_hold(server, &server->intake.batches[i].message);
    server->intake.n_batches = server->intake.n_rows = 0;
    server->intake.bytes = 0;
}

static bool is_fenced(const int64_t *fenced, uint32_t n, int64_t fence)
{
    for (uint32_t i = 0; i < n; i++)
        if (fenced[i] == fence) return true;
    return false;
}

static void lease_done(struct server *server, struct queue_lease *lease)
{
    struct peer *peer = lease->worker == NULL ? NULL : lease->worker->owner;

    if (peer != NULL) peer->recent[peer->n_recent++ % RECENT_FENCES] = lease->fence;
    queue_lease_end(&server->queue, lease, false);
}

/* After COMMIT: the queue first, then the word to the workers. */
static void intake_committed(struct server *server, const int64_t *fenced, uint32_t n_fenced)
{
    struct intake *intake = &server->intake;

    for (uint32_t i = 0; i < intake->n_rows; i++) {
        const struct intake_row *row = &intake->rows[i];
        const struct rec_result *result = row->result;
        bool correct = result->grade.len == 7 && memcmp(result->grade.text, "correct", 7) == 0;
        if (is_fenced(fenced, n_fenced, row->lease->fence)) continue;
        row->lease->claimed &= ~(1u << row->place);
        if (row->failed) {
            queue_lease_fail(&server->queue, row->lease, row->place);
            continue;
        }
        queue_lease_settle(&server->queue, row->lease, row->place, row->is_error, correct,
                           result->output_tokens == MSG_NULL_INT ? 0 : result->output_tokens, server->now_ms);
        server->results_stored++;
    }
    for (uint32_t i = 0; i < intake->n_batches; i++) {
        const struct intake_batch *batch = &intake->batches[i];
        struct queue_lease *lease = queue_lease_find(&server->queue, batch->fence);
        if (is_fenced(fenced, n_fenced, batch->fence)) {
            server->results_fenced++;
            peer_revoke(server, &batch->message.peer, batch->fence, "the lease has ended");
            if (lease != NULL) queue_lease_end(&server->queue, lease, false);
            continue;
        }
        batch_ack(server, &batch->message.peer, batch->fence, batch->batch);
        if (lease != NULL && lease->n_open == 0) lease_done(server, lease);
    }
}

/* The statement itself is refused: the batches go back as unusable, one clear line says why. */
static void intake_refused(struct server *server)
{
    struct intake *intake = &server->intake;

    for (uint32_t i = 0; i < intake->n_batches; i++) {
        struct queue_lease *lease = queue_lease_find(&server->queue, intake->batches[i].fence);
        struct kvf_err err = {""};
        peer_revoke(server, &intake->batches[i].message.peer, intake->batches[i].fence,
                    "the results could not be stored");
        if (lease == NULL) continue;
        int code = store_leases_end(&server->store, &lease->fence, 1, "revoked", &err);
        if (code != KVF_OK && server_write_failed(server, "revoke_failed", code, &err))
            break; /* the reload settles it */
        queue_lease_end(&server->queue, lease, false);
    }
    intake_clear(server);
}

/* False when it is there already: most likely it is the last one. */
static bool fence_add(int64_t *fences, uint32_t *n, int64_t fence)
{
    for (uint32_t i = *n; i > 0; i--)
        if (fences[i - 1] == fence) return false;
    fences[(*n)++] = fence;
    return true;
}

/* What is to be written of the intake. */
static void turn_fill(struct intake *intake, struct store_turn *turn)
{
    for (uint32_t i = 0; i < intake->n_rows; i++) {
        const struct intake_row *row = &intake->rows[i];
        const struct queue_lease *lease = row->lease;
        if (!row->failed)
            intake->stored[turn->n_rows++] = (struct store_row){
                .fence = lease->fence,
                .cell_id =
                    (int64_t)lease->job->cells[lease->job->samples[lease->samples[row->place]].cell].spec.cell_id,
                .result = row->result};
        if (!fence_add(intake->fences, &turn->n_fences, lease->fence)) continue;
        if ((lease->open & ~lease->claimed) == 0) intake->done[turn->n_done++] = lease->fence;
    }
    turn->rows = intake->stored;
    turn->fences = intake->fences;
    turn->done = intake->done;
    turn->fenced = intake->fenced;
}

/* With `lending` new leases are written in the same transaction: one wait for the disk instead of two. */
static void turn_write(struct server *server, bool lending)
{
    struct intake *intake = &server->intake;
    struct queue_lease *leases[TURN_LEASES];
    int64_t granted[TURN_LEASES];
    struct store_turn turn = {.leases = leases, .granted = granted};
    struct kvf_err err = {""};
    int code = KVF_OK;

    turn_fill(intake, &turn);
    if (lending) turn.n_leases = queue_grant(&server->queue, leases, TURN_LEASES);
    if (turn.n_fences > 0 || turn.n_leases > 0) code = store_turn_write(&server->store, &turn, &err);
    if (code == KVF_ECORRUPT && turn.n_leases > 0) { /* not the results' fault, perhaps */
        leases_undo(server, leases, turn.n_leases);
        turn.n_leases = 0;
        code = store_turn_write(&server->store, &turn, &err);
    }
    if (code != KVF_OK) {
        leases_undo(server, leases, turn.n_leases);
        if (!server_write_failed(server, "results_failed", code, &err)) intake_refused(server);
        return;
    }
    leases_confirm(server, leases, granted, turn.n_leases);
    intake_committed(server, turn.fenced, turn.n_fenced);
    intake_clear(server);
    leases_send(server, granted, turn.n_leases);
}

void intake_commit(struct server *server)
{
    if (server->intake.n_batches > 0 && server_can_write(server)) turn_write(server, false);
}

void intake_commit_and_lend(struct server *server)
{
    if (server->intake.n_batches > 0 && server_can_write(server)) turn_write(server, true);
}

/* ---- jobs ---- */

void jobs_settle(struct server *server)
{
    for (struct queue_job *job = server->queue.jobs; job != NULL && server_can_write(server); job = job->next) {
        enum queue_job_state state;
        struct kvf_err err = {""};
        int code = KVF_OK;
        if (job->n_exhausted > 0) {
            code = store_exhausted(&server->store, job, &err);
            if (code != KVF_OK) {
                server_write_failed(server, "error_rows_failed", code, &err);
                return;
            }
            log_event(LOG_WARN_LEVEL, "samples_given_up", "job=%" PRId64 " samples=%u attempts=%d", job->job_id,
                      job->n_exhausted, job->max_attempts);
            while (job->n_exhausted > 0) queue_exhausted_settle(&server->queue, job, server->now_ms);
        }
        if (!queue_job_complete(job)) continue;
        code = store_job_finish(&server->store, job->job_id, &state, &err);
        if (code != KVF_OK) {
            /* the tables disagree with the queue: as after a lost connection, the tables are right */
            server_write_failed(server, "finish_failed", code == KVF_ENOTFOUND ? KVF_EUNAVAIL : code, &err);
            return;
        }
        queue_job_end(&server->queue, job, state, server->now_ms);
        log_event(LOG_INFO_LEVEL, "job_finished", "job=%" PRId64 " samples=%" PRId64 " errors=%" PRId64 " seconds=%.1f",
                  job->job_id, job->total, job->errors, (double)(job->ended_ms - job->started_ms) / 1000);
    }
}
