/* reader.h: answers queries on a thread and a connection of its own, so that a slow one never holds up results.
 *
 * Requests and answers pass through two lists under one mutex; an eventfd tells the main loop, which owns the socket,
 * that answers are there, another one tells the thread to stop, also in the middle of a wait for the database. The
 * connection needs nothing but SELECT on the views.
 */
#ifndef KVF_READER_H
#define KVF_READER_H

#include <stdint.h>
#include "alloc/err.h"
#include "proto/message.h"
#include "proto/wire.h"

#define READER_REPLY_BYTES 3900000 /* of JSON; below what a ROWS message holds */
#define READER_WAITING_MAX 256

struct reader;
struct reader_answer {
    struct reader_answer *next;
    struct wire_peer peer;
    uint64_t request;
    char *rows; /* NULL: refused */
    size_t rows_len;
    int64_t page_next;   /* MSG_NULL_INT: that was the last page */
    const char *refusal; /* code of REFUSED */
    char reason[512];
};

KVF_MUSTCHECK int reader_start(const char *conninfo, struct reader **out, struct kvf_err *err);
void reader_stop(struct reader **reader);
int reader_fd(const struct reader *reader); /* readable when there are answers */
/* Main loop. KVF_EINVAL: no such view, or a filter is missing; KVF_EAGAIN: too many are waiting. */
KVF_MUSTCHECK int reader_ask(struct reader *reader, const struct wire_peer *peer, const struct msg_query *query,
                             struct kvf_err *err);
/* All answers, oldest first; never waits. */
struct reader_answer *reader_take(struct reader *reader);
void reader_answer_free(struct reader_answer *answer);

#endif
