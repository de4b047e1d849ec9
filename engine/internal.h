/* internal.h: what the files of the engine's top level share: the engine, its running requests. */
#ifndef KVF_ENGINE_INTERNAL_H
#define KVF_ENGINE_INTERNAL_H

#include "engine/cpu/decoder.h"
#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/model/model.h"
#include "engine/sample.h"
#include "engine/tokenizer/tokenizer.h"

/* Longest observation window a policy may use: the cache remembers that many queries of every sequence. */
#define ENGINE_WINDOW_TOKENS 32

enum run_state {
    RUN_QUEUED,  /* on engine.queue, holds no pages */
    RUN_PREFILL, /* on engine.running, prompt not yet in the cache */
    RUN_DECODE,  /* on engine.running, last token not yet in the cache */
    RUN_DONE,    /* on engine.finished */
};

struct run {
    struct run *next;
    enum run_state state;
    uint64_t order;         /* of submission: the queue and the running list ascend in it */
    struct request request; /* prompt_ids is our copy, profile is not kept */
    int32_t *prompt;        /* [request.prompt_tokens] */
    int32_t *output;        /* [request.max_new_tokens] */
    int64_t *layer_budget;  /* [layers] */
    double *memory;         /* policy_memory_doubles, what compactions remember; NULL: nothing */
    int cancelled;          /* asked for from inside a step */

    /* This attempt; a sequence that was sent back starts again and gives the same tokens. */
    struct kv_seq *seq;
    int prefilled, outputs;
    int ending;    /* finish_reason that the last token brought, -1: goes on */
    int announced; /* tokens that on_token has seen, over all attempts */
    struct detok detok;
    int think_match;     /* bytes of "</think>" that the text ends with */
    int thinking_tokens; /* -1: not closed */

    struct completion figures;
    int64_t submitted_us;
    int admitted;    /* queue_us is measured */
    double share_us; /* decode_share_us before rounding */
    double compaction_us;
    double live_sum, batch_sum;
    int decode_steps;
    double kept_mean_sum; /* of entries a (layer, head) after compactions */
};

struct engine {
    struct model *model;
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    struct kv_pool *kv;
    const struct cpu_ops *ops;
    struct engine_info info;
    int max_batch, prefill_chunk_tokens;
    int kv_half;            /* K and V are stored as bf16 */
    struct kv_model scored; /* what scorers read of the model */
    float *output;          /* [layers][heads][head_dim][hidden] or NULL: no request needed it yet */
    int64_t output_bytes;
    int64_t total_pages;
    int32_t think_open_id, think_close_id; /* -1: not a token */

    struct run *queue;    /* ascending order */
    struct run **running; /* [max_batch], ascending order */
    int running_count;
    struct run *finished, **finished_end;
    uint64_t next_order;
    int in_step;
    int held; /* a sequence was sent back: nothing is admitted until one finishes */

    struct segment *segments;    /* [max_batch] */
    struct run **chosen;         /* [max_batch] run of each segment */
    struct kv_due *due;          /* [max_batch] what one kv_compact does */
    struct run **due_run;        /* [max_batch] whose it is */
    struct sample_place *places; /* [vocab] */
    int32_t *entries;            /* [layers][kv_heads] what on_entries is shown */
    int64_t *held_entries;       /* [max_batch] of each segment's sequence, over all layers and heads */
    double *step_us;             /* [max_batch] what each segment had of a step */
    struct engine_counters counters;
};

/* What each of `count` sequences had of a decode step: attention by the entries it holds, the rest evenly. Adds up to
 * spent_ns. share_us: [count]. */
void step_split(int64_t spent_ns, int64_t attend_ns, const int64_t *entries, int count, double *share_us);
/* KVF_EINVAL: empty, no room for one token of output, or an id that the vocabulary lacks. */
int prompt_check(const struct engine *engine, const int32_t *ids, int count, struct kvf_err *err);

/* ---- batch.c ---- */
int batch_step(struct engine *engine, struct kvf_err *err);
/* Takes a run off its list, gives its pages back and puts it on `finished`. */
void run_finish(struct engine *engine, struct run *run, enum finish_reason reason);
void run_free(struct run *run);
/* Links a run into the queue at the place of its order. */
void queue_insert(struct engine *engine, struct run *run);

/* ---- prepare.c ---- */
/* Makes what the policy's scorer reads and no earlier request needed; a step then allocates nothing. */
int engine_prepare(struct engine *engine, const struct policy *policy, struct kvf_err *err);

/* ---- text.c ---- */
/* Feeds output token `index` (the last one: flush too) to the run's detokeniser and calls on_token if it is news. */
void run_announce(struct engine *engine, struct run *run, int index, int last);
/* malloc'd text of the output; NULL when out of memory. */
char *run_text(const struct engine *engine, const struct run *run);

#endif
