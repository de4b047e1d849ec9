/* session.h: one client's conversation with the coordinator: a request, its answer, within a time.
 *
 * Requests go over one DEALER, one at a time. A request that may be repeated without harm (everything but SUBMIT) is
 * sent again while no answer comes, so a coordinator that restarts in between is not noticed. One thread.
 */
#ifndef KVF_SESSION_H
#define KVF_SESSION_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/message.h"
#include "proto/wire.h"

struct session;
struct session_options {
    const char *coordinator, *keys, *key; /* URL, key folder, name of the key; must outlive the session */
    int64_t timeout_ms;                   /* for one answer */
    const volatile sig_atomic_t *stop;    /* nonzero ends a wait with KVF_EAGAIN; may be NULL */
};

/* KVF_ENOTFOUND, KVF_EDENIED, KVF_EINVAL: the key folder; nothing is sent yet. */
KVF_MUSTCHECK int session_open(const struct session_options *options, struct session **out, struct kvf_err *err);
void session_close(struct session **session);
void session_set_timeout(struct session *session, int64_t timeout_ms);

/* Sends a client's message (its `request` is filled in) and waits for its answer of type `answer_type`.
 * KVF_EUNAVAIL: no answer in time, the line names the URL; KVF_EDENIED: key or role; KVF_EINVAL, KVF_ENOTFOUND,
 * KVF_ECONFLICT: refused, the line is the coordinator's reason; KVF_EAGAIN: stopped, or its database is away until the
 * end. Free `answer` with wire_message_free after success. */
KVF_MUSTCHECK int session_call(struct session *session, int type, void *msg, int answer_type,
                               struct wire_message *answer, struct kvf_err *err);

/* What a query asks for; a field below 0 is no filter. */
struct session_query {
    const char *view;
    int64_t job_id, sample_id, cell_id, after;
    bool failures;
    int64_t limit; /* at most so many rows; 0: all */
};
#define SESSION_QUERY(name)                                                                                            \
    {                                                                                                                  \
        .view = (name), .job_id = -1, .sample_id = -1, .cell_id = -1, .after = -1                                      \
    }
/* All rows, page by page, as one JSON array that the caller owns. *next (optional): the `after` of what follows, -1
 * when nothing does. */
KVF_MUSTCHECK int session_rows(struct session *session, const struct session_query *query, json_t **rows, int64_t *next,
                               struct kvf_err *err);

#endif
