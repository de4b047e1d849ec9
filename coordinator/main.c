#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/server.h"
#include "kvf_build.h"
#include "proto/conf.h"
#include "proto/log.h"

struct settings {
    struct server_options server;
    const char *log_level;
    bool print_config, help, version;
};
#define AT(field) offsetof(struct settings, field)

static const struct conf_item items[] = {
    {"bind", 'b', CONF_TEXT, AT(server.bind), "tcp://127.0.0.1:7710", 0, 0, "URL",
     "tcp:// or ipc:// endpoint to serve on"},
    {"keys", 'k', CONF_TEXT, AT(server.keys), NULL, 0, 0, "DIR",
     "key folder: coordinator.secret and authorized/ (required)"},
    {"db", 'd', CONF_TEXT, AT(server.db), "dbname=kvfleet user=kvfleet_coordinator", 0, 0, "CONNINFO",
     "PostgreSQL to write to (libpq connection string)"},
    {"db-read", 0, CONF_TEXT, AT(server.db_read), NULL, 0, 0, "CONNINFO",
     "PostgreSQL to read from for queries (default: --db)"},
    {"db-wait", 0, CONF_MS, AT(server.db_wait_ms), "30s", 0, 86400000, "TIME", "at the start: how long to wait for it"},
    {"lease", 0, CONF_MS, AT(server.lease_ms), "60s", 100, 86400000, "TIME",
     "samples are lent for so long after each heartbeat"},
    {"heartbeat", 0, CONF_MS, AT(server.heartbeat_ms), "5s", 10, 3600000, "TIME", "how often workers are to be heard"},
    {"ready-file", 0, CONF_TEXT, AT(server.ready_file), NULL, 0, 0, "PATH",
     "written, with the endpoint, once it serves"},
    {"log-level", 0, CONF_TEXT, AT(log_level), "info", 0, 0, "LEVEL", "error, warn, info or debug"},
    {"print-config", 0, CONF_BOOL, AT(print_config), NULL, 0, 0, NULL,
     "print each setting and where it came from, then end"},
    {"version", 'V', CONF_BOOL, AT(version), NULL, 0, 0, NULL, "print the version, then end"},
    {"help", 'h', CONF_BOOL, AT(help), NULL, 0, 0, NULL, "print this, then end"},
    {NULL, 0, CONF_TEXT, 0, NULL, 0, 0, NULL, NULL},
};

enum { EXIT_OK = 0, EXIT_USAGE = 64, EXIT_INTERNAL = 70, EXIT_TEMPORARY = 75, EXIT_DENIED = 77, EXIT_CONFIG = 78 };

static int exit_code(int code)
{
    switch (code) {
    case KVF_OK:
        return EXIT_OK;
    case KVF_EINVAL:
        return EXIT_USAGE;
    case KVF_EUNAVAIL:
        return EXIT_TEMPORARY;
    case KVF_EDENIED:
        return EXIT_DENIED;
    case KVF_ECONFLICT:
    case KVF_EUNSUPPORTED:
    case KVF_ENOTFOUND:
        return EXIT_CONFIG;
    default:
        return EXIT_INTERNAL;
    }
}

static void help_print(void)
{
    printf(
        "usage: kvfleet-coordinator --keys DIR [--bind URL] [--db CONNINFO]\n\n"
        "Lends the samples of sweeps to workers and writes their results to PostgreSQL. SIGHUP reads the keys again,\n"
        "SIGTERM stops; it may be killed at any time. Each setting is a flag, KVFLEET_NAME, or a line of --config "
        "FILE.\n\n");
    conf_help(items, stdout);
    printf("\nexample:\n"
           "  kvfleet-coordinator --keys var/keys --db \"host=$PWD/var/pg/socket dbname=kvfleet "
           "user=kvfleet_coordinator\"\n");
}

static int settings_check(const struct settings *settings, char *const *rest, struct kvf_err *err)
{
    if (rest[0] != NULL) return kvf_fail(err, KVF_EINVAL, "'%s' is not a flag; see --help", rest[0]);
    if (log_parse_level(settings->log_level) < 0)
        return kvf_fail(err, KVF_EINVAL, "--log-level: expected error, warn, info or debug, got '%s'",
                        settings->log_level);
    if (settings->server.keys == NULL && !settings->print_config)
        return kvf_fail(err, KVF_EINVAL,
                        "--keys is required: the folder with coordinator.secret and authorized/ (kvfleet keys)");
    if (settings->server.lease_ms < 3 * settings->server.heartbeat_ms)
        return kvf_fail(err, KVF_EINVAL,
                        "--lease: expected at least three heartbeats (%" PRId64 " ms), got %" PRId64 " ms",
                        3 * settings->server.heartbeat_ms, settings->server.lease_ms);
    return KVF_OK;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct conf *conf = NULL;
    char **rest = NULL;
    struct kvf_err err = {""};
    int code;

    if (conf_asked(argc, argv, "help", 'h')) {
        help_print();
        return EXIT_OK;
    }
    if (conf_asked(argc, argv, "version", 'V')) {
        printf("kvfleet-coordinator %s (%s)\n", KVF_VERSION, KVF_REVISION);
        return EXIT_OK;
    }
    code = conf_read(items, &settings, argc, argv, &conf, &rest, &err);
    /* Whatever is wrong with flags, environment or settings file is usage. */
    if (code != KVF_OK && code != KVF_ENOMEM) code = KVF_EINVAL;
    if (code == KVF_OK) code = settings_check(&settings, rest, &err);
    if (code == KVF_OK && settings.print_config) {
        conf_print(conf, stdout);
    } else if (code == KVF_OK) {
        log_set_level((enum log_level)log_parse_level(settings.log_level));
        code = server_run(&settings.server, &err);
    }
    if (code != KVF_OK) fprintf(stderr, "kvfleet-coordinator: %s\n", err.text);
    conf_free(&conf);
    return exit_code(code);
}
