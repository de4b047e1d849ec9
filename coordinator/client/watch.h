/* watch.h: follows a job until it ends: a live view on a terminal, now and then a line in a pipe. */
#ifndef KVF_WATCH_H
#define KVF_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include "coordinator/client/session.h"

struct watch_options {
    int64_t job_id;
    const char *title;
    int64_t away_ms; /* how long the coordinator may be away */
    bool json;       /* also a JSON object a line on stdout at each report */
};

/* Talks on stderr. 0: the job ended; KVF_EAGAIN: interrupted (the job goes on); KVF_EUNAVAIL: away for too long;
 * KVF_EDENIED, KVF_ENOTFOUND. The terminal is as it was in each case. */
KVF_MUSTCHECK int watch_job(struct session *session, const struct watch_options *options, struct kvf_err *err);

/* When a pipe gets a line: at the first look, at every 10 %, after five seconds, at the end. Zero-initialise. Pure. */
struct watch_pace {
    int64_t last_ms;
    int last_tenth;
    bool begun;
};
bool watch_due(struct watch_pace *pace, int percent, bool ended, int64_t now_ms);

#endif
