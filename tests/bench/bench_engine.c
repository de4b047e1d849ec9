/* bench_engine MODEL DATASET PROBES: speed of the decoder on this machine. For full cache and reasonalloc (b 128,
 * interval 32), K and V in f32 and bf16, batch 1, 8, 32, and 1 and 2 compute threads: emitted tokens a second of decode
 * steps (compaction included) and end to end, and compaction's share of decode time. DATASET and PROBES are .jsonl with
 * "problem". */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"
#include "tests/bench/bench.h"

#define PROMPTS 128

struct prompts {
    int32_t *ids[PROMPTS];
    int tokens[PROMPTS];
    int count;
};

static struct prompts prompts_read(const struct engine *engine, const char *path, int limit)
{
    struct prompts prompts = {.count = 0};
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    char *line = NULL;
    size_t cap = 0;
    while (prompts.count < limit && getline(&line, &cap, file) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        const char *problem = json_string_value(json_object_get(row, "problem"));
        struct kvf_err err = {""};
        if (problem == NULL) {
            fprintf(stderr, "bench_engine: %s: a line has no \"problem\"\n", path);
            exit(1);
        }
        int at = prompts.count++;
        check(engine_prompt(engine, "auto", problem, &prompts.ids[at], &prompts.tokens[at], NULL, &err), &err);
        json_decref(row);
    }
    free(line);
    fclose(file);
    return prompts;
}

static void prompts_free(struct prompts *prompts)
{
    for (int i = 0; i < prompts->count; i++) free(prompts->ids[i]);
}

static struct engine *open_model(const char *model, const char *kv_type, int batch, int threads)
{
    struct engine_options options = {.model_folder = model, .threads = threads, .max_batch = batch, .kv_type = kv_type};
    struct engine *engine = NULL;
    struct kvf_err err = {""};
    check(engine_open(&options, &engine, &err), &err);
    return engine;
}

static void measure(const char *model, const char *data, const char *policy, const struct wave_profile *profile,
                    const char *kv_type, int batch, int threads)
{
    struct kvf_err err = {""};
    struct engine *engine = open_model(model, kv_type, batch, threads);
    struct prompts prompts = prompts_read(engine, data, batch == 1 ? 6 : batch == 8 ? 40 : PROMPTS);
    struct policy parsed;
    check(policy_parse(policy, &parsed, &err), &err);
    double begin = now_s();
    for (int i = 0; i < prompts.count; i++) {
        struct request request = {.id = (uint64_t)i,
                                  .prompt_ids = prompts.ids[i],
                                  .prompt_tokens = prompts.tokens[i],
                                  .policy = parsed,
                                  .budget_tokens = 128,
                                  .interval_tokens = 32,
                                  .profile = profile,
                                  .max_new_tokens = 700};
        check(engine_submit(engine, &request, &err), &err);
    }
    while (engine_step(engine, &err) == 0) {
    }
    double spent = now_s() - begin;
    struct engine_counters counters = engine_counters(engine);
    struct completion completion;
    int64_t tokens = 0, samples = 0;
    double batch_mean = 0;
    while (engine_poll(engine, &completion)) {
        tokens += completion.output_tokens;
        batch_mean += completion.batch_mean;
        samples++;
        completion_free(&completion);
    }
    double decode_s = (double)(counters.decode_us + counters.compaction_us) * 1e-6;
    printf("%-12s %-5s %5d %7d %7lld %7.1f %9.1f %12.0f %12.0f %10.1f\n", policy, kv_type, batch, threads,
           (long long)samples, (double)tokens / (double)samples, batch_mean / (double)samples,
           (double)(counters.emitted_tokens - samples) / decode_s, (double)tokens / spent,
           100.0 * (double)counters.compaction_us / (double)(counters.decode_us + counters.compaction_us));
    fflush(stdout);
    prompts_free(&prompts);
    engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_engine MODEL DATASET PROBES [POLICY KV BATCH THREADS]\n");
        return 64;
    }
    struct kvf_err err = {""};
    struct engine *engine = open_model(argv[1], "f32", 1, 1);
    struct prompts probes = prompts_read(engine, argv[3], 8);
    struct calibration how = {
        .max_new_tokens = 700, .from_tokens = 256, .every_tokens = 32, .window_tokens = 8, .rho = 0.93};
    struct wave_profile profile;
    check(
        engine_calibrate(engine, (const int32_t *const *)probes.ids, probes.tokens, probes.count, &how, &profile, &err),
        &err);
    printf("%s, %lld parameters, kernels %s\nwave profile (%d samples):", engine_info(engine)->model_name,
           (long long)engine_info(engine)->parameters, engine_info(engine)->kernel_set, profile.samples);
    for (int l = 0; l < profile.layers; l++) printf(" %.3f", profile.demand[l]);
    printf("\npolicy       kv    batch threads samples  tokens batch_mean decode_tok/s    all_tok/s compact_%%\n");
    prompts_free(&probes);
    engine_close(&engine);
    if (argc == 8) {
        measure(argv[1], argv[2], argv[4], &profile, argv[5], atoi(argv[6]), atoi(argv[7]));
        return 0;
    }
    static const int batches[] = {1, 8, 32};
    for (int threads = 1; threads <= 2; threads++) {
        for (int kv = 0; kv < 2; kv++) {
            const char *kv_type = kv == 0 ? "f32" : "bf16";
            for (int b = 0; b < 3; b++) measure(argv[1], argv[2], "full", &profile, kv_type, batches[b], threads);
            for (int b = 0; b < 3; b++) {
                measure(argv[1], argv[2], "reasonalloc", &profile, kv_type, batches[b], threads);
            }
        }
    }
    return 0;
}
