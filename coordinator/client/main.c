/* kvfleet: the command. Finds the command's struct, reads its flags, runs it. */
#include <stdio.h>
#include <string.h>
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "kvf_build.h"
#include "proto/log.h"
#include "worker/lost_file.h"

static void usage(FILE *out)
{
    fputs("kvfleet measures how small the KV cache of a reasoning model may become.\n\nusage: kvfleet COMMAND "
          "[FLAGS]\n\n",
          out);
    for (int i = 0; commands[i] != NULL; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("  help       print this, or the flags of a command: kvfleet help sweep\n"
          "  --version  print the version\n\n"
          "A flag --long-name can be set in the environment as KVFLEET_LONG_NAME or in the file that --config names.\n",
          out);
}

static int unknown_command(const char *typed)
{
    const struct command *nearest = command_nearest(typed);
    struct kvf_err err;
    int code = nearest != NULL
                   ? kvf_fail(&err, KVF_EINVAL, "unknown command '%s'; did you mean '%s'?", typed, nearest->name)
                   : kvf_fail(&err, KVF_EINVAL, "unknown command '%s'; kvfleet help lists the commands", typed);

    fprintf(stderr, "kvfleet: %s\n", err.text);
    return exit_code_of(code);
}

static int run_help(const char *name)
{
    const struct command *command;

    if (name == NULL) {
        usage(stdout);
        return EXIT_DONE;
    }
    command = command_find(name);
    if (command == NULL) return unknown_command(name);
    settings_help(command, stdout);
    return EXIT_DONE;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct settings settings;
    struct conf *conf = NULL;
    struct kvf_err err;
    char **rest = NULL;
    int code, exit_code = EXIT_DONE;

    code = settings_read(command, argc, argv, &settings, &conf, &rest, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    if (settings.help)
        settings_help(command, stdout);
    else if (settings.print_config)
        settings_print(&settings, conf, stdout);
    else if (log_parse_level(settings.log_level) < 0)
        exit_code =
            command_misuse(command, "--log-level: expected error, warn, info or debug, got '%s'", settings.log_level);
    else {
        log_set_level((enum log_level)log_parse_level(settings.log_level));
        exit_code = command->run(command, &settings, rest);
    }
    conf_free(&conf);
    return exit_code;
}

int main(int argc, char **argv)
{
    const struct command *command;
    int exit_code;

    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    lost_file_catch("kvfleet", exit_code_of(KVF_EIO));
    if (strcmp(argv[1], "--version") == 0) {
        printf("kvfleet %s (revision %s; %s)\n", KVF_VERSION, KVF_REVISION, KVF_BUILD_FLAGS);
        exit_code = EXIT_DONE;
    } else if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        exit_code = run_help(NULL);
    } else if (strcmp(argv[1], "help") == 0) {
        exit_code = run_help(argv[2]);
    } else {
        command = command_find(argv[1]);
        exit_code = command == NULL ? unknown_command(argv[1]) : run_command(command, argc - 1, argv + 1);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("kvfleet: cannot write the output\n", stderr);
        if (exit_code == EXIT_DONE) exit_code = EXIT_INTERNAL;
    }
    return exit_code;
}
