/* Configuration: which source wins, where each value came from, and what a wrong one says. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "proto/conf.h"

struct settings {
    const char *title, *keys;
    int64_t limit, memory, lease_ms, plain, seed;
    double ratio;
    bool watch, color;
    const char **policy;
};
static const struct conf_item items[] = {
    {"title", 't', CONF_TEXT, offsetof(struct settings, title), NULL, 0, 0, "TEXT", "name of the job"},
    {"keys", 0, CONF_TEXT, offsetof(struct settings, keys), "var/keys", 0, 0, "DIR", "key folder"},
    {"limit", 'n', CONF_INT, offsetof(struct settings, limit), "5", 1, 100, "N", "how many"},
    {"plain", 0, CONF_INT, offsetof(struct settings, plain), NULL, 0, 0, "N", "no limits"},
    {"seed", 0, CONF_INT, offsetof(struct settings, seed), NULL, 0, 9007199254740992.0, "N", "of sampling"},
    {"memory", 0, CONF_BYTES, offsetof(struct settings, memory), "64MiB", 1, 1e12, "SIZE", "cache"},
    {"lease-length", 0, CONF_MS, offsetof(struct settings, lease_ms), "60s", 100, 86400000, "TIME", "lease"},
    {"ratio", 0, CONF_REAL, offsetof(struct settings, ratio), "0.5", 0, 1, "X", "share"},
    {"watch", 'w', CONF_BOOL, offsetof(struct settings, watch), NULL, 0, 0, NULL, "follow it"},
    {"color", 'c', CONF_BOOL, offsetof(struct settings, color), "true", 0, 0, NULL, "colors"},
    {"policy", 'p', CONF_LIST, offsetof(struct settings, policy), "full,rkv", 0, 0, "LIST", "policies"},
    {NULL, 0, CONF_TEXT, 0, NULL, 0, 0, NULL, NULL}};

static struct settings got;
static struct conf *conf;
static char **rest;
static struct kvf_err err;
static char path[64];

static void setup(void)
{
    strcpy(path, "/tmp/kvfleet-conf.XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    memset(&got, 0xa5, sizeof got);
}

static void teardown(void)
{
    conf_free(&conf);
    unlink(path);
}

static void file_put(const char *text)
{
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    fclose(out);
}

#define READ(...) read_flags((char *[]){"program", __VA_ARGS__ __VA_OPT__(, ) NULL})
static int read_flags(char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL) argc++;
    conf_free(&conf);
    err.text[0] = 0;
    return conf_read(items, &got, argc, argv, &conf, &rest, &err);
}

static const char *printed(void)
{
    static char text[4096];
    FILE *out = fmemopen(text, sizeof text, "w");
    conf_print(conf, out);
    fclose(out);
    return text;
}

/* The line of one setting, spaces run together. */
static const char *printed_line(const char *name)
{
    static char line[512];
    const char *at = printed();
    size_t len = strlen(name), n = 0;
    while (at != NULL && !(strncmp(at, name, len) == 0 && at[len] == ' ')) {
        at = strchr(at, '\n');
        if (at != NULL) at++;
    }
    if (at == NULL) return "";
    for (; *at != '\n'; at++)
        if (*at != ' ' || line[n - 1] != ' ') line[n++] = *at;
    line[n] = 0;
    return line;
}

START_TEST(defaults)
{
    ck_assert_msg(READ() == 0, "%s", err.text);
    ck_assert_ptr_null(got.title);
    ck_assert_str_eq(got.keys, "var/keys");
    ck_assert_int_eq(got.limit, 5);
    ck_assert_int_eq(got.plain, 0);
    ck_assert_int_eq(got.memory, 64 << 20);
    ck_assert_int_eq(got.lease_ms, 60000);
    ck_assert_double_eq(got.ratio, 0.5);
    ck_assert(!got.watch && got.color);
    ck_assert_str_eq(got.policy[0], "full");
    ck_assert_str_eq(got.policy[1], "rkv");
    ck_assert_ptr_null(got.policy[2]);
    ck_assert_ptr_null(rest[0]);
    ck_assert_str_eq(printed_line("limit"), "limit = 5 # default");
    ck_assert_ptr_nonnull(strstr(printed(), "# title        is not set  # default\n"));
}
END_TEST

