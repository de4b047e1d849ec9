/* bench_policy share|memory [--quick]: what compaction costs, and what a small budget buys, with the SmolLM2-135M
 * shape.
 *
 * share: compaction's share of decode time, per policy, at budget 512 and 128, interval 128, batch 8. Prompts of random
 * tokens end shortly before the first compaction; the window that is measured is `interval` steps long, in which every
 * sequence is compacted once.
 * memory: sequences and emitted tokens a second in a fixed cache: the tiny reasoner in 64 MiB, the shape in 2 GiB. For
 * policies the steady state is measured; it does not depend on the length. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/random_model.h"

static struct engine *engine_of(const char *folder, int max_batch, int64_t kv_bytes)
{
    struct engine_options options = {.model_folder = folder,
                                     .kv_type = "bf16",
                                     .threads = (int)sysconf(_SC_NPROCESSORS_ONLN),
                                     .max_batch = max_batch,
                                     .kv_bytes = kv_bytes};
    struct engine *engine = NULL;
    struct kvf_err err = {""};
    check(engine_open(&options, &engine, &err), &err);
    return engine;
}

static struct wave_profile flat_profile(const struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    struct wave_profile profile = {
        .layers = info->layers, .kv_heads = info->kv_heads, .window_tokens = 8, .rho = 0.93, .probes = 1, .samples = 1};
    for (int l = 0; l < info->layers; l++)
        profile.demand[l] = 0.6 + 0.8 * (double)(l * 7 % info->layers) / info->layers;
    snprintf(profile.model_hash, sizeof profile.model_hash, "%s", info->model_hash);
    return profile;
}

static void submit(struct engine *engine, const char *policy, const struct wave_profile *profile, int budget,
                   int interval, int prompt_tokens, int count, int max_new_tokens)
{
    struct kvf_err err = {""};
    struct request request = {.prompt_tokens = prompt_tokens,
                              .budget_tokens = budget,
                              .interval_tokens = interval,
                              .profile = profile,
                              .max_new_tokens = max_new_tokens,
                              .ignore_stop = 1};
    check(policy_parse(policy, &request.policy, &err), &err);
    int32_t *ids = malloc((size_t)prompt_tokens * sizeof *ids);
    if (ids == NULL) exit(1);
    request.prompt_ids = ids;
    for (int s = 0; s < count; s++) {
        uint64_t state = 77 + (uint64_t)s;
        for (int i = 0; i < prompt_tokens; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((state >> 33) % 250);
        }
        request.id = (uint64_t)s;
        check(engine_submit(engine, &request, &err), &err);
    }
    free(ids);
}

static void step(struct engine *engine)
{
    struct kvf_err err = {""};
    check(engine_step(engine, &err), &err);
}

/* Until every prompt is in the cache: only then is a step a decode step of all. */
static void prefill(struct engine *engine, int64_t tokens)
{
    while (engine_counters(engine).prefill_tokens < tokens) step(engine);
}

/* ---- share ---- */

static void share_measure(const char *folder, const char *policy, int budget, int interval, int batch)
{
    const int early = 4;
    struct engine *engine = engine_of(folder, batch, (int64_t)1 << 30);
    struct wave_profile profile = flat_profile(engine);
    int prompt = budget + interval - early;
    submit(engine, policy, &profile, budget, interval, prompt, batch, interval + 4 * early);
    prefill(engine, (int64_t)prompt * batch);
    struct engine_counters before = engine_counters(engine);
    double begin = now_s();
    for (int i = 0; i < interval; i++) step(engine);
    double spent = now_s() - begin;
    struct engine_counters after = engine_counters(engine);
    double compaction = (double)(after.compaction_us - before.compaction_us),
           decode = (double)(after.decode_us - before.decode_us);
    printf("%-24s %6d %8d %5d %12.0f %11.2f %12.1f\n", policy, budget, interval, batch,
           (double)interval * batch / spent, compaction / (double)(after.compactions - before.compactions) / 1000,
           100 * compaction / (decode + compaction));
    fflush(stdout);
    engine_close(&engine);
}

static void share(const char *folder, int quick)
{
    static const char *const policies[] = {"streaming", "snapkv",      "rkv",     "layer-only",
                                           "head-only", "reasonalloc", "ada-rkv", "h2o"};
    struct engine *engine = engine_of(folder, 1, 64 << 20);
    printf("%s, kernels %s, %ld threads\n", random_smollm2_135m.name, engine_info(engine)->kernel_set,
           sysconf(_SC_NPROCESSORS_ONLN));
    engine_close(&engine);
    printf("policy                   budget interval batch decode_tok/s ms_each    compact_%%\n");
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        if (quick && strcmp(policies[p], "reasonalloc") != 0) continue;
        share_measure(folder, policies[p], 512, 128, 8);
        share_measure(folder, policies[p], 128, 128, 8);
    }
}

