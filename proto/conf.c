#include "proto/conf.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONF_FILE_MAX (1 << 20)

struct value {
    char *text;   /* as given; NULL: unset */
    char *origin; /* "default", "file PATH:LINE", "environment KVFLEET_X", "flag" */
    char **list;  /* CONF_LIST: NULL-terminated, into one allocation */
    int rank;     /* source that set it; a list collects within one source, a higher source starts again */
};
enum { RANK_DEFAULT, RANK_FILE, RANK_ENVIRONMENT, RANK_FLAG };

struct conf {
    const struct conf_item *items;
    void *settings;
    int n_items;
    struct value *values; /* [n_items] */
    char **rest;          /* arguments that are not flags */
};

static int conf_nomem(struct kvf_err *err)
{
    return kvf_fail(err, KVF_ENOMEM, "configuration: out of memory");
}

static int item_find(const struct conf *conf, const char *name, size_t len)
{
    for (int i = 0; i < conf->n_items; i++)
        if (strlen(conf->items[i].name) == len && memcmp(conf->items[i].name, name, len) == 0) return i;
    return -1;
}

/* ---- one value ---- */

static int range_fail(const struct conf_item *item, const char *origin, const char *text, struct kvf_err *err)
{
    /* 17 digits write a whole number as it is; a fraction such as 0.01 is short with 15 */
    const int digits = item->kind == CONF_REAL ? 15 : 17;
    return kvf_fail(err, KVF_EINVAL, "%s (%s): expected %.*g to %.*g%s, got %s", item->name, origin, digits, item->min,
                    digits, item->max, item->kind == CONF_MS ? " ms" : "", text);
}

static int in_range(const struct conf_item *item, double value)
{
    return (item->min == 0 && item->max == 0) || (value >= item->min && value <= item->max);
}

struct unit {
    const char *name;
    double factor;
};

/* A number with a unit; the plain number has the unit "". NAN: not a number of this kind. */
static double scaled_parse(const char *text, const struct unit *units)
{
    char *end;
    if (!isdigit((unsigned char)text[0])) return NAN;
    for (const char *at = text; *at != 0; at++)
        if (*at == 'x' || *at == 'X') return NAN;
    double value = strtod(text, &end);
    while (*end == ' ') end++;
    for (; units->name != NULL; units++)
        if (strcmp(end, units->name) == 0) return value * units->factor;
    return NAN;
}

static int bool_parse(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, yes[i]) == 0) return 1;
        if (strcmp(text, no[i]) == 0) return 0;
    }
    return -1;
}

