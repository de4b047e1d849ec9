/* engine.h: the decoder. The only header of engine/ that others include.
 *
 * An engine is one loaded model, its page pool and a running batch (continuous batching: requests join and leave
 * between steps). It is driven by one thread that calls engine_step; compute threads inside are its own. Results are
 * batch-invariant: tokens depend on the model, the request and the kernel set, never on neighbours, batch size,
 * chunking or thread count.
 *
 * Ownership: the engine copies what engine_submit is given; a completion belongs to the caller (completion_free).
 * Times are CLOCK_MONOTONIC microseconds.
 */
#ifndef KVF_ENGINE_H
#define KVF_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"
#include "alloc/policy.h"
#include "alloc/profile.h"

struct engine;

struct engine_options {
    const char *model_folder;
    const char *kernels;      /* "auto", "avx512bf16", "avx2", "plain" */
    const char *kv_type;      /* "f32" (NULL too), or "bf16": K and V rounded to half the bytes */
    int threads;              /* compute threads, >= 1; results do not depend on it */
    int max_batch;            /* sequences decoding at once, 1...256 */
    int prefill_chunk_tokens; /* prompt tokens in one step, default 256 when 0 */
    int64_t kv_bytes;         /* page slab; 0: room for max_batch sequences of full context, at most 1 GiB */
};

struct engine_info {
    char model_name[128], model_hash[65], architecture[64];
    char kernel_set[32]; /* the set that runs, and "+kv-bf16": bit-identity is promised within one such name */
    int layers, heads, kv_heads, head_dim, hidden, vocab, context_tokens;
    int64_t parameters, weights_bytes;
    int64_t kv_reserved_bytes, workspace_bytes; /* grow when a request's policy is the first to need more */
    int64_t kv_bytes_per_token;                 /* of full cache */
    int64_t kv_page_bytes; /* live bytes are pages; each holds kv_page_entries of one (layer, kv head) */
    int kv_page_entries;
    int max_batch, threads;
    const char *chat_family; /* NULL: none known */
};

KVF_MUSTCHECK int engine_open(const struct engine_options *options, struct engine **out, struct kvf_err *err);
void engine_close(struct engine **engine);
const struct engine_info *engine_info(const struct engine *engine);
/* Hex SHA-256 that names a model folder's contents, without loading it. hex[65]. */
KVF_MUSTCHECK int engine_model_hash(const char *folder, char *hex, struct kvf_err *err);
/* The path of the model file that is mapped at `address`, NULL for any other address. Async-signal-safe: a model file
 * that is shortened while an engine has it open is a SIGBUS at one of its addresses. */
const char *engine_mapped_path(const void *address);
/* Kernel sets this machine can run, best first; NULL past the end. */
const char *engine_kernel_set(int index);

/* ---- text ---- */

/* Prompt ids for a user message: chat template ("auto", "raw" or a family), tokens, exactly one BOS where the model has
 * one. *ids is malloc'd, the caller frees. *text (optional) gets the malloc'd prompt text. */
KVF_MUSTCHECK int engine_prompt(const struct engine *engine, const char *template_name, const char *user, int32_t **ids,
                                int *count, char **text, struct kvf_err *err);

/* Whether a worker that loads `folder` will know `template_name`, from config.json and tokenizer files alone. */
KVF_MUSTCHECK int engine_check_template(const char *folder, const char *template_name, struct kvf_err *err);

/* ---- requests ---- */

struct sampling {
    double temperature; /* 0: greedy, the lowest id on a tie */
    double top_p;       /* (0, 1], 1: off */
    int top_k;          /* 0: off */
};

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };
const char *finish_reason_name(enum finish_reason reason); /* "stop" "length" "cancelled" "error" */

