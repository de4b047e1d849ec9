/* fleet.h: a worker of the fleet, from its settings to its last word. What main.c calls. */
#ifndef KVF_WORKER_FLEET_H
#define KVF_WORKER_FLEET_H

#include <signal.h>
#include <stdint.h>
#include "alloc/err.h"

struct worker_options {
    const char *coordinator;   /* tcp://HOST:PORT or ipc://PATH */
    const char *keys, *key;    /* folder; name of this worker's key in it */
    const char *const *models; /* folders, NULL-terminated, at least one; the first is opened at once */
    const char *backend;       /* "auto", "cpu" */
    const char *kernels;
    const char *kv_type; /* "f32", "bf16" */
    int threads; /* 0: every core that this process may use */
    int max_batch;
    int prefill_chunk_tokens; /* 0: the engine's choice */
    int64_t kv_bytes;         /* 0: the engine's choice */
    int64_t drain_ms;
    const char *version, *revision, *build_flags; /* of the program */
};

/* Runs until *signals is nonzero and the drain is over. A signal interrupts the wait. Calls from the main thread only;
 * the engine's thread and those of the engine have all signals blocked. 0: drained. KVF_EUNAVAIL: something could not
 * be handed over. KVF_EDENIED: key or role. KVF_ECONFLICT: protocol version. KVF_EIO, KVF_ENOMEM: the engine or the
 * system failed. Anything else: settings, keys or model; nothing was started. */
KVF_MUSTCHECK int worker_run(const struct worker_options *options, const volatile sig_atomic_t *signals,
                             struct kvf_err *err);

#endif
