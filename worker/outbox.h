/* outbox.h: results that the coordinator has not acknowledged yet. What was sent is nothing: a batch stays here until
 * its ACK, which comes after COMMIT, and is sent again until then. No I/O and no clock; one thread.
 */
#ifndef KVF_WORKER_OUTBOX_H
#define KVF_WORKER_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>
#include "worker/row.h"

#define OUTBOX_BATCH_ROWS  64
#define OUTBOX_BATCH_BYTES (2 << 20) /* of texts: half of the largest body */

struct batch {
    struct batch *next;
    int64_t fence;
    int64_t number; /* never used twice by a process */
    struct row *rows, **rows_end;
    int n_rows;
    int64_t bytes;
    bool closed;       /* takes no more rows: it has been, or is about to be, sent */
    bool checked;      /* each row by itself, after the whole could not be encoded */
    int64_t opened_ms; /* when its first row came */
    int64_t sent_ms;   /* last time; negative: not since the connection was made */
};

struct outbox {
    struct batch *first; /* oldest first */
    int64_t last_number;
    int n_rows;
    int64_t linger_ms; /* how long a batch waits for more rows */
    int64_t resend_ms; /* how long a sent batch waits for its ACK */
};
void outbox_init(struct outbox *outbox, int64_t linger_ms, int64_t resend_ms);
void outbox_free(struct outbox *outbox);

/* Takes the row over, unless there is no memory (KVF_ENOMEM). */
KVF_MUSTCHECK int outbox_add(struct outbox *outbox, struct row *row, int64_t now_ms);
/* No more rows will come for this fence: its batch need not wait. */
void outbox_close(struct outbox *outbox, int64_t fence);
/* The oldest batch to be sent now, or NULL. Call outbox_sent when it went out. */
struct batch *outbox_due(struct outbox *outbox, int64_t now_ms);
void outbox_sent(struct batch *batch, int64_t now_ms);
/* When outbox_due may have something, INT64_MAX when never. */
int64_t outbox_next_ms(const struct outbox *outbox);
/* A new connection: everything is to be sent again. */
void outbox_rewind(struct outbox *outbox);
/* Forgets an acknowledged batch; its rows, 0 when it is not here. */
int outbox_ack(struct outbox *outbox, int64_t fence, int64_t number);
/* Forgets all of a fence; its rows. */
int outbox_revoke(struct outbox *outbox, int64_t fence);
bool outbox_holds(const struct outbox *outbox, int64_t fence);

#endif