struct request {
    uint64_t id; /* the caller's; unique among running requests */
    const int32_t *prompt_ids;
    int prompt_tokens;
    struct policy policy;
    int budget_tokens, interval_tokens;
    const struct wave_profile *profile; /* needed when policy_needs_profile */
    struct sampling sampling;
    uint64_t seed;      /* keys the sampling generator and the random policy */
    int max_new_tokens; /* cut to what the context leaves */
    int ignore_stop;    /* benches and golden tests: go on past stop ids */
    /* Called in engine_step for each new token with the complete characters that became available; may be NULL. */
    void (*on_token)(void *user, uint64_t id, int32_t token, const char *text, size_t len);
    /* Entries of every (layer, kv head), [layers][kv_heads], which live as long as the call: after prefill, before and
     * after (`compacted`) each compaction, and at the end, inside engine_step or engine_cancel. In between every head
     * grows by one a token. A sequence that was sent back starts again: tokens_seen falls. May be NULL. */
    void (*on_entries)(void *user, uint64_t id, int tokens_seen, int compacted, const int32_t *entries);
    void *user; /* of both calls */
};

/* Validates and queues. KVF_EINVAL: empty prompt, prompt + 1 > context (line says both numbers), budget, a protected
 * prompt that the budget cannot hold (line says both, and what would), profile. */
KVF_MUSTCHECK int engine_submit(struct engine *engine, const struct request *request, struct kvf_err *err);
int engine_cancel(struct engine *engine, uint64_t id); /* completes it as cancelled; KVF_ENOTFOUND */
int engine_load(const struct engine *engine);          /* requests queued and running */

/* One step: admit, prefill one chunk, decode one token of each running sequence, compact what is due. Returns 0, or
 * KVF_EAGAIN when there is nothing to do. What goes wrong with one request completes it with FINISH_ERROR. */
KVF_MUSTCHECK int engine_step(struct engine *engine, struct kvf_err *err);

/* A figure that was not measured is negative. */
struct completion {
    uint64_t id;
    enum finish_reason finish;
    char error[256]; /* why, for FINISH_ERROR */
    int32_t *output_ids;
    int prompt_tokens, output_tokens, thinking_tokens; /* thinking: up to and with </think>; -1 when never closed */
    char *text;                /* output text, special tokens left out, <think> tags kept; NUL-terminated */
    uint64_t output_hash;      /* FNV-1a 64 over the output ids: equal runs have equal hashes */
    int64_t queue_us, ttft_us; /* submit to admission; submit to first token */
    int64_t prefill_us;        /* time of the prefill chunks of this prompt */
    int64_t decode_share_us;   /* its share of each decode step (compaction apart), summed: attention by the entries
                                * held, the rest evenly */
    int64_t compaction_us;
    int64_t total_us; /* submit to finish */
    int compactions;
    int64_t evicted_entries;
    double budget_achieved; /* mean entries per (layer, head) right after compactions; -1: none happened */
    int64_t kv_live_mean_bytes, kv_live_peak_bytes; /* pages in use; mean over decode steps */
    double batch_mean;                              /* sequences in its decode steps */
    int batch_max;
    float min_margin; /* smallest gap between best and second logit over the output */
};
/* Takes one finished request; 1 when there was one, 0 otherwise. */
int engine_poll(struct engine *engine, struct completion *out);
void completion_free(struct completion *completion);

/* ---- measuring ---- */

/* The wave profile of the loaded model (alloc.md 1.4): decodes each prompt greedily with full cache and samples the
 * attention of the last window queries at `from_tokens` and every `every_tokens` after it. */
struct calibration {
    int max_new_tokens, from_tokens, every_tokens, window_tokens;
    double rho;
};
KVF_MUSTCHECK int engine_calibrate(struct engine *engine, const int32_t *const *prompts, const int *prompt_tokens,
                                   int count, const struct calibration *how, struct wave_profile *out,
                                   struct kvf_err *err);

/* Logits of the last position [vocab] and, where hidden != NULL, the residual stream of the last position after the
 * embedding, after each layer, and after the final norm [layers + 2][hidden]: what golden tests compare. */
KVF_MUSTCHECK int engine_logits(struct engine *engine, const int32_t *ids, int count, float *logits, float *hidden,
                                struct kvf_err *err);

/* Walks the page pool (kv_check); for tests. */
KVF_MUSTCHECK int engine_check(const struct engine *engine, struct kvf_err *err);
struct engine_counters {
    int64_t steps, emitted_tokens, prefill_tokens, compactions;
    int64_t prefill_us, decode_us, compaction_us;
    int64_t requeued; /* sequences sent back for lack of pages */
};
struct engine_counters engine_counters(const struct engine *engine);

#endif
