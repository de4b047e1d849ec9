/* kvfleet generate, kvfleet calibrate: on this machine, without a fleet */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "alloc/policy.h"
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/format.h"
#include "coordinator/client/interrupt.h"
#include "coordinator/client/table.h"
#include "coordinator/client/view.h"
#include "worker/kv_plot.h"
#include "worker/local.h"
#include "worker/new_file.h"

#define AT(field)  offsetof(struct settings, field)
#define PROMPT_MAX (4u << 20)
#define PLOT_WHAT  "the plot"

#define MACHINE_ITEMS                                                                                                  \
    {"threads", 't', CONF_INT, AT(threads), "0", 0, 1024, "N", "compute threads; 0: one a core"},                      \
        {"kernels", 0, CONF_TEXT, AT(kernels), "auto", 0, 0, "SET", "auto, avx512bf16, avx2 or plain"},                \
    {                                                                                                                  \
        "template", 0, CONF_TEXT, AT(template_name), "auto", 0, 0, "NAME", "chat template: auto, raw or a family"      \
    }

static const struct conf_item generate_items[] = {
    {"model", 'm', CONF_TEXT, AT(model), NULL, 0, 0, "DIR", "model folder"},
    {"policy", 'p', CONF_TEXT, AT(policy), NULL, 0, 0, "NAME",
     "NAME or NAME:key=value,key=value; default: full, with --budget " POLICY_DEFAULT},
    {"budget", 'b', CONF_INT, AT(budget), NULL, 1, 1048576, "N",
     "KV entries kept per layer and head, window and sinks included"},
    {"interval", 'i', CONF_INT, AT(interval), "128", 1, 1048576, "N", "new entries between two compactions"},
    {"profile", 0, CONF_TEXT, AT(profile), NULL, 0, 0, "FILE",
     "wave profile of the model (default: MODEL/wave-profile.json)"},
    {"temperature", 0, CONF_REAL, AT(temperature), "0", 0, 100, "T", "0: greedy"},
    {"top-p", 0, CONF_REAL, AT(top_p), "1", 0, 1, "P", "1: off"},
    {"top-k", 0, CONF_INT, AT(top_k), "0", 0, 1048576, "K", "0: off"},
    {"max-new-tokens", 0, CONF_INT, AT(max_new_tokens), "1024", 1, 1048576, "N",
     "cut to what the model's context leaves"},
    {"seed", 0, CONF_INT, AT(seed), "0", 0, 9007199254740992.0, "N", "of sampling and of the random policy"},
    {"raw", 0, CONF_BOOL, AT(raw), "false", 0, 0, NULL, "the prompt as it is, like --template raw"},
    {"json", 0, CONF_BOOL, AT(json), "false", 0, 0, NULL, "print text and figures as JSON at the end"},
    {"kv-type", 0, CONF_TEXT, AT(kv_type), "f32", 0, 0, "TYPE",
     "how K and V are stored: f32, or bf16 in half the bytes"},
    {"kv-map", 0, CONF_BOOL, AT(kv_map), "false", 0, 0, NULL,
     "show the KV entries of each layer and head over time, on stderr; with --json: in it"},
    {"kv-map-rows", 0, CONF_TEXT, AT(kv_map_rows), "auto", 0, 0, "ROWS",
     "of map and plot: heads, layers (heads summed), or auto: layers where one has more than 8 heads"},
    {"plot", 0, CONF_TEXT, AT(plot), NULL, 0, 0, "FILE.svg", "draw that map, and cache bytes against full cache"},
    MACHINE_ITEMS,
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};
static const struct conf_item calibrate_items[] = {
    {"model", 'm', CONF_TEXT, AT(model), NULL, 0, 0, "DIR", "model folder"},
    {"dataset", 'd', CONF_TEXT, AT(dataset), NULL, 0, 0, "FILE",
     "probe problems, JSON Lines; not the ones to be measured later"},
    {"probes", 'n', CONF_INT, AT(probes), "8", 1, 100000, "N", "the first N problems"},
    {"out", 'o', CONF_TEXT, AT(out), NULL, 0, 0, "FILE", "where the profile goes (default: MODEL/wave-profile.json)"},
    {"max-new-tokens", 0, CONF_INT, AT(max_new_tokens), "1024", 1, 1048576, "N", "of each probe"},
    {"from-tokens", 0, CONF_INT, AT(from_tokens), "64", 1, 1048576, "N", "first output token that is measured"},
    {"every-tokens", 0, CONF_INT, AT(every_tokens), "32", 1, 1048576, "N", "and then every so many"},
    {"window", 0, CONF_INT, AT(window), "8", 1, 32, "N", "queries of one measurement"},
    {"rho", 0, CONF_REAL, AT(rho), "0.93", 0.01, 1, "SHARE", "share of the attention that the counted entries hold"},
    {"json", 0, CONF_BOOL, AT(json), "false", 0, 0, NULL, "print the demand as JSON"},
    MACHINE_ITEMS,
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

/* All of stdin as text, malloc'd. */
static int prompt_read(char **out, struct kvf_err *err)
{
    char *text = malloc(PROMPT_MAX + 1);
    size_t length;

    *out = NULL;
    if (text == NULL) return kvf_fail(err, KVF_ENOMEM, "prompt: out of memory");
    length = fread(text, 1, PROMPT_MAX, stdin);
    text[length] = '\0';
    if (ferror(stdin) || length == PROMPT_MAX || memchr(text, '\0', length) != NULL) {
        bool failed = ferror(stdin) != 0;
        int reason = errno;
        free(text);
        if (failed) return kvf_fail(err, KVF_EIO, "prompt: cannot read stdin: %s", strerror(reason));
        return kvf_fail(err, KVF_EINVAL, "prompt: stdin: expected text below %u bytes without NUL", PROMPT_MAX);
    }
    *out = text;
    return KVF_OK;
}

static int generate(const struct settings *settings, const char *prompt, struct local_answer *answer,
                    struct kvf_err *err)
{
    struct local_prompt how = {
        .model_folder = settings->model,
        .kernels = settings->kernels,
        .kv_type = settings->kv_type,
        .threads = (int)settings->threads,
        .template_name = settings->raw ? "raw" : settings->template_name,
        .prompt = prompt,
        .budget_tokens = (int)settings->budget,
        .interval_tokens = (int)settings->interval,
        .profile_path = settings->profile,
        .sampling = {settings->temperature, settings->top_p, (int)settings->top_k},
        .seed = (uint64_t)settings->seed,
        .max_new_tokens = (int)settings->max_new_tokens,
        .record_entries = settings->kv_map || settings->plot != NULL,
        .stream = settings->json ? NULL : stdout,
        .stop = &interrupt_seen,
    };
    const char *policy = settings->policy != NULL ? settings->policy : settings->budget > 0 ? POLICY_DEFAULT : "full";
    int code = policy_parse(policy, &how.policy, err);

    if (code != KVF_OK) return code;
    if (how.policy.scorer != SCORER_NONE && settings->budget == 0)
        return kvf_fail(err, KVF_EINVAL, "--budget is required for policy '%s'", how.policy.name);
    code = policy_check_budget(&how.policy, how.budget_tokens, how.interval_tokens, err);
    if (code != KVF_OK) return code;
    if (!(settings->top_p > 0))
        return kvf_fail(err, KVF_EINVAL, "--top-p: expected more than 0 and at most 1, got %g", settings->top_p);
    return local_generate(&how, answer, err);
}

/* ---- the KV map ---- */

/* Heads above which a map of all of them is too long to read. */
#define HEADS_MOST 8

static int map_check(const struct settings *settings, struct kvf_err *err)
{
    const char *rows = settings->kv_map_rows, *dot = settings->plot == NULL ? NULL : strrchr(settings->plot, '.');

    if (strcmp(rows, "auto") != 0 && strcmp(rows, "heads") != 0 && strcmp(rows, "layers") != 0)
        return kvf_fail(err, KVF_EINVAL, "--kv-map-rows: expected auto, heads or layers, got '%s'", rows);
    if (strcmp(rows, "auto") != 0 && !settings->kv_map && settings->plot == NULL)
        return kvf_fail(err, KVF_EINVAL, "--kv-map-rows %s: expected --kv-map or --plot with it", rows);
    if (settings->plot != NULL && (dot == NULL || strcasecmp(dot, ".svg") != 0))
        return kvf_fail(err, KVF_EINVAL, "--plot: SVG is what is written: expected a name that ends in .svg, got '%s'",
                        settings->plot);
    return KVF_OK;
}

static bool map_by_layer(const struct settings *settings, const struct kv_map *map)
{
    if (strcmp(settings->kv_map_rows, "auto") == 0) return map->kv_heads > HEADS_MOST;
    return strcmp(settings->kv_map_rows, "layers") == 0;
}

/* What stderr can show: colours, bars or plain characters. */
static enum kv_ink map_ink(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR"), *depth = getenv("COLORTERM");

    if (!isatty(STDERR_FILENO)) return KV_INK_ASCII;
    if (term != NULL && strcmp(term, "dumb") != 0 && (no_color == NULL || no_color[0] == '\0')) {
        if (depth != NULL && (strcmp(depth, "truecolor") == 0 || strcmp(depth, "24bit") == 0)) return KV_INK_TRUE;
        if (strstr(term, "256color") != NULL) return KV_INK_256;
    }
    setlocale(LC_CTYPE, "");
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? KV_INK_BLOCKS : KV_INK_ASCII;
}

static int map_show(const struct settings *settings, const struct local_answer *answer, struct kvf_err *err)
{
    int width = terminal_width(stderr);
    struct kv_map_text text = {
        .map = &answer->map,
        .budget_tokens = answer->budget_tokens,
        .interval_tokens = answer->interval_tokens,
        .by_layer = map_by_layer(settings, &answer->map),
        .width = width == 0 ? 80 : width,
        .ink = map_ink(),
    };

    fputc('\n', stderr);
    return kv_map_print(&text, stderr, err);
}

static int map_plot(const struct settings *settings, const struct local_answer *answer, struct new_file *file,
                    struct kvf_err *err)
{
    struct kv_plot plot = {
        .map = &answer->map,
        .model = answer->info.model_name,
        .policy = answer->policy_name,
        .budget_tokens = answer->budget_tokens,
        .interval_tokens = answer->interval_tokens,
        .by_layer = map_by_layer(settings, &answer->map),
        .page_entries = answer->info.kv_page_entries,
        .page_bytes = answer->info.kv_page_bytes,
    };
    int code = kv_plot_write(&plot, file->stream, err);

    return code == KVF_OK ? new_file_commit(file, PLOT_WHAT, err) : code;
}

/* ---- generate ---- */

/* Plot, text, figures and map, as far as they are wanted. */
static int answer_show(const struct settings *settings, struct local_answer *answer, struct new_file *plot,
                       struct kvf_err *err)
{
    bool decoded = answer->map.count > 0; /* nothing was when Ctrl-C came that early */
    int code = KVF_OK;

    if (settings->plot != NULL && decoded) code = map_plot(settings, answer, plot, err);
    if (settings->json) {
        struct kvf_err ignored;
        if (!settings->kv_map) kv_map_free(&answer->map);
        int printed = local_print_json(answer, stdout, code == KVF_OK ? err : &ignored);
        return code == KVF_OK ? printed : code;
    }
    const char *text = answer->completion.text;
    if (text != NULL && text[0] != '\0' && text[strlen(text) - 1] != '\n') putchar('\n');
    fflush(stdout);
    local_print_figures(answer, stderr);
    if (settings->kv_map && decoded && code == KVF_OK) code = map_show(settings, answer, err);
    return code;
}

static int run_generate(const struct command *command, const struct settings *settings, char **rest)
{
    struct local_answer answer;
    struct new_file plot = {NULL, NULL, NULL};
    struct kvf_err err;
    char *prompt = NULL;
    int code = KVF_OK, exit_code;

    if (settings->model == NULL) return command_misuse(command, "--model is required: the folder of a model");
    if (rest[0] != NULL && rest[1] != NULL)
        return command_misuse(command, "expected one prompt, got '%s' too; put it in quotes", rest[1]);
    if (settings->raw && conf_is_flag(settings->conf, "template"))
        return command_misuse(command, "--raw and --template exclude each other");
    code = map_check(settings, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    if (rest[0] == NULL) {
        if (isatty(STDIN_FILENO)) fputs("the prompt, then Ctrl-D:\n", stderr);
        code = prompt_read(&prompt, &err);
        if (code != KVF_OK) return command_fail(command, code, &err);
        /* what an editor or echo ends a line with is no part of the prompt, unless every byte is meant */
        if (!settings->raw && prompt[0] != '\0' && prompt[strlen(prompt) - 1] == '\n')
            prompt[strlen(prompt) - 1] = '\0';
    }
    if ((rest[0] == NULL ? prompt : rest[0])[0] == '\0') {
        free(prompt);
        return command_misuse(command, "expected a prompt, as the argument or on stdin, got an empty one");
    }
    interrupt_catch();
    if (settings->plot != NULL) code = new_file_begin(settings->plot, PLOT_WHAT, &plot, &err);
    if (code == KVF_OK) code = generate(settings, rest[0] == NULL ? prompt : rest[0], &answer, &err);
    free(prompt);
    if (code != KVF_OK) {
        new_file_drop(&plot);
        return command_fail(command, code, &err);
    }
    code = answer_show(settings, &answer, &plot, &err);
    new_file_drop(&plot);
    exit_code = code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
    if (answer.completion.finish == FINISH_CANCELLED) exit_code = EXIT_CANCELLED;
    local_answer_free(&answer);
    return exit_code;
}

static void profile_print(const struct wave_profile *profile, const char *path)
{
    struct table *table = table_new();
    char text[32], probes[64], samples[64];

    table_column(table, "layer", TABLE_RIGHT);
    table_column(table, "demand", TABLE_RIGHT);
    table_column(table, "", TABLE_LEFT);
    for (int i = 0; i < profile->layers; i++) {
        char bar[41];
        int length = (int)(profile->demand[i] * 10 + 0.5); /* the mean, 1, has ten */
        if (length < 0) length = 0;
        if (length > 40) length = 40;
        memset(bar, '#', (size_t)length);
        bar[length] = '\0';
        snprintf(text, sizeof text, "%d", i);
        table_cell(table, text);
        snprintf(text, sizeof text, "%.3f", profile->demand[i]);
        table_cell(table, text);
        table_cell(table, bar);
    }
    table_print(table, 0, 0, stdout);
    table_free(&table);
    fflush(stdout);
    fprintf(stderr, "%s: %s, %s; demand of a layer, mean 1\n", path,
            format_noun(profile->probes, "probe", probes, sizeof probes),
            format_noun(profile->samples, "sampled step", samples, sizeof samples));
}

static int run_calibrate(const struct command *command, const struct settings *settings, char **rest)
{
    struct local_calibration how;
    struct wave_profile profile;
    struct kvf_err err;
    char *written = NULL;
    int code;

    if (rest[0] != NULL) return command_misuse(command, "'%s' is not a flag", rest[0]);
    if (settings->model == NULL) return command_misuse(command, "--model is required: the folder of a model");
    if (settings->dataset == NULL)
        return command_misuse(command, "--dataset is required: a JSON Lines file of probe problems");
    memset(&how, 0, sizeof how);
    how.model_folder = settings->model;
    how.kernels = settings->kernels;
    how.threads = (int)settings->threads;
    how.dataset_path = settings->dataset;
    how.probes = (int)settings->probes;
    how.template_name = settings->template_name;
    how.how = (struct calibration){.max_new_tokens = (int)settings->max_new_tokens,
                                   .from_tokens = (int)settings->from_tokens,
                                   .every_tokens = (int)settings->every_tokens,
                                   .window_tokens = (int)settings->window,
                                   .rho = settings->rho};
    how.out_path = settings->out;
    code = local_calibrate(&how, &profile, &written, &err);
    if (code == KVF_OK && settings->json) {
        json_t *demand = json_array();
        for (int i = 0; i < profile.layers; i++) json_array_append_new(demand, json_real(profile.demand[i]));
        code = view_json(json_pack("{s:s, s:s, s:i, s:i, s:o}", "path", written, "model_hash", profile.model_hash,
                                   "probes", profile.probes, "samples", profile.samples, "demand", demand),
                         stdout, &err);
    } else if (code == KVF_OK) {
        profile_print(&profile, written);
    }
    free(written);
    return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
}

const struct command command_generate = {
    .name = "generate",
    .arguments = "--model DIR [PROMPT]",
    .summary = "answer one prompt on this machine, with any policy and budget",
    .text = "The prompt is the argument, or else stdin. The text goes to stdout as it is decoded, figures and map to "
            "stderr.\n"
            "In the map (--kv-map, --plot) a column is the entries right after a compaction, and before the first, "
            "while the\n"
            "cache fills. A terminal gets colours (NO_COLOR: bars), a pipe plain characters in 80 columns.",
    .example = "kvfleet generate --model models/tiny-reasoner --policy rkv --budget 128 --interval 32 \\\n"
               "      \"mod 10: p=n-9; q=h-5; n=8; h=c-5; w=3; c=w*9; e=2. Find w,h,c,q,p.\"",
    .items = generate_items,
    .fleet = false,
    .run = run_generate,
};

const struct command command_calibrate = {
    .name = "calibrate",
    .arguments = "--model DIR --dataset FILE",
    .summary = "measure a model's wave profile, which reasonalloc needs",
    .text = "Decodes the probes with full cache and measures how many entries each layer needs for most of its "
            "attention. The\n"
            "profile names the model's hash; another model refuses it.",
    .example = "kvfleet calibrate --model models/tiny-reasoner --dataset data/probes.jsonl --probes 8",
    .items = calibrate_items,
    .fleet = false,
    .run = run_calibrate,
};
