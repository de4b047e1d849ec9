#include "coordinator/client/settings.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/exit_code.h"

#define AT(field) offsetof(struct settings, field)

static const struct conf_item every_items[] = {
    {"log-level", 0, CONF_TEXT, AT(log_level), "warn", 0, 0, "LEVEL", "error, warn, info or debug"},
    {"print-config", 0, CONF_BOOL, AT(print_config), "false", 0, 0, NULL,
     "print each setting and where it comes from, and stop"},
    {"help", 'h', CONF_BOOL, AT(help), "false", 0, 0, NULL, "print this and stop"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};
static const struct conf_item fleet_items[] = {
    {"coordinator", 0, CONF_TEXT, AT(coordinator), "tcp://127.0.0.1:7710", 0, 0, "URL", "where the coordinator is"},
    {"keys", 0, CONF_TEXT, AT(keys), NULL, 0, 0, "DIR", "folder with the keys"},
    {"key", 0, CONF_TEXT, AT(key), "client", 0, 0, "NAME", "which key of that folder to use"},
    {"timeout", 0, CONF_MS, AT(timeout_ms), "60s", 1, 86400000, "TIME", "how long to wait for an answer"},
    {"json", 0, CONF_BOOL, AT(json), "false", 0, 0, NULL, "print JSON"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct conf_item no_items[] = {{NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL}};

static int items_append(struct conf_item *to, int count, const struct conf_item *from)
{
    for (; from->name != NULL; from++) {
        bool known = false;
        for (int i = 0; i < count && !known; i++) known = strcmp(to[i].name, from->name) == 0;
        if (!known && count + 1 < SETTINGS_ITEMS_MAX) to[count++] = *from;
    }
    return count;
}

static const struct conf_item *command_items(const struct command *command)
{
    return command->items == NULL ? no_items : command->items;
}

/* The command's own flags; returns how many. */
static int items_own(const struct command *command, struct conf_item *to)
{
    int count = items_append(to, 0, command_items(command));

    if (command->fleet) count = items_append(to, count, fleet_items);
    count = items_append(to, count, every_items);
    memset(&to[count], 0, sizeof to[count]);
    return count;
}

static bool item_known(const struct conf_item *items, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(items[i].name) == length && memcmp(items[i].name, name, length) == 0) return true;
    return false;
}

int settings_read(const struct command *command, int argc, char **argv, struct settings *out, struct conf **conf,
                  char ***rest, struct kvf_err *err)
{
    struct conf_item *items = out->items;
    int own, count;

    memset(out, 0, sizeof *out);
    own = count = out->own_items = items_own(command, items);
    for (int i = 0; commands[i] != NULL; i++) {
        count = items_append(items, count, command_items(commands[i]));
        count = items_append(items, count, fleet_items);
    }
    for (int i = own; i < count; i++) items[i].letter = 0;
    memset(&items[count], 0, sizeof items[count]);

    /* What belongs to another command is fine in a file or in the environment, but not on this command's line. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *name = argv[i] + 2;
        size_t length, no = strncmp(argv[i], "--no-", 5) == 0 ? 3 : 0;
        if (strncmp(argv[i], "--", 2) != 0) continue;
        length = (size_t)(strchrnul(name, '=') - name);
        if (item_known(items + own, count - own, name, length) ||
            item_known(items + own, count - own, name + no, length - no))
            return kvf_fail(err, KVF_EINVAL, "--%.*s is not a flag of this command; see kvfleet %s --help", (int)length,
                            name, command->name);
    }
    const int code = conf_read(items, out, argc, argv, conf, rest, err);
    out->conf = *conf;
    return code;
}

void settings_print(const struct settings *settings, const struct conf *conf, FILE *out)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);

    if (memory == NULL) return;
    conf_print(conf, memory);
    if (fclose(memory) == 0) {
        for (char *line = text, *end; *line != '\0'; line = end) {
            const char *name = line + strspn(line, "# "); /* what is not set is a comment */
            end = strchrnul(line, '\n');
            if (*end == '\n') end++;
            if (item_known(settings->items, settings->own_items, name, strcspn(name, " =\t\n")))
                fwrite(line, 1, (size_t)(end - line), out);
        }
    }
    free(text);
}

void settings_help(const struct command *command, FILE *out)
{
    struct conf_item items[SETTINGS_ITEMS_MAX];

    items_own(command, items);
    fprintf(out, "kvfleet %s%s%s: %s\n\n", command->name, command->arguments[0] == '\0' ? "" : " ", command->arguments,
            command->summary);
    if (command->text != NULL) fprintf(out, "%s\n\n", command->text);
    fputs("Flags:\n", out);
    conf_help(items, out);
    fprintf(out,
            "\nA flag --long-name can also be set as KVFLEET_LONG_NAME, or in the file that --config or KVFLEET_CONFIG "
            "names.\n"
            "\nExample:\n  %s\n",
            command->example);
}

const struct command *command_find(const char *name)
{
    for (int i = 0; commands[i] != NULL; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

/* Edit distance with neighbouring letters swapped as one edit; names here are short. */
static int edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    int d[LONGEST + 1][LONGEST + 1], n = (int)strlen(a), m = (int)strlen(b);

    if (n > LONGEST || m > LONGEST) return LONGEST;
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const struct command *command_nearest(const char *typed)
{
    const struct command *nearest = NULL;
    int best = 3; /* more than two edits away is another word */

    for (int i = 0; commands[i] != NULL; i++) {
        int distance = edit_distance(typed, commands[i]->name);
        if (strlen(typed) >= 3 && strncmp(commands[i]->name, typed, strlen(typed)) == 0) distance = 0;
        if (distance < best) {
            best = distance;
            nearest = commands[i];
        }
    }
    return nearest;
}

int command_fail(const struct command *command, int code, const struct kvf_err *err)
{
    fprintf(stderr, "kvfleet %s: %s\n", command->name, err->text);
    return exit_code_of(code);
}

int command_misuse(const struct command *command, const char *format, ...)
{
    struct kvf_err err;
    va_list args;

    va_start(args, format);
    kvf_vfail(&err, KVF_EINVAL, format, args);
    va_end(args);
    fprintf(stderr, "kvfleet %s: %s; see kvfleet %s --help\n", command->name, err.text, command->name);
    return EXIT_USAGE;
}
