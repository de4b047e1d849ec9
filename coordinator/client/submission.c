#include "coordinator/client/submission.h"

#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"
#include "worker/local.h"

#define CHUNK_PROBLEMS 1024
#define CHUNK_BYTES    (2u << 20) /* half of what a message may hold */
#define PROFILE_BYTES  65535      /* of messages.def */

static int model_identify(const char *folder, struct submission *out, struct kvf_err *err)
{
    char whole[PATH_MAX];
    const char *name;
    int code = engine_model_hash(folder, out->model_hash, err);

    if (code != KVF_OK) return code;
    if (realpath(folder, whole) == NULL) return kvf_fail(err, KVF_ENOTFOUND, "--model: %s: no such folder", folder);
    name = strrchr(whole, '/') + 1;
    if (name[0] == '\0' || strlen(name) >= sizeof out->model_name)
        return kvf_fail(err, KVF_EINVAL, "--model: %s: the folder's name must have 1 to %zu bytes", whole,
                        sizeof out->model_name - 1);
    snprintf(out->model_name, sizeof out->model_name, "%s", name);
    return KVF_OK;
}

static int profile_load(const struct settings *settings, struct submission *out, struct kvf_err *err)
{
    struct wave_profile profile;
    char *usual = settings->profile == NULL ? local_profile_path(settings->model) : NULL;
    const char *path = settings->profile == NULL ? usual : settings->profile;
    int code;

    if (path == NULL) return kvf_fail(err, KVF_ENOMEM, "--profile: out of memory");
    code = local_load_profile(path, out->model_hash, 0, 0, &profile, &out->profile, err);
    if (code == KVF_OK && strlen(out->profile) > PROFILE_BYTES)
        code = kvf_fail(err, KVF_EINVAL, "%s: the profile has %zu bytes, at most %d can be sent", path,
                        strlen(out->profile), PROFILE_BYTES);
    free(usual);
    return code;
}

static void hash_text(crypto_hash_sha256_state *state, const char *text)
{
    crypto_hash_sha256_update(state, (const unsigned char *)text, strlen(text));
}

__attribute__((format(printf, 2, 3))) static void hash_line(crypto_hash_sha256_state *state, const char *format, ...)
{
    char line[512];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    hash_text(state, line);
}

/* Everything that decides the results, in a fixed text form: equal jobs have equal hashes. */
static void content_hash(struct submission *job)
{
    const struct settings *s = job->settings;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;

    crypto_hash_sha256_init(&state);
    hash_line(&state, "kvfleet-job/1\nmodel %s\ndataset %s\n", job->model_hash, job->dataset.hash);
    hash_line(&state, "repeats %lld\nseed %lld\ncells %d\n", (long long)s->repeats, (long long)s->seed,
              job->plan.n_cells);
    for (int i = 0; i < job->plan.n_cells; i++)
        hash_line(&state, "cell %s %d %lld temperature %.17g top_p %.17g top_k %lld max_new_tokens %lld template %s\n",
                  job->plan.cells[i].policy.name, job->plan.cells[i].budget_tokens, (long long)s->interval,
                  s->temperature, s->top_p, (long long)s->top_k, (long long)s->max_new_tokens, s->template_name);
    hash_line(&state, "problems %zu\n", job->dataset.count);
    for (size_t i = 0; i < job->dataset.count; i++)
        hash_line(&state, "%s %llu\n", job->dataset.problems[i].content_hash,
                  (unsigned long long)job->dataset.problems[i].ordinal);
    hash_text(&state, "profile ");
    hash_text(&state, job->profile == NULL ? "none" : job->profile);
    crypto_hash_sha256_final(&state, digest);
    sodium_bin2hex(job->content_hash, sizeof job->content_hash, digest, sizeof digest);
}

static json_t *list_json(const char *const *texts)
{
    json_t *list = json_array();

    for (; texts != NULL && *texts != NULL; texts++) json_array_append_new(list, json_string(*texts));
    return list;
}

