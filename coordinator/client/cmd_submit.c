/* kvfleet sweep, kvfleet submit */
#include <stddef.h>
#include <string.h>
#include "alloc/policy.h"
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/format.h"
#include "coordinator/client/interrupt.h"
#include "coordinator/client/submission.h"
#include "coordinator/client/view.h"

#define AT(field) offsetof(struct settings, field)

#define JOB_ITEMS(watch_default)                                                                                       \
    {                                                                                                                  \
        "model",   'm',   CONF_TEXT,                                                                                   \
        AT(model), NULL,  0,                                                                                           \
        0,         "DIR", "model folder; a worker that holds the same files runs it"},                                 \
        {"dataset",   'd',    CONF_TEXT,                                                                               \
         AT(dataset), NULL,   0,                                                                                       \
         0,           "FILE", "JSON Lines: problem, answer and, if you like, id"},                                     \
        {"policy",                                                                                                     \
         'p',                                                                                                          \
         CONF_LIST,                                                                                                    \
         AT(policies),                                                                                                 \
         "full," POLICY_DEFAULT,                                                                                       \
         0,                                                                                                            \
         0,                                                                                                            \
         "LIST",                                                                                                       \
         "policies, each NAME or NAME:key=value,key=value, as kvfleet policies lists them"},                           \
        {"budget",    'b',    CONF_LIST,                                                                               \
         AT(budgets), NULL,   0,                                                                                       \
         0,           "LIST", "KV entries kept per layer and head, window and sinks included"},                        \
        {"interval", 'i', CONF_INT, AT(interval), "128", 1, 1048576, "N", "new entries between two compactions"},      \
        {"limit", 'n', CONF_INT, AT(limit), "0", 0, 100000000, "N", "only the first N problems; 0: all"},              \
        {"repeats", 0, CONF_INT, AT(repeats), "1", 1, 10000, "N", "samples of each problem"},                          \
        {"temperature", 0, CONF_REAL, AT(temperature), "0", 0, 100, "T", "0: greedy"},                                 \
        {"top-p", 0, CONF_REAL, AT(top_p), "1", 0, 1, "P", "1: off"},                                                  \
        {"top-k", 0, CONF_INT, AT(top_k), "0", 0, 1048576, "K", "0: off"}, {"max-new-tokens",                          \
                                                                            0,                                         \
                                                                            CONF_INT,                                  \
                                                                            AT(max_new_tokens),                        \
                                                                            "1024",                                    \
                                                                            1,                                         \
                                                                            1048576,                                   \
                                                                            "N",                                       \
                                                                            "cut to what the model's context leaves"}, \
        {"seed", 0, CONF_INT, AT(seed), "0", 0, 9007199254740992.0, "N", "of sampling and of the random policy"},      \
        {"template", 0, CONF_TEXT, AT(template_name), "auto", 0, 0, "NAME", "chat template: auto, raw or a family"},   \
        {"profile",   0,      CONF_TEXT,                                                                               \
         AT(profile), NULL,   0,                                                                                       \
         0,           "FILE", "wave profile of the model (default: MODEL/wave-profile.json)"},                         \
        {"skip-bad-lines",                                                                                             \
         0,                                                                                                            \
         CONF_BOOL,                                                                                                    \
         AT(skip_bad_lines),                                                                                           \
         "false",                                                                                                      \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL,                                                                                                         \
         "leave bad lines of the data set out, and count them"},                                                       \
        {"resume",   0,       CONF_BOOL,                                                                               \
         AT(resume), "false", 0,                                                                                       \
         0,          NULL,    "go on with an unfinished job of the same content, if there is one"},                    \
        {"title", 0, CONF_TEXT, AT(title), NULL, 0, 0, "TEXT", "shown by status (default: MODEL on DATASET)"},         \
        {"max-attempts",                                                                                               \
         0,                                                                                                            \
         CONF_INT,                                                                                                     \
         AT(max_attempts),                                                                                             \
         "3",                                                                                                          \
         1,                                                                                                            \
         1000,                                                                                                         \
         "N",                                                                                                          \
         "a sample that fails so often becomes an error row"},                                                         \
    {                                                                                                                  \
        "watch", 'w', CONF_BOOL, AT(watch), watch_default, 0, 0, NULL, "follow the job until it ends"                  \
    }

