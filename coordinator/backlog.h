/* backlog.h: messages that wait for the database, in the order in which they came.
 *
 * Bounded in messages and in bytes, because an outage may last while every worker sends again what nobody acknowledged:
 * what does not fit is dropped, and comes again. Of a batch that a worker sent several times one copy is kept. One
 * thread.
 */
#ifndef KVF_BACKLOG_H
#define KVF_BACKLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/wire.h"

#define BACKLOG_MESSAGES 1024
#define BACKLOG_BYTES    (64u << 20) /* two turns of results */

struct held_message;
struct backlog {
    struct held_message *first, *last;
    uint32_t n;
    size_t bytes;
};
/* Takes the message over. A batch that is held already takes the place of its older copy: it comes by the connection
 * that its worker has now. False: no room, the message is freed. */
bool backlog_put(struct backlog *backlog, struct wire_message *message);
/* The oldest message, which the caller frees; false when there is none. */
bool backlog_take(struct backlog *backlog, struct wire_message *out);
void backlog_free(struct backlog *backlog);

#endif