/* The command as it was given, for the record. */
static char *spec_text(const char *command, const struct submission *job)
{
    const struct settings *s = job->settings;
    json_t *cells = json_array(), *spec;
    char *text;

    for (int i = 0; i < job->plan.n_cells; i++)
        json_array_append_new(cells, json_pack("{s:s, s:i}", "policy", job->plan.cells[i].policy.name, "budget_tokens",
                                               job->plan.cells[i].budget_tokens));
    spec = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:s, s:b}", "command",
                     command, "model", s->model, "dataset", s->dataset, "policy", list_json(s->policies), "budget",
                     list_json(s->budgets), "cells", cells, "interval", (json_int_t)s->interval, "limit",
                     (json_int_t)s->limit, "repeats", (json_int_t)s->repeats, "seed", (json_int_t)s->seed,
                     "temperature", s->temperature, "top_p", s->top_p, "top_k", (json_int_t)s->top_k, "max_new_tokens",
                     (json_int_t)s->max_new_tokens, "template", s->template_name, "skip_bad_lines",
                     (int)s->skip_bad_lines);
    text = spec == NULL ? NULL : json_dumps(spec, JSON_COMPACT);
    json_decref(spec);
    return text;
}

int submission_make(const char *command, const struct settings *settings, struct submission *out, struct kvf_err *err)
{
    struct dataset_options options = {settings->limit, settings->skip_bad_lines};
    int code;

    memset(out, 0, sizeof *out);
    out->settings = settings;
    if (settings->model == NULL) return kvf_fail(err, KVF_EINVAL, "--model is required: the folder of a model");
    if (settings->dataset == NULL)
        return kvf_fail(err, KVF_EINVAL, "--dataset is required: a JSON Lines file of problems");
    code = plan_make(settings->policies, settings->budgets, (int)settings->interval, &out->plan, err);
    if (code == KVF_OK && !(settings->top_p > 0))
        code = kvf_fail(err, KVF_EINVAL, "--top-p: expected more than 0 and at most 1, got %g", settings->top_p);
    if (code == KVF_OK) code = dataset_read(settings->dataset, &options, &out->dataset, err);
    if (code == KVF_OK) code = model_identify(settings->model, out, err);
    if (code == KVF_OK) code = engine_check_template(settings->model, settings->template_name, err);
    if (code == KVF_OK && out->plan.needs_profile) code = profile_load(settings, out, err);
    if (code != KVF_OK) goto fail;
    if (settings->title != NULL && strlen(settings->title) >= sizeof out->title) {
        code = kvf_fail(err, KVF_EINVAL, "--title: expected at most %zu bytes, got %zu", sizeof out->title - 1,
                        strlen(settings->title));
        goto fail;
    }
    if (settings->title != NULL)
        snprintf(out->title, sizeof out->title, "%s", settings->title);
    else
        snprintf(out->title, sizeof out->title, "%s on %.100s", out->model_name, out->dataset.name);
    content_hash(out);
    out->spec = spec_text(command, out);
    if (out->spec == NULL || strlen(out->spec) > 65535) {
        code = kvf_fail(err, KVF_EINVAL, "the description of the job does not fit 65535 bytes, or a path is not UTF-8");
        goto fail;
    }
    return KVF_OK;
fail:
    submission_free(out);
    return code;
}

void submission_free(struct submission *submission)
{
    plan_free(&submission->plan);
    dataset_free(&submission->dataset);
    free(submission->profile);
    free(submission->spec);
    submission->profile = NULL;
    submission->spec = NULL;
}

struct job_answer {
    int64_t job_id;
    uint64_t received;
    bool resumed, receiving;
};

static int job_call(struct session *session, int type, void *msg, struct job_answer *out, struct kvf_err *err)
{
    struct wire_message answer;
    const struct msg_job *job;
    int code = session_call(session, type, msg, MSG_JOB_TYPE, &answer, err);

    if (code != KVF_OK) return code;
    job = answer.in.body;
    out->job_id = (int64_t)job->job_id;
    out->received = job->received;
    out->resumed = job->resumed != 0;
    out->receiving = job->state.len == strlen("receiving") && memcmp(job->state.text, "receiving", job->state.len) == 0;
    wire_message_free(&answer);
    return KVF_OK;
}

static int submit_call(const struct submission *job, struct session *session, struct job_answer *out,
                       struct kvf_err *err)
{
    const struct settings *s = job->settings;
    struct rec_cell *cells = calloc((size_t)job->plan.n_cells, sizeof *cells);
    struct msg_submit msg;
    int code;

