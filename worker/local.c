/* local.c: see local.h. */
#include "worker/local.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "worker/dataset.h"
#include "worker/machine.h"
#include "worker/new_file.h"
#include "worker/text.h"

#define PROFILE_TEXT_MAX 65535 /* the wire's limit */

/* ---- wave profiles ---- */

char *local_profile_path(const char *model_folder)
{
    size_t len = strlen(model_folder) + sizeof LOCAL_PROFILE_NAME + 1;
    char *path = malloc(len);
    if (path != NULL) snprintf(path, len, "%s/%s", model_folder, LOCAL_PROFILE_NAME);
    return path;
}

static int profile_text(const char *path, char **text, size_t *len, struct kvf_err *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        if (errno == ENOENT)
            return kvf_fail(
                err, KVF_ENOTFOUND,
                "%s: no wave profile there; `kvfleet calibrate --model MODEL --dataset PROBES.jsonl` makes one", path);
        return kvf_fail(err, KVF_EIO, "%s: cannot open wave profile: %s", path, strerror(errno));
    }
    char *buffer = malloc(PROFILE_TEXT_MAX + 1);
    if (buffer == NULL) {
        fclose(file);
        return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", path);
    }
    *len = fread(buffer, 1, PROFILE_TEXT_MAX + 1, file);
    int broken = ferror(file), why = errno;
    fclose(file);
    if (broken || *len > PROFILE_TEXT_MAX) {
        free(buffer);
        if (broken) return kvf_fail(err, KVF_EIO, "%s: cannot read wave profile: %s", path, strerror(why));
        return kvf_fail(err, KVF_ECORRUPT, "%s: wave profile: expected at most %d bytes, got more", path,
                        PROFILE_TEXT_MAX);
    }
    buffer[*len] = 0;
    *text = buffer;
    return 0;
}

int local_load_profile(const char *path, const char *model_hash, int layers, int kv_heads, struct wave_profile *out,
                       char **text, struct kvf_err *err)
{
    char *document = NULL;
    size_t len = 0;
    struct kvf_err why = {""};
    if (text != NULL) *text = NULL;
    int rc = profile_text(path, &document, &len, err);
    if (rc != 0) return rc;
    rc = profile_parse(document, len, out, &why);
    if (rc == 0)
        rc = profile_check(out, model_hash, layers > 0 ? layers : out->layers, kv_heads > 0 ? kv_heads : out->kv_heads,
                           &why);
    if (rc != 0) {
        free(document);
        return kvf_fail(err, rc, "%s: %s", path, why.text);
    }
    if (text != NULL)
        *text = document;
    else
        free(document);
    return 0;
}

/* ---- one prompt ---- */

struct listener {
    FILE *stream; /* NULL: nobody */
    struct kv_map *map;
};

static void stream_token(void *user, uint64_t id, int32_t token, const char *text, size_t len)
{
    FILE *out = ((struct listener *)user)->stream;
    (void)id;
    (void)token;
    if (len == 0) return;
    fwrite(text, 1, len, out);
    fflush(out);
}

static void record_entries(void *user, uint64_t id, int tokens_seen, int compacted, const int32_t *entries)
{
    (void)id;
    kv_map_add(((struct listener *)user)->map, tokens_seen, compacted != 0, entries);
}

static int engine_open_local(const char *folder, const char *kernels, const char *kv_type, int threads,
                             int64_t kv_bytes, struct engine **out, struct kvf_err *err)
{
    struct engine_options options = {
        .model_folder = folder,
        .kernels = kernels == NULL ? "auto" : kernels,
        .threads = threads > 0 ? threads : machine_cores(),
        .kv_type = kv_type,
        .max_batch = 1,
        .kv_bytes = kv_bytes,
    };
    return engine_open(&options, out, err);
}

/* The profile of the policy, read only where one is needed. */
static int profile_for(const struct local_prompt *how, const struct engine_info *info, struct wave_profile *profile,
                       struct kvf_err *err)
{
    if (!policy_needs_profile(&how->policy)) return 0;
    char *own = how->profile_path == NULL ? local_profile_path(how->model_folder) : NULL;
    const char *path = how->profile_path == NULL ? own : how->profile_path;
    if (path == NULL) return kvf_fail(err, KVF_ENOMEM, "out of memory");
    int rc = local_load_profile(path, info->model_hash, info->layers, info->kv_heads, profile, NULL, err);
    free(own);
    return rc;
}

