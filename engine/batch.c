/* batch.c: continuous batching. One step admits, prefills one chunk, decodes one token of each running sequence and
 * compacts what is due.
 *
 * The running list ascends in order of submission, and so does the queue; everything running was submitted before
 * everything queued. When pages run out the youngest running sequence gives its pages back and starts again later: the
 * oldest always gets on, and since tokens do not depend on neighbours the second attempt repeats the first.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "alloc/plan.h"
#include "engine/clock.h"
#include "engine/internal.h"

/* ---- lists ---- */

void queue_insert(struct engine *engine, struct run *run)
{
    struct run **at = &engine->queue;
    while (*at != NULL && (*at)->order < run->order) at = &(*at)->next;
    run->next = *at;
    *at = run;
    run->state = RUN_QUEUED;
}

static void queue_remove(struct engine *engine, struct run *run)
{
    struct run **at = &engine->queue;
    while (*at != run) at = &(*at)->next;
    *at = run->next;
    run->next = NULL;
}

static void running_remove(struct engine *engine, struct run *run)
{
    int at = 0;
    while (engine->running[at] != run) at++;
    engine->running_count--;
    memmove(engine->running + at, engine->running + at + 1,
            (size_t)(engine->running_count - at) * sizeof *engine->running);
    kv_seq_close(engine->kv, &run->seq);
}

static void run_show_entries(struct engine *engine, const struct run *run, int compacted)
{
    if (run->request.on_entries == NULL || run->seq == NULL) return;
    int heads = engine->info.kv_heads, count = engine->info.layers * heads;
    for (int i = 0; i < count; i++) engine->entries[i] = kv_head(engine->kv, run->seq, i / heads, i % heads).entries;
    run->request.on_entries(run->request.user, run->request.id, kv_tokens_seen(run->seq), compacted, engine->entries);
}

void run_free(struct run *run)
{
    if (run == NULL) return;
    completion_free(&run->figures);
    free(run->prompt);
    free(run->output);
    free(run->layer_budget);
    free(run->memory);
    free(run);
}

static uint64_t ids_hash(const int32_t *ids, int count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < count; i++) {
        for (int byte = 0; byte < 4; byte++) {
            hash = (hash ^ ((uint32_t)ids[i] >> (8 * byte) & 0xff)) * 0x100000001b3u;
        }
    }
    return hash;
}

void run_finish(struct engine *engine, struct run *run, enum finish_reason reason)
{
    run_show_entries(engine, run, 0);
    if (run->state == RUN_QUEUED)
        queue_remove(engine, run);
    else
        running_remove(engine, run);
    engine->held = 0;
    run->state = RUN_DONE;

    struct completion *figures = &run->figures;
    figures->id = run->request.id;
    figures->finish = reason;
    figures->prompt_tokens = run->request.prompt_tokens;
    figures->output_tokens = run->outputs;
    figures->output_ids = run->output;
    run->output = NULL;
    figures->output_hash = ids_hash(figures->output_ids, run->outputs);
    figures->thinking_tokens = run->thinking_tokens;
    figures->total_us = clock_us() - run->submitted_us;
    if (!run->admitted) figures->queue_us = figures->prefill_us = -1;
    if (run->announced == 0) figures->ttft_us = -1;
    if (figures->prefill_us == 0) figures->prefill_us = -1;
    figures->compaction_us = llround(run->compaction_us);
    figures->decode_share_us = run->share_us > 0 ? (int64_t)llround(run->share_us) : -1;
    figures->budget_achieved = figures->compactions > 0 ? run->kept_mean_sum / figures->compactions : -1.0;
    figures->kv_live_mean_bytes = run->decode_steps > 0 ? (int64_t)(run->live_sum / run->decode_steps) : -1;
    if (figures->kv_live_peak_bytes == 0) figures->kv_live_peak_bytes = -1;
    figures->batch_mean = run->decode_steps > 0 ? run->batch_sum / run->decode_steps : -1.0;
    if (run->decode_steps == 0) figures->batch_max = -1;
    if (run->outputs == 0) figures->min_margin = -1.0f;

    run->next = NULL;
    *engine->finished_end = run;
    engine->finished_end = &run->next;
}

/* ---- pages ---- */

static struct kv_schedule schedule_of(const struct run *run)
{
    return (struct kv_schedule){.prompt_tokens = run->request.prompt_tokens,
                                .budget_tokens = run->request.budget_tokens,
                                .interval_tokens = run->request.interval_tokens};
}

