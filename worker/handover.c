/* handover.c: see handover.h. */
#include "worker/handover.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct handover {
    pthread_mutex_t lock; /* guards all below but `fd` */
    pthread_cond_t command_given;
    int fd;

    struct lease *leases, **leases_end;
    int64_t *revoked;
    int n_revoked, revoked_cap;
    bool drain, abandon, stop, news; /* news: the engine's thread has not seen the latest command */

    struct row *rows, **rows_end;
    bool drained, failed;
    struct kvf_err failure;
    int64_t emitted_tokens;
};

int handover_new(struct handover **out, struct kvf_err *err)
{
    struct handover *handover = calloc(1, sizeof *handover);
    if (handover == NULL) return kvf_fail(err, KVF_ENOMEM, "hand-over between threads: out of memory");
    handover->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (handover->fd < 0) {
        free(handover);
        return kvf_fail(err, KVF_EIO, "eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&handover->lock, NULL);
    pthread_cond_init(&handover->command_given, NULL);
    handover->leases_end = &handover->leases;
    handover->rows_end = &handover->rows;
    *out = handover;
    return 0;
}

void handover_destroy(struct handover **handover)
{
    struct handover *self = *handover;
    if (self == NULL) return;
    while (self->leases != NULL) {
        struct lease *next = self->leases->next;
        lease_free(self->leases);
        self->leases = next;
    }
    rows_free(self->rows);
    free(self->revoked);
    close(self->fd);
    pthread_cond_destroy(&self->command_given);
    pthread_mutex_destroy(&self->lock);
    free(self);
    *handover = NULL;
}

/* ---- the network's thread ---- */

int handover_fd(const struct handover *handover)
{
    return handover->fd;
}

/* Ends a change made under the lock by the network's thread. */
static void command_done(struct handover *handover)
{
    handover->news = true;
    pthread_cond_signal(&handover->command_given);
    pthread_mutex_unlock(&handover->lock);
}

void handover_lease(struct handover *handover, struct lease *lease)
{
    lease->next = NULL;
    pthread_mutex_lock(&handover->lock);
    *handover->leases_end = lease;
    handover->leases_end = &lease->next;
    command_done(handover);
}

int handover_revoke(struct handover *handover, int64_t fence, struct kvf_err *err)
{
    pthread_mutex_lock(&handover->lock);
    if (handover->n_revoked == handover->revoked_cap) {
        int cap = handover->revoked_cap == 0 ? 16 : handover->revoked_cap * 2;
        int64_t *grown = realloc(handover->revoked, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            pthread_mutex_unlock(&handover->lock);
            return kvf_fail(err, KVF_ENOMEM, "revocation of lease %lld: out of memory", (long long)fence);
        }
        handover->revoked = grown;
        handover->revoked_cap = cap;
    }
    handover->revoked[handover->n_revoked++] = fence;
    command_done(handover);
    return 0;
}

void handover_drain(struct handover *handover)
{
    pthread_mutex_lock(&handover->lock);
    handover->drain = true;
    command_done(handover);
}

void handover_abandon(struct handover *handover)
{
    pthread_mutex_lock(&handover->lock);
    handover->drain = handover->abandon = true;
    command_done(handover);
}

void handover_stop(struct handover *handover)
{
    pthread_mutex_lock(&handover->lock);
    handover->stop = true;
    command_done(handover);
}

void handover_take_reports(struct handover *handover, struct reports *out)
{
    uint64_t wakes;
    /* Emptied before the rows are taken: a row that comes in between wakes the next wait. */
    ssize_t got = read(handover->fd, &wakes, sizeof wakes);
    (void)got; /* nothing there: EAGAIN */
    pthread_mutex_lock(&handover->lock);
    out->rows = handover->rows;
    handover->rows = NULL;
    handover->rows_end = &handover->rows;
    out->drained = handover->drained;
    out->failed = handover->failed;
    out->failure = handover->failure;
    out->emitted_tokens = handover->emitted_tokens;
    pthread_mutex_unlock(&handover->lock);
}

/* ---- the engine's thread ---- */

void handover_take_commands(struct handover *handover, bool wait, struct commands *out)
{
    pthread_mutex_lock(&handover->lock);
    while (wait && !handover->news) pthread_cond_wait(&handover->command_given, &handover->lock);
    handover->news = false;
    out->leases = handover->leases;
    handover->leases = NULL;
    handover->leases_end = &handover->leases;
    out->revoked = handover->revoked;
    out->n_revoked = handover->n_revoked;
    handover->revoked = NULL;
    handover->n_revoked = handover->revoked_cap = 0;
    out->drain = handover->drain;
    out->abandon = handover->abandon;
    out->stop = handover->stop;
    pthread_mutex_unlock(&handover->lock);
}

static void wake_network(struct handover *handover)
{
    uint64_t one = 1;
    ssize_t put = write(handover->fd, &one, sizeof one);
    (void)put; /* EAGAIN: the counter is full, so it is readable */
}

void handover_row(struct handover *handover, struct row *row)
{
    row->next = NULL;
    pthread_mutex_lock(&handover->lock);
    *handover->rows_end = row;
    handover->rows_end = &row->next;
    pthread_mutex_unlock(&handover->lock);
    wake_network(handover);
}

void handover_emitted(struct handover *handover, int64_t tokens)
{
    pthread_mutex_lock(&handover->lock);
    handover->emitted_tokens = tokens;
    pthread_mutex_unlock(&handover->lock);
}

void handover_drained(struct handover *handover)
{
    pthread_mutex_lock(&handover->lock);
    handover->drained = true;
    pthread_mutex_unlock(&handover->lock);
    wake_network(handover);
}

void handover_failed(struct handover *handover, const struct kvf_err *why)
{
    pthread_mutex_lock(&handover->lock);
    handover->failed = true;
    handover->failure = *why;
    pthread_mutex_unlock(&handover->lock);
    wake_network(handover);
}