static const struct conf_item sweep_items[] = {
    JOB_ITEMS("true"),
    {"csv", 0, CONF_BOOL, AT(csv), "false", 0, 0, NULL, "print CSV"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};
static const struct conf_item submit_items[] = {
    JOB_ITEMS("false"),
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static void talk_submitted(const struct submission *job, int64_t job_id, bool resumed)
{
    char cells[64], problems[64], samples[64];
    int64_t total = job->plan.n_cells * (int64_t)job->dataset.count * job->settings->repeats;

    fprintf(stderr, "job %lld%s: %s x %s", (long long)job_id, resumed ? " goes on" : "",
            format_noun(job->plan.n_cells, "cell", cells, sizeof cells),
            format_noun((int64_t)job->dataset.count, "problem", problems, sizeof problems));
    if (job->settings->repeats > 1) fprintf(stderr, " x %lld", (long long)job->settings->repeats);
    fprintf(stderr, " = %s\n", format_noun(total, "sample", samples, sizeof samples));
    if (job->dataset.skipped_lines > 0)
        fprintf(stderr, "%s left out, the first: %s\n",
                format_noun(job->dataset.skipped_lines, "bad line", samples, sizeof samples),
                job->dataset.first_skipped.text);
}

static int print_job_id(const struct command *command, const struct submission *job, int64_t job_id, bool resumed)
{
    struct kvf_err err;
    int64_t total = job->plan.n_cells * (int64_t)job->dataset.count * job->settings->repeats;
    int code = KVF_OK;

    if (job->settings->json)
        code = view_json(json_pack("{s:I, s:b, s:s, s:I}", "job_id", (json_int_t)job_id, "resumed", (int)resumed,
                                   "content_hash", job->content_hash, "samples", (json_int_t)total),
                         stdout, &err);
    else
        printf("%lld\n", (long long)job_id);
    fflush(stdout);
    return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
}

static int run_job(const struct command *command, const struct settings *settings, char **rest)
{
    bool is_sweep = command == &command_sweep, resumed = false;
    struct submission job;
    struct session *session = NULL;
    struct kvf_err err;
    int64_t job_id = 0;
    int code, exit_code;

    if (rest[0] != NULL) return command_misuse(command, "'%s' is not a flag", rest[0]);
    if (settings->json && settings->csv) return command_misuse(command, "--json and --csv exclude each other");
    code = submission_make(command->name, settings, &job, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    interrupt_catch();
    code = session_begin(settings, &interrupt_seen, &session, &err);
    if (code == KVF_OK) code = submission_send(&job, session, &job_id, &resumed, &err);
    if (code != KVF_OK && interrupt_seen != 0) {
        if (job_id != 0)
            fprintf(stderr, "interrupted: job %lld is not complete; the same command with --resume goes on\n",
                    (long long)job_id);
        exit_code = EXIT_CANCELLED;
    } else if (code != KVF_OK) {
        exit_code = command_fail(command, code, &err);
    } else {
        talk_submitted(&job, job_id, resumed);
        exit_code = EXIT_DONE;
        if (!is_sweep || !settings->watch) exit_code = print_job_id(command, &job, job_id, resumed);
        if (settings->watch && exit_code == EXIT_DONE)
            exit_code = follow_job(command, settings, session, job_id, is_sweep);
    }
    session_close(&session);
    submission_free(&job);
    return exit_code;
}

const struct command command_sweep = {
    .name = "sweep",
    .arguments = "--model DIR --dataset FILE [--policy LIST] --budget LIST",
    .summary = "run a model over policies and budgets, and print the table",
    .text = "Every policy runs with every budget on the same samples; `full` (nothing is evicted) runs once and is "
            "what the others\n"
            "are compared with. Ctrl-C stops only the watching: the job goes on. Exit: 0 done, 3 done with errors, 4 "
            "nothing ran,\n"
            "130 cancelled or interrupted.",
    .example = "kvfleet sweep --model models/tiny-reasoner --dataset data/chain-arith-narrow.jsonl \\\n"
               "      --policy full,rkv,reasonalloc --budget 96,128,160 --interval 32 --limit 64",
    .items = sweep_items,
    .fleet = true,
    .run = run_job,
};

const struct command command_submit = {
    .name = "submit",
    .arguments = "--model DIR --dataset FILE [--policy LIST] --budget LIST",
    .summary = "like sweep, but print the job's number at once and leave it to the fleet",
    .text = NULL,
    .example = "job=$(kvfleet submit --model models/tiny-reasoner --dataset data/chain-arith.jsonl --policy full,rkv "
               "--budget 128)\n"
               "  kvfleet watch $job",
    .items = submit_items,
    .fleet = true,
    .run = run_job,
};