/* Pages set aside for a sequence at admission: all that it can come to hold. Where only its length bounds that (full
 * cache, stop-after-think) half of the longest output is set aside, since few outputs reach it, and the sequences that
 * were too many are sent back. */
static int64_t pages_wanted(const struct engine *engine, const struct run *run)
{
    const struct kv_schedule schedule = schedule_of(run);
    int64_t prompt = run->request.prompt_tokens, longest = prompt + run->request.max_new_tokens;
    int64_t entries = kv_entries_bound(&run->request.policy, &schedule, longest);
    if (run->request.policy.scorer == SCORER_NONE || run->request.policy.stop_after_think) {
        entries = (prompt + longest + 1) / 2;
    }
    return kv_pages_needed(engine->kv, entries);
}

/* A new attempt: what an earlier one left behind goes; times stay, they were spent. */
static void run_restart(const struct engine *engine, struct run *run)
{
    int carried = policy_memory_doubles(&run->request.policy, engine->info.layers, engine->info.kv_heads);
    for (int i = 0; i < carried; i++) run->memory[i] = 0.0;
    run->prefilled = run->outputs = 0;
    run->ending = -1;
    run->detok = (struct detok){0};
    run->think_match = 0;
    run->thinking_tokens = -1;
    run->live_sum = run->batch_sum = run->kept_mean_sum = 0.0;
    run->decode_steps = 0;
    run->figures.compactions = run->figures.batch_max = 0;
    run->figures.evicted_entries = run->figures.kv_live_peak_bytes = 0;
    run->figures.min_margin = INFINITY;
}

static void batch_admit(struct engine *engine)
{
    int64_t committed = 0;
    for (int i = 0; i < engine->running_count; i++) committed += pages_wanted(engine, engine->running[i]);
    while (engine->queue != NULL && engine->running_count < engine->max_batch) {
        struct run *run = engine->queue;
        int64_t wanted = pages_wanted(engine, run);
        if (engine->running_count > 0) {
            int64_t prompt = kv_pages_needed(engine->kv, run->request.prompt_tokens);
            if (engine->held || committed + wanted > engine->total_pages) return;
            if (prompt > kv_pool_free_pages(engine->kv)) return;
        }
        struct kvf_err why = {""};
        if (kv_seq_open(engine->kv, &run->request.policy, &run->seq, &why) != 0) {
            if (engine->running_count > 0) return;
            snprintf(run->figures.error, sizeof run->figures.error, "%s", why.text);
            run_finish(engine, run, FINISH_ERROR);
            continue;
        }
        queue_remove(engine, run);
        run_restart(engine, run);
        run->state = RUN_PREFILL;
        engine->running[engine->running_count++] = run;
        committed += wanted;
        if (!run->admitted) run->figures.queue_us = clock_us() - run->submitted_us;
        run->admitted = 1;
    }
}

/* Room for `tokens` more entries of running[at]; sends the youngest back as often as needed. 0: running[at] itself had
 * to go. Runs after `at` may be gone afterwards, those before it stay. */
static int run_reserve(struct engine *engine, int at, int tokens)
{
    struct run *run = engine->running[at];
    while (kv_reserve(engine->kv, run->seq, tokens) != 0) {
        if (engine->running_count == 1) {
            snprintf(run->figures.error, sizeof run->figures.error,
                     "kv cache: %d tokens of request %llu do not fit alone: %lld pages of %d entries in all, %lld free",
                     kv_tokens_seen(run->seq) + tokens, (unsigned long long)run->request.id,
                     (long long)engine->total_pages, KV_PAGE_ENTRIES, (long long)kv_pool_free_pages(engine->kv));
            run_finish(engine, run, FINISH_ERROR);
            return 0;
        }
        struct run *youngest = engine->running[engine->running_count - 1];
        running_remove(engine, youngest);
        queue_insert(engine, youngest);
        engine->held = 1;
        engine->counters.requeued++;
        if (youngest == run) return 0;
    }
    return 1;
}

/* ---- after a pass ---- */

static int is_stop(const struct engine *engine, const struct run *run, int32_t token)
{
    const struct model_config *config = &engine->model->config;
    for (int i = 0; !run->request.ignore_stop && i < config->eos_count; i++) {
        if (config->eos_ids[i] == token) return 1;
    }
    return 0;
}