/* Steps until the one request is done. */
static int completion_wait(struct engine *engine, const volatile sig_atomic_t *stop, struct completion *out,
                           struct kvf_err *err)
{
    bool cancelled = false;
    while (engine_poll(engine, out) != 1) {
        if (stop != NULL && *stop != 0 && !cancelled) {
            cancelled = true;
            if (engine_cancel(engine, 1) == 0) continue;
        }
        int rc = engine_step(engine, err);
        if (rc != 0 && rc != KVF_EAGAIN) return rc;
        if (rc == KVF_EAGAIN && engine_load(engine) == 0) {
            if (engine_poll(engine, out) == 1) return 0;
            return kvf_fail(err, KVF_EIO, "the engine ended without a result");
        }
    }
    return 0;
}

/* Full cache over the same steps, in pages: the last token drawn never gets there. */
static void full_measure(struct local_answer *answer)
{
    const struct engine_info *info = &answer->info;
    const int64_t lists = (int64_t)info->layers * info->kv_heads;
    int64_t steps = answer->completion.output_tokens - 1, sum = 0, bytes = 0;
    if (steps < 0) steps = 0;
    for (int64_t step = 0; step <= steps; step++) {
        int64_t entries = answer->completion.prompt_tokens + step;
        bytes = (entries + info->kv_page_entries - 1) / info->kv_page_entries * lists * info->kv_page_bytes;
        if (step > 0) sum += bytes;
    }
    answer->kv_full_peak_bytes = bytes;
    answer->kv_full_mean_bytes = steps > 0 ? sum / steps : -1;
}

int local_generate(const struct local_prompt *how, struct local_answer *out, struct kvf_err *err)
{
    struct engine *engine = NULL;
    struct wave_profile *profile = NULL;
    int32_t *ids = NULL;
    int count = 0;
    memset(out, 0, sizeof *out);
    int rc = policy_check_budget(&how->policy, how->budget_tokens, how->interval_tokens, err);
    if (rc == 0)
        rc =
            engine_open_local(how->model_folder, how->kernels, how->kv_type, how->threads, how->kv_bytes, &engine, err);
    if (rc != 0) return rc;
    out->info = *engine_info(engine);
    if (out->info.chat_family != NULL) snprintf(out->family, sizeof out->family, "%s", out->info.chat_family);
    out->info.chat_family = NULL; /* it dies with the engine */
    kv_map_begin(&out->map, out->info.layers, out->info.kv_heads);
    struct listener listener = {how->stream, &out->map};
    profile = calloc(1, sizeof *profile);
    rc = profile == NULL ? kvf_fail(err, KVF_ENOMEM, "out of memory") : profile_for(how, &out->info, profile, err);
    if (rc == 0)
        rc = engine_prompt(engine, how->template_name == NULL ? "auto" : how->template_name, how->prompt, &ids, &count,
                           NULL, err);
    struct request request = {
        .id = 1,
        .prompt_ids = ids,
        .prompt_tokens = count,
        .policy = how->policy,
        .budget_tokens = how->budget_tokens,
        .interval_tokens = how->interval_tokens,
        .profile = policy_needs_profile(&how->policy) ? profile : NULL,
        .sampling = how->sampling,
        .seed = how->seed,
        .max_new_tokens = how->max_new_tokens > 0 ? how->max_new_tokens : out->info.context_tokens,
        .on_token = how->stream == NULL ? NULL : stream_token,
        .on_entries = how->record_entries ? record_entries : NULL,
        .user = &listener,
    };
    if (rc == 0) rc = engine_submit(engine, &request, err);
    if (rc == 0) rc = completion_wait(engine, how->stop, &out->completion, err);
    if (rc == 0 && out->completion.finish == FINISH_ERROR) rc = kvf_fail(err, KVF_EIO, "%s", out->completion.error);
    if (rc == 0) {
        snprintf(out->policy_name, sizeof out->policy_name, "%s", how->policy.name);
        out->budget_tokens = how->budget_tokens;
        out->interval_tokens = how->interval_tokens;
        full_measure(out);
    } else {
        local_answer_free(out);
    }
    free(ids);
    free(profile);
    engine_close(&engine);
    return rc;
}

void local_answer_free(struct local_answer *answer)
{
    completion_free(&answer->completion);
    kv_map_free(&answer->map);
    memset(answer, 0, sizeof *answer);
}