static int number_set(const struct conf_item *item, void *member, const char *text, const char *origin,
                      struct kvf_err *err)
{
    static const struct unit times[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"h", 3600e3}, {NULL, 0}};
    static const struct unit sizes[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                        {"TiB", 0x1p40}, {"kB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {NULL, 0}};
    char *end = NULL;
    errno = 0;
    if (item->kind == CONF_INT) {
        long long value = strtoll(text, &end, 10);
        if (text[0] == 0 || isspace((unsigned char)text[0]) || *end != 0)
            return kvf_fail(err, KVF_EINVAL, "%s (%s): expected an integer, got \"%s\"", item->name, origin, text);
        if (errno == ERANGE || !in_range(item, (double)value)) return range_fail(item, origin, text, err);
        *(int64_t *)member = value;
        return 0;
    }
    if (item->kind == CONF_REAL) {
        double value = strtod(text, &end);
        if (text[0] == 0 || isspace((unsigned char)text[0]) || *end != 0 || !isfinite(value))
            return kvf_fail(err, KVF_EINVAL, "%s (%s): expected a number, got \"%s\"", item->name, origin, text);
        if (!in_range(item, value)) return range_fail(item, origin, text, err);
        *(double *)member = value;
        return 0;
    }
    double value = scaled_parse(text, item->kind == CONF_MS ? times : sizes);
    if (isnan(value) || value > 0x1p62)
        return kvf_fail(err, KVF_EINVAL, "%s (%s): expected %s, got \"%s\"", item->name, origin,
                        item->kind == CONF_MS ? "a time such as 500ms, 60s, 5m" : "a size such as 64MiB or 1000000",
                        text);
    if (!in_range(item, value)) return range_fail(item, origin, text, err);
    *(int64_t *)member = (int64_t)llround(value);
    return 0;
}

static void list_free(char **list)
{
    for (char **at = list; at != NULL && *at != NULL; at++) free(*at);
    free(list);
}

/* The items of `text` after those already in the list. */
static int list_add(struct value *value, const char *name, const char *origin, const char *text, struct kvf_err *err)
{
    size_t n = 0;
    while (value->list != NULL && value->list[n] != NULL) n++;
    for (const char *at = text; *text != 0;) {
        size_t len = strcspn(at, ",");
        const char *next = at + len;
        while (len > 0 && isspace((unsigned char)at[0])) at++, len--;
        while (len > 0 && isspace((unsigned char)at[len - 1])) len--;
        if (len == 0)
            return kvf_fail(err, KVF_EINVAL, "%s (%s): expected items between the commas, got \"%s\"", name, origin,
                            text);
        char **longer = realloc(value->list, (n + 2) * sizeof *longer);
        if (longer == NULL) return conf_nomem(err);
        value->list = longer;
        longer[n + 1] = NULL;
        if ((longer[n] = strndup(at, len)) == NULL) return conf_nomem(err);
        n++;
        if (*next == 0) break;
        at = next + 1;
    }
    if (value->list == NULL && (value->list = calloc(1, sizeof *value->list)) == NULL) return conf_nomem(err);
    return 0;
}

/* Sets item `i`; a later call of the same or a higher rank wins. */
static int value_set(struct conf *conf, int i, const char *text, const char *origin, int rank, struct kvf_err *err)
{
    const struct conf_item *item = &conf->items[i];
    struct value *value = &conf->values[i];
    void *member = (char *)conf->settings + item->offset;
    int collects = item->kind == CONF_LIST && value->rank == rank && value->text != NULL;
    char *copy = NULL, *source = strdup(origin);
    int n = collects ? asprintf(&copy, "%s,%s", value->text, text) : asprintf(&copy, "%s", text);
    if (n < 0 || source == NULL) {
        free(source);
        if (n >= 0) free(copy);
        return conf_nomem(err);
    }
    free(value->text);
    free(value->origin);
    value->text = copy;
    value->origin = source;
    value->rank = rank;
    int truth;
    switch (item->kind) {
    case CONF_TEXT:
        *(const char **)member = copy;
        return 0;
    case CONF_BOOL:
        truth = bool_parse(text);
        if (truth < 0)
            return kvf_fail(err, KVF_EINVAL, "%s (%s): expected true or false, got \"%s\"", item->name, origin, text);
        *(bool *)member = truth;
        return 0;
    case CONF_LIST: {
        if (!collects) {
            list_free(value->list);
            value->list = NULL;
        }
        int code = list_add(value, item->name, origin, text, err);
        *(char ***)member = value->list;
        return code;
    }
    default:
        return number_set(item, member, text, origin, err);
    }
}

static int defaults_read(struct conf *conf, struct kvf_err *err)
{
    for (int i = 0; i < conf->n_items; i++) {
        const struct conf_item *item = &conf->items[i];
        void *member = (char *)conf->settings + item->offset;
        switch (item->kind) {
        case CONF_TEXT:
            *(const char **)member = NULL;
            break;
        case CONF_LIST:
            *(char ***)member = NULL;
            break;
        case CONF_BOOL:
            *(bool *)member = false;
            break;
        case CONF_REAL:
            *(double *)member = 0;
            break;
        default:
            *(int64_t *)member = 0;
        }
        if (item->fallback == NULL) continue;
        int code = value_set(conf, i, item->fallback, "default", RANK_DEFAULT, err);
        if (code != 0) return code;
    }
    return 0;
}

/* ---- file ---- */

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text)) text++;
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);) *--end = 0;
    return text;
}

/* Cuts the comment off and takes the quotes away: "a # b" keeps its mark, and \" and \\ stand for themselves. In place.
 */
static int file_value(char *text)
{
    if (text[0] != '"') {
        char *mark = text;
        while (*mark != 0 && !(*mark == '#' && (mark == text || isspace((unsigned char)mark[-1])))) mark++;
        *mark = 0;
        trimmed(text);
        return 0;
    }
    char *to = text, *from = text + 1;
    for (; *from != 0 && *from != '"'; from++) {
        if (*from == '\\' && (from[1] == '"' || from[1] == '\\')) from++;
        *to++ = *from;
    }
    if (*from != '"') return -1;
    char *tail = trimmed(from + 1);
    *to = 0;
    return *tail == 0 || *tail == '#' ? 0 : -1;
}

