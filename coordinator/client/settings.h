/* settings.h: the flags of every command in one struct, and how a command reads its own.
 *
 * Flags are over KVFLEET_* over the file (proto/conf.h). A file and the environment may hold the settings of all
 * commands; on the command line a command takes only its own.
 */
#ifndef KVF_SETTINGS_H
#define KVF_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/conf.h"

#define SETTINGS_ITEMS_MAX 128

struct settings {
    struct conf_item items[SETTINGS_ITEMS_MAX]; /* what was read: conf refers to it as long as it lives */
    int own_items;                              /* the first so many are the command's own */
    const struct conf *conf;                    /* where each value came from */
    /* common */
    bool help, print_config, json, csv;
    const char *coordinator, *keys, *key, *log_level;
    int64_t timeout_ms;
    /* what to run */
    const char *model, *dataset, *profile, *title, *template_name, *policy;
    const char **policies, **budgets;
    int64_t budget, interval, limit, repeats, top_k, max_new_tokens, seed, max_attempts;
    double temperature, top_p;
    bool skip_bad_lines, resume, watch, raw;
    /* looking */
    int64_t job, sample, cell, rows, after;
    bool failures, samples;
    /* keys */
    const char *role;
    /* running here */
    int64_t threads, probes, from_tokens, every_tokens, window;
    double rho;
    const char *kernels, *kv_type, *out, *plot, *kv_map_rows;
    bool kv_map;
};

struct command {
    const char *name, *arguments, *summary, *text, *example;
    const struct conf_item *items; /* own flags, without the common ones */
    bool fleet;                    /* talks to the coordinator: takes its flags */
    int (*run)(const struct command *command, const struct settings *settings, char **rest); /* returns an exit code */
};

/* NULL-terminated, in the order of `kvfleet help`. */
extern const struct command *const commands[];

/* Reads the flags of a command. *conf owns all texts; *rest holds the arguments that are not flags. `out` must outlive
 * conf. */
KVF_MUSTCHECK int settings_read(const struct command *command, int argc, char **argv, struct settings *out,
                                struct conf **conf, char ***rest, struct kvf_err *err);
/* --print-config: only what the command uses. */
void settings_print(const struct settings *settings, const struct conf *conf, FILE *out);
void settings_help(const struct command *command, FILE *out);

/* The command whose name is nearest to what was typed, NULL when none is near. */
const struct command *command_nearest(const char *typed);
const struct command *command_find(const char *name);

/* Prints the one line of an error, "kvfleet sweep: ...", and returns the exit code for it. */
int command_fail(const struct command *command, int code, const struct kvf_err *err);
/* The same for a wrong use of the command. */
__attribute__((format(printf, 2, 3))) int command_misuse(const struct command *command, const char *format, ...);

#endif