START_TEST(precedence)
{
    file_put("limit = 10\nkeys = from-file\nratio = 0.25\nlease-length = 7s\n");
    setenv("KVFLEET_KEYS", "from-environment", 1);
    setenv("KVFLEET_RATIO", "0.75", 1);
    setenv("KVFLEET_LEASE_LENGTH", "500ms", 1);
    setenv("KVFLEET_SOMETHING_OF_ANOTHER_PROGRAM", "x", 1);
    ck_assert_msg(READ("--ratio=0.875", "--config", path) == 0, "%s", err.text);
    char expected[160];
    ck_assert_int_eq(got.limit, 10);
    snprintf(expected, sizeof expected, "limit = 10 # file %s:1", path);
    ck_assert_str_eq(printed_line("limit"), expected);
    ck_assert_str_eq(got.keys, "from-environment");
    ck_assert_str_eq(printed_line("keys"), "keys = from-environment # environment KVFLEET_KEYS");
    ck_assert_double_eq(got.ratio, 0.875);
    ck_assert_str_eq(printed_line("ratio"), "ratio = 0.875 # flag");
    ck_assert_int_eq(got.lease_ms, 500);
    ck_assert_str_eq(printed_line("lease-length"), "lease-length = 500ms # environment KVFLEET_LEASE_LENGTH");
    ck_assert_str_eq(printed_line("memory"), "memory = 64MiB # default");
    /* the file by way of the environment; the flag names another */
    setenv("KVFLEET_CONFIG", path, 1);
    ck_assert_int_eq(READ(), 0);
    ck_assert_int_eq(got.limit, 10);
    setenv("KVFLEET_CONFIG", "/nowhere", 1);
    ck_assert_int_eq(READ(), KVF_ENOTFOUND);
    ck_assert_str_eq(err.text, "configuration file /nowhere (environment KVFLEET_CONFIG): No such file or directory");
    ck_assert_msg(READ("--config", path) == 0, "%s", err.text);
    /* what is overridden is checked all the same */
    setenv("KVFLEET_RATIO", "much", 1);
    ck_assert_int_eq(READ("--ratio", "0.5", "--config", path), KVF_EINVAL);
    ck_assert_str_eq(err.text, "ratio (environment KVFLEET_RATIO): expected a number, got \"much\"");
}
END_TEST

START_TEST(flags)
{
    ck_assert_msg(READ("one", "-n", "7", "--watch", "two", "--no-color", "-t=x", "--keys=", "--", "--limit", "-q") == 0,
                  "%s", err.text);
    ck_assert_int_eq(got.limit, 7);
    ck_assert(got.watch && !got.color);
    ck_assert_str_eq(got.title, "=x");
    ck_assert_str_eq(got.keys, "");
    static const char *const words[] = {"one", "two", "--limit", "-q"};
    for (int i = 0; i < 4; i++) ck_assert_str_eq(rest[i], words[i]);
    ck_assert_ptr_null(rest[4]);
    ck_assert_msg(READ("-wn8", "-", "--plain", "-3", "--title=--x") == 0, "%s", err.text);
    ck_assert_int_eq(got.limit, 8);
    ck_assert(conf_is_flag(conf, "limit") && conf_is_flag(conf, "watch"));
    ck_assert(!conf_is_flag(conf, "color") && !conf_is_flag(conf, "no-such"));
    ck_assert_int_eq(got.plain, -3);
    ck_assert_str_eq(got.title, "--x");
    ck_assert(got.watch);
    ck_assert_str_eq(rest[0], "-");
    ck_assert_msg(READ("--watch=no", "--color=1") == 0, "%s", err.text);
    ck_assert(!got.watch && got.color);
}
END_TEST

/* Of two values one would win without a word. */
START_TEST(flags_are_given_once)
{
    ck_assert_int_eq(READ("-n", "8", "--limit=9"), KVF_EINVAL);
    ck_assert_str_eq(err.text, "flag --limit: expected it once, got \"8\" and \"9\"");
    ck_assert_int_eq(READ("--title", "x", "--title", "x"), KVF_EINVAL);
    ck_assert_int_eq(READ("--watch", "--no-watch"), KVF_EINVAL);
    ck_assert_str_eq(err.text, "flag --watch: expected it once, got \"true\" and \"false\"");
    ck_assert_int_eq(READ("-ww"), KVF_EINVAL);
    file_put("limit = 10\n");
    setenv("KVFLEET_LIMIT", "11", 1);
    ck_assert_msg(READ("--config", path, "-n", "9") == 0, "%s", err.text);
    ck_assert_int_eq(got.limit, 9);
    ck_assert(conf_is_flag(conf, "limit"));
    ck_assert_msg(READ("--config", path) == 0, "%s", err.text);
    ck_assert(!conf_is_flag(conf, "limit"));
    unsetenv("KVFLEET_LIMIT");
    ck_assert_int_eq(READ("--config", path, "--config=/nowhere"), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "flag --config: expected it once, got \""));
}
END_TEST