static int file_line(struct conf *conf, const char *path, int number, char *line, struct kvf_err *err)
{
    char *text = trimmed(line);
    if (*text == 0 || *text == '#') return 0;
    char *equals = strchr(text, '=');
    if (equals == NULL)
        return kvf_fail(err, KVF_EINVAL, "%s:%d: expected `name = value`, got \"%s\"", path, number, text);
    *equals = 0;
    char *name = trimmed(text), *value = trimmed(equals + 1);
    int i = item_find(conf, name, strlen(name));
    if (i < 0)
        return kvf_fail(err, KVF_EINVAL, "%s:%d: unknown setting \"%s\" (--help lists them)", path, number, name);
    if (file_value(value) != 0)
        return kvf_fail(err, KVF_EINVAL, "%s:%d: %s: expected a closing quote at the end, got %s", path, number, name,
                        value);
    if (conf->values[i].rank == RANK_FILE && conf->items[i].kind != CONF_LIST)
        return kvf_fail(err, KVF_EINVAL, "%s:%d: %s is set twice, before in %s", path, number, name,
                        conf->values[i].origin);
    char *origin = NULL;
    if (asprintf(&origin, "file %s:%d", path, number) < 0) return conf_nomem(err);
    int code = value_set(conf, i, value, origin, RANK_FILE, err);
    free(origin);
    return code;
}

static int file_read(struct conf *conf, const char *path, const char *named_by, struct kvf_err *err)
{
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return kvf_fail(err, errno == ENOENT ? KVF_ENOTFOUND : KVF_EIO, "configuration file %s (%s): %s", path,
                        named_by, strerror(errno));
    char *line = NULL;
    size_t cap = 0, total = 0;
    ssize_t len;
    int number = 0, code = 0;
    while (code == 0 && (len = getline(&line, &cap, in)) >= 0) {
        number++;
        total += (size_t)len;
        if (total > CONF_FILE_MAX || memchr(line, 0, (size_t)len) != NULL)
            code = kvf_fail(err, KVF_EINVAL, "%s:%d: expected a text file of at most %d bytes", path, number,
                            CONF_FILE_MAX);
        else
            code = file_line(conf, path, number, line, err);
    }
    if (code == 0 && ferror(in)) code = kvf_fail(err, KVF_EIO, "configuration file %s: %s", path, strerror(errno));
    free(line);
    fclose(in);
    return code;
}

/* ---- environment ---- */

static int environment_read(struct conf *conf, struct kvf_err *err)
{
    for (int i = 0; i < conf->n_items; i++) {
        char name[96], origin[112];
        int len = snprintf(name, sizeof name, "KVFLEET_%s", conf->items[i].name);
        if (len >= (int)sizeof name) continue;
        for (char *at = name; *at != 0; at++) *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
        const char *text = getenv(name);
        if (text == NULL) continue;
        snprintf(origin, sizeof origin, "environment %s", name);
        int code = value_set(conf, i, text, origin, RANK_ENVIRONMENT, err);
        if (code != 0) return code;
    }
    return 0;
}

/* ---- flags ---- */

/* What a walk over argv does with each flag: the first walk only looks for --config, the second sets. */
struct flag_walk {
    struct conf *conf;
    int argc;
    char **argv;
    bool only_config;
    const char *config_path;
    int n_rest;
};

static int flag_twice(const char *name, const char *first, const char *second, struct kvf_err *err)
{
    return kvf_fail(err, KVF_EINVAL, "flag --%s: expected it once, got \"%s\" and \"%s\"", name, first, second);
}

static int flag_use(struct flag_walk *walk, int i, const char *name, const char *text, struct kvf_err *err)
{
    const struct value *before = i < 0 ? NULL : &walk->conf->values[i];
    if (i < 0 && walk->only_config) {
        if (walk->config_path != NULL) return flag_twice("config", walk->config_path, text, err);
        walk->config_path = text;
    }
    if (i < 0 || walk->only_config) return 0;
    if (before->rank == RANK_FLAG && walk->conf->items[i].kind != CONF_LIST)
        return flag_twice(name, before->text, text, err);
    return value_set(walk->conf, i, text, "flag", RANK_FLAG, err);
}

