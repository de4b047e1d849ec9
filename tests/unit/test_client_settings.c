/* Commands and their flags: which belong to whom, where a value came from, which name was meant. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/client/commands.h"

static int parse(const char *name, struct settings *settings, struct conf **conf, char ***rest, struct kvf_err *err,
                 int argc, char **argv)
{
    const struct command *command = command_find(name);

    ck_assert_ptr_nonnull(command);
    return settings_read(command, argc, argv, settings, conf, rest, err);
}
#define READ(name, ...)                                                                                                \
    parse(name, &settings, &conf, &rest, &err, (int)(sizeof((char *[]){name, __VA_ARGS__}) / sizeof(char *)),          \
          (char *[]){name, __VA_ARGS__, NULL})

static struct settings settings;
static struct conf *conf;
static struct kvf_err err;
static char **rest;

START_TEST(defaults_and_flags)
{
    ck_assert_msg(READ("sweep", "--budget", "96,128", "--budget", "160", "-i", "32", "--no-watch", "--timeout=2s") ==
                      KVF_OK,
                  "%s", err.text);
    ck_assert_str_eq(settings.budgets[0], "96");
    ck_assert_str_eq(settings.budgets[2], "160");
    ck_assert_ptr_null(settings.budgets[3]);
    ck_assert_int_eq(settings.interval, 32);
    ck_assert(!settings.watch);
    ck_assert_int_eq(settings.timeout_ms, 2000);
    ck_assert_int_eq(settings.max_new_tokens, 1024);
    ck_assert_str_eq(settings.template_name, "auto");
    ck_assert_str_eq(settings.key, "client");
    conf_free(&conf);

    ck_assert_int_eq(READ("sweep", "--json"), KVF_OK);
    ck_assert(settings.watch);
    conf_free(&conf);
    ck_assert_int_eq(READ("submit", "--json"), KVF_OK);
    ck_assert(!settings.watch);
    conf_free(&conf);
    ck_assert_int_eq(READ("watch", "7"), KVF_OK);
    ck_assert_str_eq(rest[0], "7");
    ck_assert_ptr_null(rest[1]);
    conf_free(&conf);
}
END_TEST

START_TEST(flags_of_other_commands_are_refused)
{
    ck_assert_int_eq(READ("status", "--interval", "3"), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "--interval"));
    ck_assert_int_eq(READ("status", "--no-watch"), KVF_EINVAL);
    ck_assert_int_eq(READ("status", "-m", "x"), KVF_EINVAL);
    ck_assert_int_eq(READ("status", "--no-such-flag"), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "--no-such-flag"));
    ck_assert_int_eq(READ("generate", "--coordinator", "tcp://x:1"), KVF_EINVAL);
    ck_assert_int_eq(READ("sweep", "--interval", "0"), KVF_EINVAL);
}
END_TEST

START_TEST(a_file_may_hold_what_other_commands_use)
{
    char path[] = "/tmp/kvfleet-settings.XXXXXX", *text = NULL;
    int file = mkstemp(path);
    size_t size = 0;
    FILE *out = fdopen(file, "w"), *shown;

    fputs("coordinator = tcp://10.0.0.1:7710\nkeys = /keys\ninterval = 64\n", out);
    fclose(out);
    setenv("KVFLEET_CONFIG", path, 1);
    setenv("KVFLEET_KEY", "other", 1);
    ck_assert_msg(READ("generate", "--model", "m") == KVF_OK, "%s", err.text);
    ck_assert_int_eq(settings.interval, 64);
    conf_free(&conf);

    ck_assert_msg(READ("status", "--timeout", "5s") == KVF_OK, "%s", err.text);
    ck_assert_str_eq(settings.coordinator, "tcp://10.0.0.1:7710");
    ck_assert_str_eq(settings.key, "other");
    shown = open_memstream(&text, &size);
    settings_print(&settings, conf, shown);
    fclose(shown);
    ck_assert_ptr_nonnull(strstr(text, "tcp://10.0.0.1:7710"));
    ck_assert_ptr_nonnull(strstr(text, path));
    ck_assert_ptr_nonnull(strstr(text, "KVFLEET_KEY"));
    ck_assert_ptr_null(strstr(text, "interval"));
    free(text);
    conf_free(&conf);
    unlink(path);
}
END_TEST

START_TEST(nearest_command)
{
    ck_assert_str_eq(command_nearest("sweeep")->name, "sweep");
    ck_assert_str_eq(command_nearest("stauts")->name, "status");
    ck_assert_str_eq(command_nearest("result")->name, "results");
    ck_assert_str_eq(command_nearest("gen")->name, "generate");
    ck_assert_ptr_null(command_nearest("frobnicate"));
    ck_assert_ptr_null(command_nearest(""));
}
END_TEST

START_TEST(every_command_explains_itself)
{
    for (int i = 0; commands[i] != NULL; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        settings_help(commands[i], out);
        fclose(out);
        ck_assert_ptr_nonnull(strstr(text, commands[i]->summary));
        ck_assert_ptr_nonnull(strstr(text, "--help"));
        ck_assert_ptr_nonnull(strstr(text, "Example:\n"));
        ck_assert_ptr_nonnull(strstr(strstr(text, "Example:\n"), commands[i]->name));
        free(text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client settings");
    TCase *tc = tcase_create("settings");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, defaults_and_flags);
    tcase_add_test(tc, flags_of_other_commands_are_refused);
    tcase_add_test(tc, a_file_may_hold_what_other_commands_use);
    tcase_add_test(tc, nearest_command);
    tcase_add_test(tc, every_command_explains_itself);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