/* Draws the next token and says it; run_settle acts on what follows from it. */
static void run_draw(struct engine *engine, struct run *run, const float *logits)
{
    struct kvf_err why = {""};
    struct choice choice;
    uint64_t position = (uint64_t)run->request.prompt_tokens + (uint64_t)run->outputs;
    if (sample_token(logits, engine->info.vocab, &run->request.sampling, run->request.seed, position, engine->places,
                     &choice, &why) != 0) {
        snprintf(run->figures.error, sizeof run->figures.error, "%s", why.text);
        run->ending = FINISH_ERROR;
        return;
    }
    if (run->announced == 0) run->figures.ttft_us = clock_us() - run->submitted_us;
    if (choice.margin < run->figures.min_margin) run->figures.min_margin = choice.margin;
    run->output[run->outputs++] = choice.token;
    run->state = RUN_DECODE;
    if (is_stop(engine, run, choice.token))
        run->ending = FINISH_STOP;
    else if (run->outputs == run->request.max_new_tokens)
        run->ending = FINISH_LENGTH;
    run_announce(engine, run, run->outputs - 1, run->ending >= 0);
}

static void run_measure(struct engine *engine, struct run *run)
{
    int64_t live = kv_seq_live_bytes(engine->kv, run->seq);
    if (live > run->figures.kv_live_peak_bytes) run->figures.kv_live_peak_bytes = live;
    if (run->state == RUN_DECODE) run->live_sum += (double)live;
}

static int run_is_due(const struct run *run)
{
    const struct policy *policy = &run->request.policy;
    const struct kv_schedule schedule = schedule_of(run);
    if (run->ending >= 0 || run->prefilled < run->request.prompt_tokens) return 0;
    if (policy->stop_after_think && run->thinking_tokens >= 0) return 0;
    return kv_compaction_due(run->seq, policy, &schedule);
}

/* Compacts, together, what is due among the first `count` chosen runs; each is charged an equal share of the time. */
static void batch_compact(struct engine *engine, int count)
{
    int due = 0;
    for (int s = 0; s < count; s++) {
        struct run *run = engine->chosen[s];
        const struct request *request = &run->request;
        if (!run_is_due(run)) continue;
        run_show_entries(engine, run, 0);
        engine->due_run[due] = run;
        engine->due[due++] = (struct kv_due){
            .seq = run->seq,
            .policy = &request->policy,
            .model = &engine->scored,
            .layer_budget = run->layer_budget,
            .budget_tokens = request->budget_tokens,
            .protected_tokens = request->policy.protect_prompt ? request->prompt_tokens : 0,
            .memory = run->memory,
            .seed = request->seed,
        };
    }
    if (due == 0) return;
    const int64_t begin = clock_us();
    int64_t work_ns = 1;
    kv_compact(engine->kv, engine->due, due, &engine->ops->compact, decoder_threads(engine->decoder));
    int64_t spent = clock_us() - begin;
    engine->counters.compaction_us += spent;
    engine->counters.compactions += due;
    for (int i = 0; i < due; i++) work_ns += engine->due[i].stats.work_ns;
    const double lists = (double)engine->info.layers * (double)engine->info.kv_heads;
    for (int i = 0; i < due; i++) {
        struct run *run = engine->due_run[i];
        run->compaction_us += (double)spent * (double)engine->due[i].stats.work_ns / (double)work_ns;
        run->figures.compactions++;
        run->figures.evicted_entries += engine->due[i].stats.evicted_entries;
        run->kept_mean_sum += (double)engine->due[i].stats.kept_entries / lists;
        run_show_entries(engine, run, 1);
        if (engine->due[i].rc == 0) continue;
        snprintf(run->figures.error, sizeof run->figures.error, "%.255s", engine->due[i].err.text);
        run->ending = FINISH_ERROR;
    }
}

/* Finishes the chosen runs that do not go on. */
static void batch_settle(struct engine *engine, int count)
{
    for (int s = 0; s < count; s++) {
        struct run *run = engine->chosen[s];
        if (run->ending >= 0) run_finish(engine, run, (enum finish_reason)run->ending);
    }
}

/* ---- the two passes of a step ---- */

