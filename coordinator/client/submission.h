/* submission.h: a job from flags and files to the coordinator's queue: everything is read and checked before anything
 * is sent. */
#ifndef KVF_SUBMISSION_H
#define KVF_SUBMISSION_H

#include <stdbool.h>
#include <stdint.h>
#include "coordinator/client/plan.h"
#include "coordinator/client/session.h"
#include "coordinator/client/settings.h"
#include "worker/dataset.h"

struct submission {
    struct plan plan;
    struct dataset dataset;
    char model_name[128], model_hash[65], content_hash[65], title[256];
    char *profile, *spec; /* owned; profile NULL when no cell needs one */
    const struct settings *settings;
};
/* `settings` must outlive it. */
KVF_MUSTCHECK int submission_make(const char *command, const struct settings *settings, struct submission *out,
                                  struct kvf_err *err);
void submission_free(struct submission *submission);

/* Sends it and starts the job. With --resume an unfinished job of equal content goes on instead. */
KVF_MUSTCHECK int submission_send(const struct submission *submission, struct session *session, int64_t *job_id,
                                  bool *resumed, struct kvf_err *err);

#endif