/* Emitted tokens over the time of their decode steps, compaction apart; negative when there is none. */
static double decode_rate(const struct completion *completion)
{
    if (completion->decode_share_us <= 0 || completion->output_tokens <= 0) return -1;
    return completion->output_tokens * 1e6 / (double)completion->decode_share_us;
}

static void print_count(FILE *out, const char *name, int64_t value, const char *unit)
{
    if (value >= 0) fprintf(out, "%-22s %lld%s\n", name, (long long)value, unit);
}

static void print_bytes(FILE *out, const char *name, int64_t value, int64_t full)
{
    if (value < 0) return;
    fprintf(out, "%-22s %.2f MiB", name, (double)value / 1048576.0);
    if (full > 0)
        fprintf(out, "  (%.2f of full cache, %.2f MiB)", (double)value / (double)full, (double)full / 1048576.0);
    fprintf(out, "\n");
}

void local_print_figures(const struct local_answer *answer, FILE *out)
{
    const struct completion *c = &answer->completion;
    bool full = answer->policy_name[0] != 0 && strcmp(answer->policy_name, "full") == 0;
    fprintf(out, "%-22s %s", "policy", answer->policy_name);
    if (!full) fprintf(out, ", budget %d, interval %d", answer->budget_tokens, answer->interval_tokens);
    fprintf(out, "\n%-22s %s\n", "finish", finish_reason_name(c->finish));
    print_count(out, "prompt", c->prompt_tokens, " tokens");
    print_count(out, "output", c->output_tokens, " tokens");
    print_count(out, "thinking", c->thinking_tokens, " tokens");
    if (c->ttft_us >= 0) fprintf(out, "%-22s %.1f ms\n", "time to first token", (double)c->ttft_us / 1000.0);
    if (decode_rate(c) >= 0) fprintf(out, "%-22s %.0f tokens/s\n", "decode", decode_rate(c));
    print_bytes(out, "KV cache, mean", c->kv_live_mean_bytes, answer->kv_full_mean_bytes);
    print_bytes(out, "KV cache, peak", c->kv_live_peak_bytes, answer->kv_full_peak_bytes);
    print_count(out, "compactions", c->compactions, "");
    print_count(out, "evicted", c->evicted_entries, " entries");
    if (c->budget_achieved >= 0) fprintf(out, "%-22s %.1f entries a head\n", "budget achieved", c->budget_achieved);
    fprintf(out, "%-22s %s, %d thread%s\n", "kernels", answer->info.kernel_set, answer->info.threads,
            answer->info.threads == 1 ? "" : "s");
}

static int set_int(json_t *object, const char *name, int64_t value)
{
    return json_object_set_new(object, name, value < 0 ? json_null() : json_integer(value));
}

static int set_real(json_t *object, const char *name, double value)
{
    return json_object_set_new(object, name, !isfinite(value) || value < 0 ? json_null() : json_real(value));
}

int local_print_json(const struct local_answer *answer, FILE *out, struct kvf_err *err)
{
    const struct completion *c = &answer->completion;
    json_t *object = json_object();
    char hash[17];
    char *text = strdup(c->text == NULL ? "" : c->text);
    if (text != NULL) text = text_repair(text);
    int bad = object == NULL || text == NULL;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)c->output_hash);
    bad |= json_object_set_new(object, "text", json_string(text)) |
           json_object_set_new(object, "finish", json_string(finish_reason_name(c->finish)));
    bad |= json_object_set_new(object, "model", json_string(answer->info.model_name));
    bad |= json_object_set_new(object, "model_hash", json_string(answer->info.model_hash));
    bad |= json_object_set_new(object, "kernel_set", json_string(answer->info.kernel_set));
    bad |= json_object_set_new(object, "policy", json_string(answer->policy_name));
    bad |= set_int(object, "budget_tokens", answer->budget_tokens) |
           set_int(object, "interval_tokens", answer->interval_tokens);
    bad |= set_int(object, "prompt_tokens", c->prompt_tokens) | set_int(object, "output_tokens", c->output_tokens);
    bad |= set_int(object, "thinking_tokens", c->thinking_tokens);
    bad |= json_object_set_new(object, "output_hash", json_string(hash));
    bad |= set_int(object, "ttft_us", c->ttft_us) | set_int(object, "prefill_us", c->prefill_us);
    bad |= set_int(object, "decode_us", c->decode_share_us) | set_int(object, "compaction_us", c->compaction_us);
    bad |= set_int(object, "total_us", c->total_us) | set_real(object, "decode_tokens_per_s", decode_rate(c));
    bad |= set_int(object, "kv_live_mean_bytes", c->kv_live_mean_bytes);
    bad |= set_int(object, "kv_live_peak_bytes", c->kv_live_peak_bytes);
    bad |= set_int(object, "kv_full_mean_bytes", answer->kv_full_mean_bytes);
    bad |= set_int(object, "kv_full_peak_bytes", answer->kv_full_peak_bytes);
    bad |= set_int(object, "compactions", c->compactions) | set_int(object, "evicted_entries", c->evicted_entries);
    bad |= set_real(object, "budget_achieved", c->budget_achieved) | set_real(object, "min_margin", c->min_margin);
    if (answer->map.count > 0 && !answer->map.lost)
        bad |= json_object_set_new(object, "kv_map", kv_map_json(&answer->map));
    free(text);
    int rc = 0;
    if (bad || answer->map.lost)
        rc = kvf_fail(err, KVF_ENOMEM, "figures as JSON: out of memory");
    else if ((json_dumpf(object, out, 0) != 0 || fputc('\n', out) == EOF) && !ferror(out))
        rc = kvf_fail(err, KVF_ENOMEM, "figures as JSON: out of memory");
    json_decref(object);
    return rc;
}