static int flag_needs_value(const char *flag, struct kvf_err *err)
{
    return kvf_fail(err, KVF_EINVAL, "flag %s: expected a value, got none", flag);
}

static int flag_long(struct flag_walk *walk, int *at, struct kvf_err *err)
{
    struct conf *conf = walk->conf;
    const char *flag = walk->argv[*at], *name = flag + 2;
    const char *equals = strchr(name, '=');
    size_t len = equals == NULL ? strlen(name) : (size_t)(equals - name);
    int i = item_find(conf, name, len);
    int is_config = len == 6 && memcmp(name, "config", 6) == 0;
    if (i >= 0 && conf->items[i].kind == CONF_BOOL)
        return flag_use(walk, i, conf->items[i].name, equals == NULL ? "true" : equals + 1, err);
    if (i < 0 && !is_config) {
        if (len > 3 && memcmp(name, "no-", 3) == 0 && equals == NULL) {
            i = item_find(conf, name + 3, len - 3);
            if (i >= 0 && conf->items[i].kind == CONF_BOOL) return flag_use(walk, i, conf->items[i].name, "false", err);
        }
        return kvf_fail(err, KVF_EINVAL, "unknown flag --%.*s (--help lists them)", (int)len, name);
    }
    const char *text = equals == NULL ? walk->argv[*at + 1] : equals + 1;
    if (equals == NULL) {
        if (text == NULL) return flag_needs_value(flag, err);
        if (strncmp(text, "--", 2) == 0)
            return kvf_fail(err, KVF_EINVAL, "flag %s: expected a value, got the flag %s (use %s=VALUE if it is one)",
                            flag, text, flag);
        ++*at;
    }
    return flag_use(walk, i, is_config ? "config" : conf->items[i].name, text, err);
}

static int flag_short(struct flag_walk *walk, int *at, struct kvf_err *err)
{
    struct conf *conf = walk->conf;
    const char *flag = walk->argv[*at];
    for (const char *letter = flag + 1; *letter != 0; letter++) {
        int i = 0;
        while (i < conf->n_items && conf->items[i].letter != *letter) i++;
        if (i == conf->n_items) return kvf_fail(err, KVF_EINVAL, "unknown flag -%c (--help lists them)", *letter);
        const struct conf_item *item = &conf->items[i];
        if (item->kind == CONF_BOOL) {
            int code = flag_use(walk, i, item->name, "true", err);
            if (code != 0) return code;
            continue;
        }
        const char *text = letter[1] != 0 ? letter + 1 : walk->argv[++*at];
        if (text == NULL) return flag_needs_value(flag, err);
        return flag_use(walk, i, item->name, text, err);
    }
    return 0;
}

static int flags_walk(struct flag_walk *walk, struct kvf_err *err)
{
    struct conf *conf = walk->conf;
    bool flags_end = false;
    walk->n_rest = 0;
    for (int at = 1; at < walk->argc; at++) {
        char *argument = walk->argv[at];
        int code = 0;
        if (flags_end || argument[0] != '-' || argument[1] == 0)
            conf->rest[walk->n_rest++] = argument;
        else if (strcmp(argument, "--") == 0)
            flags_end = true;
        else if (argument[1] == '-')
            code = flag_long(walk, &at, err);
        else
            code = flag_short(walk, &at, err);
        if (code != 0) return code;
    }
    conf->rest[walk->n_rest] = NULL;
    return 0;
}

int conf_read(const struct conf_item *items, void *settings, int argc, char **argv, struct conf **out, char ***rest,
              struct kvf_err *err)
{
    *out = NULL;
    struct conf *conf = calloc(1, sizeof *conf);
    if (conf == NULL) return conf_nomem(err);
    conf->items = items;
    conf->settings = settings;
    while (items[conf->n_items].name != NULL) conf->n_items++;
    conf->values = calloc((size_t)conf->n_items + 1, sizeof *conf->values);
    conf->rest = calloc((size_t)(argc > 0 ? argc : 0) + 1, sizeof *conf->rest);
    int code = conf->values == NULL || conf->rest == NULL ? conf_nomem(err) : defaults_read(conf, err);

