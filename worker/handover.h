/* handover.h: the only thing that the worker's two threads share: commands to the engine's thread, rows back.
 *
 * One mutex guards everything; nothing is held while it is locked, no memory is taken for a row (rows and leases are
 * list nodes themselves). The engine's thread waits on a condition, the network's thread on an eventfd beside its
 * socket.
 */
#ifndef KVF_WORKER_HANDOVER_H
#define KVF_WORKER_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "worker/lease.h"
#include "worker/row.h"

struct handover;
KVF_MUSTCHECK int handover_new(struct handover **out, struct kvf_err *err);
/* Both threads must have let go. Frees what nobody took. */
void handover_destroy(struct handover **handover);

/* ---- the network's thread ---- */

int handover_fd(const struct handover *handover); /* readable when there are reports */
void handover_lease(struct handover *handover, struct lease *lease);
/* KVF_ENOMEM: not noted. The lease is then finished in vain, and its rows are dropped on this side. */
KVF_MUSTCHECK int handover_revoke(struct handover *handover, int64_t fence, struct kvf_err *err);
void handover_drain(struct handover *handover);   /* start nothing more, finish what runs, release the rest */
void handover_abandon(struct handover *handover); /* cancel what runs, release everything */
void handover_stop(struct handover *handover);    /* leave the loop */

struct reports {
    struct row *rows; /* in the order in which they were made; the taker owns them */
    bool drained;     /* after a drain or abandon: nothing runs, every row and notice has been handed over */
    bool failed;      /* the engine cannot go on */
    struct kvf_err failure;
    int64_t emitted_tokens; /* by this process so far */
};
/* Never waits. */
void handover_take_reports(struct handover *handover, struct reports *out);

/* ---- the engine's thread ---- */

struct commands {
    struct lease *leases; /* in the order of arrival; the taker owns them */
    int64_t *revoked;     /* fences, malloc'd; applies to leases taken before and now */
    int n_revoked;
    bool drain, abandon, stop; /* stay true once given */
};
/* Waits for a command when `wait` is set and none is there. */
void handover_take_commands(struct handover *handover, bool wait, struct commands *out);
void handover_row(struct handover *handover, struct row *row);
void handover_emitted(struct handover *handover, int64_t tokens);
void handover_drained(struct handover *handover);
void handover_failed(struct handover *handover, const struct kvf_err *why);

#endif