/* ---- calibration ---- */

struct calibration local_calibration_defaults(void)
{
    return (struct calibration){
        .max_new_tokens = 1024, .from_tokens = 64, .every_tokens = 32, .window_tokens = 8, .rho = 0.93};
}

static int profile_write(const struct wave_profile *profile, const char *path, struct kvf_err *err)
{
    char *text = malloc(PROFILE_TEXT_MAX);
    if (text == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", path);
    struct new_file file;
    int rc = profile_format(profile, text, PROFILE_TEXT_MAX, err);
    if (rc == 0) rc = new_file_begin(path, "wave profile", &file, err);
    if (rc == 0) {
        fputs(text, file.stream);
        rc = new_file_commit(&file, "wave profile", err);
    }
    free(text);
    return rc;
}

static int probes_prompt(struct engine *engine, const struct local_calibration *how, const struct dataset *dataset,
                         int32_t **prompts, int *prompt_tokens, struct kvf_err *err)
{
    for (size_t k = 0; k < dataset->count; k++) {
        struct kvf_err why = {""};
        int rc = engine_prompt(engine, how->template_name == NULL ? "auto" : how->template_name,
                               dataset->problems[k].problem, &prompts[k], &prompt_tokens[k], NULL, &why);
        if (rc != 0)
            return kvf_fail(err, rc, "%s:%lld: %s", how->dataset_path, (long long)dataset->problems[k].line, why.text);
    }
    return 0;
}

int local_calibrate(const struct local_calibration *how, struct wave_profile *out, char **written, struct kvf_err *err)
{
    struct dataset dataset;
    struct dataset_options options = {.limit = how->probes};
    struct engine *engine = NULL;
    if (written != NULL) *written = NULL;
    if (how->probes < 1) return kvf_fail(err, KVF_EINVAL, "probes: expected 1 or more, got %d", how->probes);
    int rc = dataset_read(how->dataset_path, &options, &dataset, err);
    if (rc != 0) return rc;
    int32_t **prompts = calloc(dataset.count, sizeof *prompts);
    int *prompt_tokens = calloc(dataset.count, sizeof *prompt_tokens);
    char *path = how->out_path == NULL ? local_profile_path(how->model_folder) : strdup(how->out_path);
    if (prompts == NULL || prompt_tokens == NULL || path == NULL)
        rc = kvf_fail(err, KVF_ENOMEM, "calibration: out of memory");
    if (rc == 0) rc = engine_open_local(how->model_folder, how->kernels, "f32", how->threads, 0, &engine, err);
    if (rc == 0) rc = new_file_check(path, "wave profile", err);
    if (rc == 0) rc = probes_prompt(engine, how, &dataset, prompts, prompt_tokens, err);
    if (rc == 0)
        rc = engine_calibrate(engine, (const int32_t *const *)prompts, prompt_tokens, (int)dataset.count, &how->how,
                              out, err);
    if (rc == 0) rc = profile_write(out, path, err);
    engine_close(&engine);
    for (size_t k = 0; prompts != NULL && k < dataset.count; k++) free(prompts[k]);
    free(prompts);
    free(prompt_tokens);
    dataset_free(&dataset);
    if (rc == 0 && written != NULL)
        *written = path;
    else
        free(path);
    return rc;
}
