/* runner.h: the engine's thread: samples in, rows out. Knows leases and models, nothing of the network.
 *
 * Samples start strictly in the order in which their leases came, as many at once as the engine's batch holds. A lease
 * of another model waits until the batch is empty; then the engine is closed and the other model opened.
 */
#ifndef KVF_WORKER_RUNNER_H
#define KVF_WORKER_RUNNER_H

#include "alloc/err.h"
#include "engine/engine.h"
#include "worker/handover.h"

struct runner_model {
    char *folder;
    char name[128], hash[65];
};
struct runner;
/* `engine` has models[open_model] open and is taken over; `options` and `models` must outlive the runner. */
KVF_MUSTCHECK int runner_new(struct handover *handover, const struct engine_options *options,
                             const struct runner_model *models, int n_models, int open_model, struct engine *engine,
                             struct runner **out, struct kvf_err *err);
void runner_destroy(struct runner **runner);
/* Takes commands (waiting for one when there is nothing to do), starts samples, makes one engine step, reports what is
 * done. Returns false after the stop command. */
bool runner_turn(struct runner *runner);
/* pthread entry: turns until stop. */
void *runner_thread(void *runner);

#endif
