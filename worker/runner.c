/* runner.c: see runner.h. */
#include "worker/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"
#include "proto/log.h"
#include "worker/machine.h"

#define PEAK_EVERY_MS 500 /* reading the peak memory costs a file a time */

struct runner {
    struct handover *handover;
    struct engine_options options;
    const struct runner_model *models;
    int n_models, open_model; /* -1: none is open */
    struct engine *engine;
    struct lease *leases, **leases_end; /* oldest first */
    uint64_t last_request;
    int64_t emitted_before; /* by engines that were closed */
    int64_t peak_bytes, peak_read_ms;
    bool draining, abandoned, drained_told, failed;
};

int runner_new(struct handover *handover, const struct engine_options *options, const struct runner_model *models,
               int n_models, int open_model, struct engine *engine, struct runner **out, struct kvf_err *err)
{
    struct runner *runner = calloc(1, sizeof *runner);
    if (runner == NULL) return kvf_fail(err, KVF_ENOMEM, "runner: out of memory");
    runner->handover = handover;
    runner->options = *options;
    runner->models = models;
    runner->n_models = n_models;
    runner->open_model = open_model;
    runner->engine = engine;
    runner->leases_end = &runner->leases;
    runner->peak_bytes = -1;
    runner->peak_read_ms = -PEAK_EVERY_MS;
    *out = runner;
    return 0;
}

void runner_destroy(struct runner **runner)
{
    struct runner *self = *runner;
    if (self == NULL) return;
    while (self->leases != NULL) {
        struct lease *next = self->leases->next;
        lease_free(self->leases);
        self->leases = next;
    }
    engine_close(&self->engine);
    free(self);
    *runner = NULL;
}

/* ---- leases ---- */

/* Unlinks *at; the lease is the caller's. */
static struct lease *lease_unlink(struct runner *runner, struct lease **at)
{
    struct lease *lease = *at;
    *at = lease->next;
    if (runner->leases_end == &lease->next) runner->leases_end = at;
    return lease;
}

static void lease_cancel(struct runner *runner, struct lease *lease)
{
    for (int k = 0; k < lease->n_samples; k++)
        if (lease->samples[k].state == SAMPLE_RUNNING) {
            /* Its completion comes later and finds nobody. */
            int rc = engine_cancel(runner->engine, lease->samples[k].request);
            (void)rc;
            lease->samples[k].state = SAMPLE_OVER;
        }
}

static void lease_revoke(struct runner *runner, int64_t fence)
{
    for (struct lease **at = &runner->leases; *at != NULL; at = &(*at)->next)
        if ((*at)->fence == fence) {
            lease_cancel(runner, *at);
            lease_free(lease_unlink(runner, at));
            return;
        }
}

static void sample_report(struct runner *runner, struct lease_sample *sample)
{
    struct row *row = sample->row;
    sample->state = SAMPLE_OVER;
    sample->row = NULL;
    handover_row(runner->handover, row);
}

static void sample_fail(struct runner *runner, struct lease_sample *sample, const char *line)
{
    row_fill_error(sample->row, line);
    sample_report(runner, sample);
}

/* Frees leases that are done; in a drain, hands back those of which nothing runs. */
static void leases_settle(struct runner *runner)
{
    struct lease **at = &runner->leases;
    while (*at != NULL) {
        struct lease *lease = *at;
        bool done = lease_count(lease, SAMPLE_OVER) == lease->n_samples;
        bool hand_back = runner->draining && lease_count(lease, SAMPLE_RUNNING) == 0;
        if (!done && !hand_back && !runner->abandoned) {
            at = &lease->next;
            continue;
        }
        if (!done) {
            lease_cancel(runner, lease);
            handover_row(runner->handover, lease->notice);
            lease->notice = NULL;
        }
        lease_free(lease_unlink(runner, at));
    }
}

static void commands_take(struct runner *runner, const struct commands *commands)
{
    struct lease *lease = commands->leases;
    while (lease != NULL) {
        struct lease *next = lease->next;
        lease->next = NULL;
        *runner->leases_end = lease;
        runner->leases_end = &lease->next;
        lease = next;
    }
    for (int k = 0; k < commands->n_revoked; k++) lease_revoke(runner, commands->revoked[k]);
    free(commands->revoked);
    runner->draining |= commands->drain;
    runner->abandoned |= commands->abandon;
}

/* ---- models ---- */

/* Makes the lease's model the open one: 0, KVF_EAGAIN while samples of another model run, or why it cannot. */
static int model_want(struct runner *runner, const char *hash, struct kvf_err *err)
{
    if (runner->open_model >= 0 && strcmp(runner->models[runner->open_model].hash, hash) == 0) return 0;
    int wanted = 0;
    while (wanted < runner->n_models && strcmp(runner->models[wanted].hash, hash) != 0) wanted++;
    if (wanted == runner->n_models)
        return kvf_fail(err, KVF_ENOTFOUND, "model %s is not on this worker, which holds %d others", hash,
                        runner->n_models);
    if (runner->engine != NULL) {
        if (engine_load(runner->engine) > 0) return KVF_EAGAIN;
        runner->emitted_before += engine_counters(runner->engine).emitted_tokens;
        engine_close(&runner->engine);
        runner->open_model = -1;
    }
    runner->options.model_folder = runner->models[wanted].folder;
    int rc = engine_open(&runner->options, &runner->engine, err);
    if (rc != 0) {
        runner->engine = NULL;
        return rc;
    }
    runner->open_model = wanted;
    log_event(LOG_INFO_LEVEL, "model_opened", "model=%s hash=%.16s", runner->models[wanted].name, hash);
    return 0;
}