    struct flag_walk walk = {.conf = conf, .argc = argc, .argv = argv, .only_config = true};
    if (code == 0) code = flags_walk(&walk, err);
    if (code == 0) {
        const char *named_by = walk.config_path != NULL ? "flag" : "environment KVFLEET_CONFIG";
        const char *path = walk.config_path != NULL ? walk.config_path : getenv("KVFLEET_CONFIG");
        if (path != NULL && path[0] != 0) code = file_read(conf, path, named_by, err);
    }
    if (code == 0) code = environment_read(conf, err);
    walk.only_config = false;
    if (code == 0) code = flags_walk(&walk, err);
    if (code != 0) {
        conf_free(&conf);
        return code;
    }
    *out = conf;
    if (rest != NULL) *rest = conf->rest;
    return 0;
}

bool conf_is_flag(const struct conf *conf, const char *name)
{
    const int i = item_find(conf, name, strlen(name));

    return i >= 0 && conf->values[i].rank == RANK_FLAG;
}

void conf_free(struct conf **conf)
{
    if (conf == NULL || *conf == NULL) return;
    for (int i = 0; (*conf)->values != NULL && i < (*conf)->n_items; i++) {
        free((*conf)->values[i].text);
        free((*conf)->values[i].origin);
        list_free((*conf)->values[i].list);
    }
    free((*conf)->values);
    free((*conf)->rest);
    free(*conf);
    *conf = NULL;
}

/* ---- for people ---- */

void conf_print(const struct conf *conf, FILE *out)
{
    int width = 0;
    for (int i = 0; i < conf->n_items; i++)
        if ((int)strlen(conf->items[i].name) > width) width = (int)strlen(conf->items[i].name);
    for (int i = 0; i < conf->n_items; i++) {
        const struct value *value = &conf->values[i];
        const char *text = value->text, *origin = value->origin == NULL ? "default" : value->origin;
        if (text == NULL) {
            fprintf(out, "# %-*s is not set  # %s\n", width, conf->items[i].name, origin);
            continue;
        }
        fprintf(out, "%-*s = ", width + 2, conf->items[i].name);
        /* Quoted where reading the line back would see a comment, a quote or outer spaces. */
        if (text[0] == 0 || strpbrk(text, "#\"") != NULL || isspace((unsigned char)text[0]) ||
            isspace((unsigned char)text[strlen(text) - 1])) {
            fputc('"', out);
            for (const char *at = text; *at != 0; at++) {
                if (*at == '"' || *at == '\\') fputc('\\', out);
                fputc(*at, out);
            }
            fputc('"', out);
        } else {
            fputs(text, out);
        }
        fprintf(out, "  # %s\n", origin);
    }
}

void conf_help(const struct conf_item *items, FILE *out)
{
    int width = 0;
    for (const struct conf_item *item = items; item->name != NULL; item++) {
        int len = (int)strlen(item->name) + (item->value_name == NULL ? 0 : 1 + (int)strlen(item->value_name));
        if (item->kind == CONF_BOOL && item->fallback != NULL && bool_parse(item->fallback) == 1)
            len += 7 + (int)strlen(item->name); /* both are shown: NAME, --no-NAME */
        if (len > width) width = len;
    }
    for (const struct conf_item *item = items; item->name != NULL; item++) {
        bool is_on = item->kind == CONF_BOOL && item->fallback != NULL && bool_parse(item->fallback) == 1;
        char flag[128], letter[8] = "    ";
        if (is_on)
            snprintf(flag, sizeof flag, "%s, --no-%s", item->name, item->name);
        else
            snprintf(flag, sizeof flag, "%s%s%s", item->name,
                     item->value_name == NULL || item->kind == CONF_BOOL ? "" : " ",
                     item->value_name == NULL || item->kind == CONF_BOOL ? "" : item->value_name);
        if (item->letter != 0) snprintf(letter, sizeof letter, "-%c, ", item->letter);
        fprintf(out, "  %s--%-*s  %s", letter, width, flag, item->help == NULL ? "" : item->help);
        if (is_on)
            fputs(" (default: on)", out);
        else if (item->fallback != NULL && item->kind != CONF_BOOL && item->fallback[0] != 0)
            fprintf(out, " (default %s)", item->fallback);
        fputc('\n', out);
    }
    fprintf(out, "      --%-*s  settings file: `name = value` lines (or KVFLEET_CONFIG)\n", width, "config FILE");
}

bool conf_asked(int argc, char **argv, const char *name, char letter)
{
    const char brief[] = {'-', letter, '\0'};

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], brief) == 0 || (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0))
            return true;
    return false;
}