    if (cells == NULL) return kvf_fail(err, KVF_ENOMEM, "submit: out of memory");
    for (int i = 0; i < job->plan.n_cells; i++)
        cells[i] = (struct rec_cell){.cell_id = (uint64_t)i + 1,
                                     .policy = str_of(job->plan.cells[i].policy.name),
                                     .budget_tokens = (uint64_t)job->plan.cells[i].budget_tokens,
                                     .interval_tokens = (uint64_t)s->interval,
                                     .temperature = s->temperature,
                                     .top_p = s->top_p,
                                     .top_k = (uint64_t)s->top_k,
                                     .max_new_tokens = (uint64_t)s->max_new_tokens,
                                     .template_name = str_of(s->template_name)};
    msg_init(MSG_SUBMIT_TYPE, &msg);
    msg.content_hash = str_of(job->content_hash);
    msg.title = str_of(job->title);
    msg.model_name = str_of(job->model_name);
    msg.model_hash = str_of(job->model_hash);
    msg.dataset_name = str_of(job->dataset.name);
    msg.dataset_hash = str_of(job->dataset.hash);
    if (job->profile != NULL) msg.profile = str_of(job->profile);
    msg.repeats = (uint64_t)s->repeats;
    msg.seed = (uint64_t)s->seed;
    msg.n_problems = job->dataset.count;
    msg.cells = cells;
    msg.n_cells = (uint32_t)job->plan.n_cells;
    msg.resume = s->resume;
    msg.spec = str_of(job->spec);
    msg.max_attempts = (uint64_t)s->max_attempts;
    msg.skipped_lines = (uint64_t)job->dataset.skipped_lines;
    code = job_call(session, MSG_SUBMIT_TYPE, &msg, out, err);
    free(cells);
    return code;
}

static int problems_call(const struct submission *job, struct session *session, struct job_answer *answer,
                         struct kvf_err *err)
{
    struct rec_problem *problems = calloc(CHUNK_PROBLEMS, sizeof *problems);
    uint64_t first = answer->received;
    int code = KVF_OK;

    if (problems == NULL) return kvf_fail(err, KVF_ENOMEM, "submit: out of memory");
    while (code == KVF_OK && first < job->dataset.count) {
        struct msg_problems msg;
        size_t bytes = 0;
        uint32_t n = 0;
        while (n < CHUNK_PROBLEMS && first + n < job->dataset.count && bytes < CHUNK_BYTES) {
            const struct dataset_problem *from = &job->dataset.problems[first + n];
            problems[n++] = (struct rec_problem){str_of(from->name), str_of(from->content_hash), from->ordinal,
                                                 str_of(from->problem), str_of(from->answer)};
            bytes += strlen(from->problem) + strlen(from->answer) + strlen(from->name) + 96;
        }
        msg_init(MSG_PROBLEMS_TYPE, &msg);
        msg.job_id = (uint64_t)answer->job_id;
        msg.first = first;
        msg.problems = problems;
        msg.n_problems = n;
        code = job_call(session, MSG_PROBLEMS_TYPE, &msg, answer, err);
        if (code == KVF_OK && answer->received <= first)
            code = kvf_fail(err, KVF_ECORRUPT, "job %lld: problems from %llu on were sent, the coordinator has %llu",
                            (long long)answer->job_id, (unsigned long long)first, (unsigned long long)answer->received);
        first = answer->received;
    }
    free(problems);
    return code;
}

int submission_send(const struct submission *submission, struct session *session, int64_t *job_id, bool *resumed,
                    struct kvf_err *err)
{
    struct job_answer answer;
    struct msg_start start;
    int code = submit_call(submission, session, &answer, err);

    if (code != KVF_OK) return code;
    *job_id = answer.job_id;
    *resumed = answer.resumed;
    if (!answer.receiving) return KVF_OK; /* a resumed job that already runs */
    code = problems_call(submission, session, &answer, err);
    if (code != KVF_OK) return code;
    msg_init(MSG_START_TYPE, &start);
    start.job_id = (uint64_t)*job_id;
    return job_call(session, MSG_START_TYPE, &start, &answer, err);
}