START_TEST(lists)
{
    ck_assert_msg(READ("--policy", "snapkv", "-p", "rkv, random", "--policy=full") == 0, "%s", err.text);
    static const char *const names[] = {"snapkv", "rkv", "random", "full"};
    for (int i = 0; i < 4; i++) ck_assert_str_eq(got.policy[i], names[i]);
    ck_assert_ptr_null(got.policy[4]);
    ck_assert_str_eq(printed_line("policy"), "policy = snapkv,rkv, random,full # flag");
    file_put("policy = a\npolicy = b\n");
    ck_assert_msg(READ("--config", path) == 0, "%s", err.text);
    ck_assert_str_eq(got.policy[0], "a");
    ck_assert_str_eq(got.policy[1], "b");
    ck_assert_ptr_null(got.policy[2]);
    ck_assert_int_eq(READ("--policy="), 0);
    ck_assert_ptr_nonnull(got.policy);
    ck_assert_ptr_null(got.policy[0]);
    ck_assert_int_eq(READ("--policy=a,,b"), KVF_EINVAL);
    ck_assert_int_eq(READ("--policy=a,"), KVF_EINVAL);
    ck_assert_str_eq(err.text, "policy (flag): expected items between the commas, got \"a,\"");
}
END_TEST

START_TEST(units)
{
    static const struct {
        char *text;
        int64_t ms; /* -1: refused */
    } times[] = {{"500ms", 500}, {"60s", 60000}, {"5m", 300000},  {"1h", 3600000}, {"2", 2000},
                 {"1.5s", 1500}, {"0.25", 250},  {"10 s", 10000}, {"", -1},        {"s", -1},
                 {"5x", -1},     {"-5s", -1},    {"0x10s", -1},   {"nan", -1},     {"inf", -1},
                 {"99ms", -1},   {"25h", -1},    {"1e3ms", 1000}, {"5 m s", -1},   {" 5s", -1}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        int code = READ("--lease-length", times[i].text);
        ck_assert_msg(code == (times[i].ms < 0 ? KVF_EINVAL : 0), "%s: %d", times[i].text, code);
        if (code == 0) ck_assert_int_eq(got.lease_ms, times[i].ms);
    }
    static const struct {
        char *text;
        int64_t bytes;
    } sizes[] = {{"1000000", 1000000},  {"1KiB", 1024}, {"64MiB", 64 << 20}, {"2GiB", 2ll << 30},
                 {"0.5GiB", 512 << 20}, {"3kB", 3000},  {"1GB", 1000000000}, {"10B", 10},
                 {"64mib", -1},         {"0", -1},      {"1e30", -1},        {"2TiB", -1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int code = READ("--memory", sizes[i].text);
        ck_assert_msg(code == (sizes[i].bytes < 0 ? KVF_EINVAL : 0), "%s: %d", sizes[i].text, code);
        if (code == 0) ck_assert_int_eq(got.memory, sizes[i].bytes);
    }
}
END_TEST

START_TEST(wrong_flags)
{
    static const struct {
        char *flag, *value, *line;
    } cases[] = {
        {"--nope", NULL, "unknown flag --nope (--help lists them)"},
        {"--nope=3", NULL, "unknown flag --nope (--help lists them)"},
        {"--no-limit", NULL, "unknown flag --no-limit (--help lists them)"},
        {"--lim", "3", "unknown flag --lim (--help lists them)"},
        {"-z", NULL, "unknown flag -z (--help lists them)"},
        {"-wz", NULL, "unknown flag -z (--help lists them)"},
        {"--limit", NULL, "flag --limit: expected a value, got none"},
        {"-n", NULL, "flag -n: expected a value, got none"},
        {"--config", NULL, "flag --config: expected a value, got none"},
        {"--limit", "--watch", "flag --limit: expected a value, got the flag --watch (use --limit=VALUE if it is one)"},
        {"--limit", "0", "limit (flag): expected 1 to 100, got 0"},
        {"--limit", "101", "limit (flag): expected 1 to 100, got 101"},
        {"--limit", "99999999999999999999", "limit (flag): expected 1 to 100, got 99999999999999999999"},
        {"--limit", "7x", "limit (flag): expected an integer, got \"7x\""},
        {"--limit", "", "limit (flag): expected an integer, got \"\""},
        {"--limit", " 7", "limit (flag): expected an integer, got \" 7\""},
        {"--limit", "1.5", "limit (flag): expected an integer, got \"1.5\""},
        {"--seed", "-1", "seed (flag): expected 0 to 9007199254740992, got -1"},
        {"--ratio", "1.01", "ratio (flag): expected 0 to 1, got 1.01"},
        {"--ratio", "nan", "ratio (flag): expected a number, got \"nan\""},
        {"--watch=maybe", NULL, "watch (flag): expected true or false, got \"maybe\""},
        {"--lease-length", "1ms", "lease-length (flag): expected 100 to 86400000 ms, got 1ms"},
        {"--memory", "lots", "memory (flag): expected a size such as 64MiB or 1000000, got \"lots\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = cases[i].value == NULL ? READ(cases[i].flag) : READ(cases[i].flag, cases[i].value);
        ck_assert_msg(code == KVF_EINVAL, "%s: %d", cases[i].flag, code);
        ck_assert_str_eq(err.text, cases[i].line);
        ck_assert_ptr_null(conf);
    }
}
END_TEST

START_TEST(wrong_files)
{
    static const struct {
        const char *text, *line;
    } cases[] = {{"limit = 7\nnope = 3\n", ":2: unknown setting \"nope\" (--help lists them)"},
                 {"# only\nlimit\n", ":2: expected `name = value`, got \"limit\""},
                 {"limit = 7\n\nlimit = 8\n", ":3: limit is set twice, before in file "},
                 {"title = \"open\n", ":1: title: expected a closing quote at the end, got "},
                 {"title = \"a\" b\n", ":1: title: expected a closing quote at the end, got "},
                 {"limit = many\n", ":1): expected an integer, got \"many\""},
                 {"[section]\n", ":1: expected `name = value`, got \"[section]\""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        file_put(cases[i].text);
        ck_assert_int_eq(READ("--config", path), KVF_EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].line) != NULL, "%s", err.text);
        ck_assert_msg(strstr(err.text, path) != NULL, "%s", err.text);
    }
    FILE *out = fopen(path, "w");
    fwrite("title = a\0b\n", 1, 12, out);
    fclose(out);
    ck_assert_int_eq(READ("--config", path), KVF_EINVAL);
    ck_assert_int_eq(READ("--config", "/tmp"), KVF_EIO);
    ck_assert_int_eq(READ("--config=/nowhere"), KVF_ENOTFOUND);
    ck_assert_str_eq(err.text, "configuration file /nowhere (flag): No such file or directory");
}
END_TEST

START_TEST(file_forms)
{
    file_put("  # comment\n\n\ttitle=\" a # \\\"b\\\" \\\\ \" # why\nkeys =  x#y  # z\r\nwatch = on\nlimit = 8");
    ck_assert_msg(READ("--config", path) == 0, "%s", err.text);
    ck_assert_str_eq(got.title, " a # \"b\" \\ ");
    ck_assert_str_eq(got.keys, "x#y");
    ck_assert(got.watch);
    ck_assert_int_eq(got.limit, 8);
    /* What is printed can be read back. */
    char text[4096];
    snprintf(text, sizeof text, "%s", printed());
    file_put(text);
    ck_assert_msg(READ("--config", path) == 0, "%s\n%s", err.text, text);
    ck_assert_str_eq(got.title, " a # \"b\" \\ ");
    ck_assert_str_eq(got.keys, "x#y");
    ck_assert_int_eq(got.limit, 8);
}
END_TEST

START_TEST(help)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    conf_help(items, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "  -n, --limit N            how many (default 5)\n"));
    ck_assert_ptr_nonnull(strstr(text, "      --keys DIR           key folder (default var/keys)\n"));
    ck_assert_ptr_nonnull(strstr(text, "  -w, --watch              follow it\n"));
    ck_assert_ptr_nonnull(strstr(text, "  -c, --color, --no-color  colors (default: on)\n"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conf");
    TCase *tc = tcase_create("conf");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, precedence);
    tcase_add_test(tc, flags);
    tcase_add_test(tc, flags_are_given_once);
    tcase_add_test(tc, lists);
    tcase_add_test(tc, units);
    tcase_add_test(tc, wrong_flags);
    tcase_add_test(tc, wrong_files);
    tcase_add_test(tc, file_forms);
    tcase_add_test(tc, help);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