/* ---- memory ---- */

/* Seconds a decode step and sequences in it after `prompt` tokens of a sequence that may grow to `length`, with as many
 * as fit (at most `most`). */
static double step_time(const char *folder, int64_t kv_bytes, const char *policy, int budget, int interval, int prompt,
                        int length, int most, int steps, int *batch)
{
    struct engine *engine = engine_of(folder, most, kv_bytes);
    struct wave_profile profile = flat_profile(engine);
    submit(engine, policy, &profile, budget, interval, prompt, most, length - prompt);
    /* The batch is full once a step prefills nothing. */
    struct engine_counters before, after = engine_counters(engine);
    do {
        before = after;
        step(engine);
        after = engine_counters(engine);
    } while (after.prefill_tokens > before.prefill_tokens);
    before = after;
    double begin = now_s();
    for (int i = 0; i < steps; i++) step(engine);
    double spent = now_s() - begin;
    after = engine_counters(engine);
    *batch = (int)((after.emitted_tokens - before.emitted_tokens) / steps);
    engine_close(&engine);
    return spent / steps;
}

/* A step costs a constant and something a cached token, so the mean over an output that grows to `length` is what a
 * step costs at half of it. */
static void full_measure(const char *folder, int64_t kv_bytes, int length, int most, const char *what)
{
    int batch;
    double t = step_time(folder, kv_bytes, "full", 1, 1, length / 2, length, most, 16, &batch);
    printf("%-24s %6s %5d %12.0f   (%s; a step %.1f ms at %d tokens)\n", "full", "-", batch, batch / t, what, t * 1e3,
           length / 2);
    fflush(stdout);
}

static void budget_measure(const char *folder, int64_t kv_bytes, const char *policy, int budget, int interval,
                           int length, int most, const char *what)
{
    int batch;
    double t = step_time(folder, kv_bytes, policy, budget, interval, budget, length, most, interval, &batch);
    printf("%-24s %6d %5d %12.0f   (%s)\n", policy, budget, batch, batch / t, what);
    fflush(stdout);
}

static void memory(const char *tiny, const char *folder, int quick)
{
    static const int tiny_budgets[] = {256, 192, 128, 96, 64};
    printf("tiny-reasoner, 64 MiB of cache, interval 32, outputs of 1,024 tokens\n");
    printf("policy                   budget batch        tok/s\n");
    full_measure(tiny, 64 << 20, 1024, 256, "largest batch that fits");
    for (size_t i = 0; i < sizeof tiny_budgets / sizeof *tiny_budgets; i++) {
        budget_measure(tiny, 64 << 20, "reasonalloc", tiny_budgets[i], 32, 1024, 256,
                       "largest batch that fits, at most 256");
    }
    if (quick) return;
    const int64_t cache = (int64_t)2 << 30;
    printf("\n%s, 2 GiB of cache, interval 128, outputs of 8,192 tokens\n", random_smollm2_135m.name);
    printf("policy                   budget batch        tok/s\n");
    full_measure(folder, cache, 8192, 8, "same batch");
    budget_measure(folder, cache, "reasonalloc", 512, 128, 8192, 8, "same batch");
    budget_measure(folder, cache, "reasonalloc", 128, 128, 8192, 8, "same batch");
    full_measure(folder, cache, 8192, 64, "largest batch that fits");
    budget_measure(folder, cache, "reasonalloc", 512, 128, 8192, 128, "largest batch that fits, at most 128");
    budget_measure(folder, cache, "reasonalloc", 128, 128, 8192, 256, "largest batch that fits, at most 256");
}

int main(int argc, char **argv)
{
    const char *source = getenv("KVF_SOURCE"), *build = getenv("KVF_BUILD");
    if (argc < 2 || source == NULL || build == NULL) {
        fprintf(stderr, "usage: KVF_SOURCE=DIR KVF_BUILD=DIR bench_policy share|memory [--quick]\n");
        return 64;
    }
    int quick = argc > 2 && strcmp(argv[2], "--quick") == 0;
    char tiny[4096], folder[4096];
    snprintf(tiny, sizeof tiny, "%s/models/tiny-reasoner", source);
    snprintf(folder, sizeof folder, "%s/smollm2-135m-random", build);
    if (random_model_write(folder, &random_smollm2_135m, tiny) != 0) return 1;
    if (strcmp(argv[1], "share") == 0)
        share(folder, quick);
    else
        memory(tiny, folder, quick);
    return 0;
}