static int batch_prefill(struct engine *engine)
{
    int left = engine->prefill_chunk_tokens, segments = 0, tokens = 0;
    for (int i = 0; i < engine->running_count && left > 0; i++) {
        struct run *run = engine->running[i];
        if (run->state != RUN_PREFILL) continue;
        int count = run->request.prompt_tokens - run->prefilled;
        if (count > left) count = left;
        if (!run_reserve(engine, i, count)) break;
        engine->chosen[segments] = run;
        engine->segments[segments++] = (struct segment){
            .seq = run->seq,
            .tokens = run->prompt + run->prefilled,
            .count = count,
            .first_position = run->prefilled,
            .wants_logits = run->prefilled + count == run->request.prompt_tokens,
        };
        left -= count;
        tokens += count;
    }
    if (segments == 0) return 0;
    int64_t begin = clock_us();
    decoder_forward(engine->decoder, engine->kv, engine->segments, segments, NULL);
    int64_t spent = clock_us() - begin;
    engine->counters.prefill_us += spent;
    engine->counters.prefill_tokens += tokens;
    for (int s = 0; s < segments; s++) {
        struct run *run = engine->chosen[s];
        run->prefilled += engine->segments[s].count;
        run->figures.prefill_us += spent * engine->segments[s].count / tokens;
        run_measure(engine, run);
        /* A prompt that is compacted now is shown there, before and after. */
        if (engine->segments[s].wants_logits && !run_is_due(run)) run_show_entries(engine, run, 0);
    }
    batch_compact(engine, segments); /* no token drawn yet: PROMPT_AT_PREFILL */
    for (int s = 0; s < segments; s++) {
        struct run *run = engine->chosen[s];
        if (!engine->segments[s].wants_logits || run->ending >= 0) continue;
        run_draw(engine, run, engine->segments[s].logits);
    }
    batch_settle(engine, segments);
    return segments;
}

void step_split(int64_t spent_ns, int64_t attend_ns, const int64_t *entries, int count, double *share_us)
{
    int64_t all = 0;
    for (int s = 0; s < count; s++) all += entries[s];
    const double even = (double)(spent_ns - attend_ns) / count, an_entry = (double)attend_ns / (double)all;
    for (int s = 0; s < count; s++) share_us[s] = (even + an_entry * (double)entries[s]) * 1e-3;
}

static int batch_decode(struct engine *engine)
{
    int segments = 0;
    for (int i = 0; i < engine->running_count; i++) {
        struct run *run = engine->running[i];
        if (run->state != RUN_DECODE) continue;
        if (!run_reserve(engine, i, 1)) break;
        engine->chosen[segments] = run;
        engine->segments[segments++] = (struct segment){
            .seq = run->seq,
            .tokens = run->output + run->outputs - 1,
            .count = 1,
            .first_position = run->request.prompt_tokens + run->outputs - 1,
            .wants_logits = 1,
        };
    }
    if (segments == 0) return 0;
    const int64_t begin = clock_ns();
    decoder_forward(engine->decoder, engine->kv, engine->segments, segments, NULL);
    for (int s = 0; s < segments; s++) {
        struct run *run = engine->chosen[s];
        engine->held_entries[s] = kv_seq_entries(run->seq);
        run->decode_steps++;
        run->batch_sum += segments;
        if (segments > run->figures.batch_max) run->figures.batch_max = segments;
        run_measure(engine, run);
        run_draw(engine, run, engine->segments[s].logits);
    }
    const int64_t spent = clock_ns() - begin;
    engine->counters.decode_us += spent / 1000;
    step_split(spent, decoder_attend_ns(engine->decoder), engine->held_entries, segments, engine->step_us);
    for (int s = 0; s < segments; s++) engine->chosen[s]->share_us += engine->step_us[s];
    batch_compact(engine, segments);
    batch_settle(engine, segments);
    return segments;
}

static void batch_cancel(struct engine *engine)
{
    for (int i = engine->running_count - 1; i >= 0; i--) {
        if (engine->running[i]->cancelled) run_finish(engine, engine->running[i], FINISH_CANCELLED);
    }
    for (struct run *run = engine->queue, *next; run != NULL; run = next) {
        next = run->next;
        if (run->cancelled) run_finish(engine, run, FINISH_CANCELLED);
    }
}

int batch_step(struct engine *engine, struct kvf_err *err)
{
    struct run **end = engine->finished_end;
    engine->in_step = 1;
    batch_admit(engine);
    int worked = batch_prefill(engine);
    worked += batch_decode(engine);
    engine->in_step = 0;
    batch_cancel(engine);
    if (worked == 0 && engine->finished_end == end && engine->queue == NULL && engine->running_count == 0) {
        return kvf_fail(err, KVF_EAGAIN, "nothing to decode: no request queued or running");
    }
    engine->counters.steps++;
    return 0;
}
