/* conf.h: configuration of the three programs: flag over KVFLEET_* over file over default, each value with its origin.
 *
 * A program describes its settings in one table; conf_read fills the struct that the offsets point into. Flags are
 * --long-name VALUE or --long-name=VALUE (a bool: --name / --no-name); the environment is KVFLEET_LONG_NAME; the file
 * (--config PATH, or KVFLEET_CONFIG) holds `long-name = value` lines and # comments. An unknown flag or key, a value
 * that does not parse or is out of range is refused with its origin in the line; so is a flag or key that is given
 * twice and no list.
 */
#ifndef KVF_CONF_H
#define KVF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "alloc/err.h"

enum conf_kind {
    CONF_TEXT,  /* const char *: owned by the conf, freed by conf_free */
    CONF_INT,   /* int64_t with min, max */
    CONF_REAL,  /* double with min, max */
    CONF_BOOL,  /* bool */
    CONF_BYTES, /* int64_t; accepts 64MiB, 2GiB, 1000000 */
    CONF_MS,    /* int64_t milliseconds; accepts 500ms, 60s, 5m, 1h; a plain number is seconds */
    CONF_LIST,  /* comma-separated or repeated: const char ** NULL-terminated (owned by the conf) */
};
struct conf_item {
    const char *name; /* long-name; NULL ends the table */
    char letter;      /* short flag or 0 */
    enum conf_kind kind;
    size_t offset;        /* into the settings struct */
    const char *fallback; /* default as text, NULL: unset (NULL, 0, false) */
    double min, max;
    const char *value_name, *help;
};
struct conf; /* remembers origins and owns text */

/* argv[0] is skipped; arguments that are not flags go to *rest (pointing into argv, NULL-terminated, owned by conf). */
KVF_MUSTCHECK int conf_read(const struct conf_item *items, void *settings, int argc, char **argv, struct conf **out,
                            char ***rest, struct kvf_err *err);
/* Whether argv holds --name or -letter before any "--": for --help and --version, which no bad setting may hide. */
bool conf_asked(int argc, char **argv, const char *name, char letter);
/* Whether a flag gave the value that holds. */
bool conf_is_flag(const struct conf *conf, const char *name);
void conf_free(struct conf **conf);
/* --print-config: name, value, origin ("default", "file PATH:LINE", "environment KVFLEET_X", "flag"), one a line. */
void conf_print(const struct conf *conf, FILE *out);
/* Aligned flag list for --help. */
void conf_help(const struct conf_item *items, FILE *out);

#endif