/* ---- samples ---- */

/* Submits one sample; what is wrong with it becomes its result. KVF_EAGAIN: the engine takes none now. */
static int sample_start(struct runner *runner, const struct lease *lease, struct lease_sample *sample)
{
    const struct lease_cell *cell = sample->cell;
    struct kvf_err why = {""};
    if (lease->trouble[0] != 0 || cell == NULL || cell->trouble[0] != 0) {
        sample_fail(runner, sample,
                    lease->trouble[0] != 0 ? lease->trouble
                    : cell == NULL         ? "the lease lacks the sample's cell"
                                           : cell->trouble);
        return 0;
    }
    int32_t *ids = NULL;
    int count = 0;
    int rc = engine_prompt(runner->engine, cell->template_name, sample->problem, &ids, &count, NULL, &why);
    if (rc != 0) {
        sample_fail(runner, sample, why.text);
        return 0;
    }
    row_set_prompt(sample->row, ids, count);
    struct request request = {
        .id = runner->last_request + 1,
        .prompt_ids = ids,
        .prompt_tokens = count,
        .policy = cell->policy,
        .budget_tokens = cell->budget_tokens,
        .interval_tokens = cell->interval_tokens,
        .profile = lease->profile,
        .sampling = cell->sampling,
        .seed = sample->seed,
        .max_new_tokens = cell->max_new_tokens,
    };
    rc = engine_submit(runner->engine, &request, &why);
    free(ids);
    if (rc == KVF_EAGAIN && engine_load(runner->engine) > 0) return rc; /* a running one makes room */
    if (rc != 0) {
        sample_fail(runner, sample, why.text);
        return 0;
    }
    sample->request = ++runner->last_request;
    sample->state = SAMPLE_RUNNING;
    return 0;
}

/* Fills the batch. Only the oldest unfinished leases are looked at: one that waits for its model holds up the rest. */
static void samples_start(struct runner *runner)
{
    for (struct lease *lease = runner->leases; lease != NULL && !runner->draining; lease = lease->next) {
        if (lease_count(lease, SAMPLE_WAITING) == 0) continue;
        struct kvf_err why = {""};
        int rc = model_want(runner, lease->model_hash, &why);
        if (rc == KVF_EAGAIN) return;
        if (rc != 0) snprintf(lease->trouble, sizeof lease->trouble, "%.500s", why.text);
        int limit = rc == 0 ? engine_info(runner->engine)->max_batch : 0;
        for (int k = 0; k < lease->n_samples; k++) {
            if (lease->samples[k].state != SAMPLE_WAITING) continue;
            if (rc == 0 && engine_load(runner->engine) >= limit) return;
            if (sample_start(runner, lease, &lease->samples[k]) != 0) return;
        }
    }
}

static struct lease_sample *sample_find(struct runner *runner, uint64_t request)
{
    for (struct lease *lease = runner->leases; lease != NULL; lease = lease->next)
        for (int k = 0; k < lease->n_samples; k++)
            if (lease->samples[k].state == SAMPLE_RUNNING && lease->samples[k].request == request)
                return &lease->samples[k];
    return NULL;
}

static struct row_facts facts_now(struct runner *runner)
{
    const struct engine_info *info = engine_info(runner->engine);
    int64_t now_ms = clock_ms();
    if (now_ms - runner->peak_read_ms >= PEAK_EVERY_MS) {
        runner->peak_bytes = machine_peak_bytes();
        runner->peak_read_ms = now_ms;
    }
    return (struct row_facts){info->weights_bytes, info->kv_reserved_bytes, info->workspace_bytes, runner->peak_bytes};
}

static void completions_take(struct runner *runner)
{
    struct completion completion;
    while (runner->engine != NULL && engine_poll(runner->engine, &completion) == 1) {
        struct lease_sample *sample = sample_find(runner, completion.id);
        if (sample != NULL) { /* NULL: revoked or abandoned */
            struct row_facts facts = facts_now(runner);
            row_fill(sample->row, &completion, &facts, sample->answer);
            sample_report(runner, sample);
        }
        completion_free(&completion);
    }
    if (runner->engine != NULL)
        handover_emitted(runner->handover, runner->emitted_before + engine_counters(runner->engine).emitted_tokens);
}

/* ---- turns ---- */

static bool busy(const struct runner *runner)
{
    return !runner->failed && runner->engine != NULL && engine_load(runner->engine) > 0;
}

/* Samples that wait for the batch, or for another model's turn. */
static bool waiting(const struct runner *runner)
{
    if (runner->draining || runner->failed) return false;
    for (const struct lease *lease = runner->leases; lease != NULL; lease = lease->next)
        if (lease_count(lease, SAMPLE_WAITING) > 0) return true;
    return false;
}

bool runner_turn(struct runner *runner)
{
    struct commands commands;
    handover_take_commands(runner->handover, !busy(runner) && !waiting(runner), &commands);
    commands_take(runner, &commands);
    if (commands.stop) return false;
    if (!runner->failed) samples_start(runner);
    if (busy(runner)) {
        struct kvf_err why = {""};
        int rc = engine_step(runner->engine, &why);
        if (rc != 0 && rc != KVF_EAGAIN) {
            runner->failed = runner->draining = runner->abandoned = true;
            handover_failed(runner->handover, &why);
        }
    }
    completions_take(runner);
    leases_settle(runner);
    if (runner->draining && runner->leases == NULL && !runner->drained_told) {
        runner->drained_told = true;
        handover_drained(runner->handover);
    }
    return true;
}

void *runner_thread(void *runner)
{
    while (runner_turn(runner)) {
    }
    return NULL;
}
