/* main.c: kvfleet-worker. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "kvf_build.h"
#include "proto/conf.h"
#include "proto/log.h"
#include "worker/fleet.h"
#include "worker/lost_file.h"

struct settings {
    const char *coordinator, *keys, *key, *backend, *kernels, *kv_type, *log_level;
    const char **models;
    int64_t threads, max_batch, prefill_chunk, kv_memory, drain_timeout;
    bool print_config, version, help;
};

#define AT(member) offsetof(struct settings, member)
static const struct conf_item items[] = {
    {"coordinator", 'c', CONF_TEXT, AT(coordinator), "tcp://127.0.0.1:7710", 0, 0, "URL", "coordinator to serve"},
    {"keys", 0, CONF_TEXT, AT(keys), "keys", 0, 0, "DIR", "folder with NAME.secret and coordinator.public"},
    {"key", 0, CONF_TEXT, AT(key), "worker", 0, 0, "NAME", "this worker's key"},
    {"models", 'm', CONF_LIST, AT(models), NULL, 0, 0, "DIR[,DIR...]", "model folders; the first is loaded at once"},
    {"backend", 0, CONF_TEXT, AT(backend), "auto", 0, 0, "NAME", "auto or cpu"},
    {"kernels", 0, CONF_TEXT, AT(kernels), "auto", 0, 0, "SET", "auto, avx512bf16, avx2 or plain"},
    {"threads", 't', CONF_INT, AT(threads), "0", 0, 1024, "N", "compute threads; 0: every core it may use"},
    {"max-batch", 'b', CONF_INT, AT(max_batch), "32", 1, 256, "N", "samples decoded at once"},
    {"prefill-chunk", 0, CONF_INT, AT(prefill_chunk), "0", 0, 65536, "TOKENS", "prompt tokens in one step; 0: 256"},
    {"kv-memory", 0, CONF_BYTES, AT(kv_memory), "0", 0, 1e15, "BYTES",
     "cache pages, e.g. 512MiB; 0: full contexts for the whole batch, at most 1GiB"},
    {"kv-type", 0, CONF_TEXT, AT(kv_type), "f32", 0, 0, "TYPE",
     "how K and V are stored: f32, or bf16 in half the bytes"},
    {"drain-timeout", 0, CONF_MS, AT(drain_timeout), "25s", 0, 86400e3, "TIME",
     "on SIGTERM or SIGINT, to finish what runs"},
    {"log-level", 0, CONF_TEXT, AT(log_level), "info", 0, 0, "LEVEL", "error, warn, info or debug"},
    {"print-config", 0, CONF_BOOL, AT(print_config), NULL, 0, 0, NULL, "print every setting and where it came from"},
    {"version", 'V', CONF_BOOL, AT(version), NULL, 0, 0, NULL, "print version, revision and build flags"},
    {"help", 'h', CONF_BOOL, AT(help), NULL, 0, 0, NULL, "print this"},
    {0},
};

static volatile sig_atomic_t signals;

/* The first signal drains; whoever sends a second means it. */
static void on_signal(int number)
{
    if (signals != 0) _exit(128 + number);
    signals = 1;
}

static int exit_code(int rc)
{
    switch (rc) {
    case 0:
        return 0;
    case KVF_EDENIED:
        return 77;
    case KVF_ECONFLICT:
        return 78;
    case KVF_EUNAVAIL:
        return 75;
    case KVF_EIO:
    case KVF_ENOMEM:
        return 70;
    default:
        return 64; /* settings, keys, model */
    }
}

static int usage_error(const char *line)
{
    fprintf(stderr, "kvfleet-worker: %s\n", line);
    return 64;
}

static void print_help(void)
{
    puts("kvfleet-worker: runs samples for a kvfleet coordinator\n\n"
         "    kvfleet-worker --coordinator tcp://HOST:7710 --keys DIR --models DIR[,DIR...]\n\n"
         "Each flag may also be given as KVFLEET_NAME or as `name = value` in a file (--config FILE). SIGTERM or "
         "SIGINT\n"
         "drains: no new samples, what runs is finished or handed back. A second signal ends it at once.\n");
    conf_help(items, stdout);
    puts("\nExample:\n    kvfleet-worker --keys var/keys --models models/tiny-reasoner --threads 1");
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct conf *conf = NULL;
    char **rest = NULL;
    struct kvf_err err = {""};
    if (conf_asked(argc, argv, "help", 'h')) {
        print_help();
        return 0;
    }
    if (conf_asked(argc, argv, "version", 'V')) {
        printf("kvfleet-worker %s (%s)\n%s\n", KVF_VERSION, KVF_REVISION, KVF_BUILD_FLAGS);
        return 0;
    }
    if (conf_read(items, &settings, argc, argv, &conf, &rest, &err) != 0) return usage_error(err.text);
    int code = 0, level = log_parse_level(settings.log_level);
    if (settings.print_config) {
        conf_print(conf, stdout);
    } else if (rest[0] != NULL) {
        snprintf(err.text, sizeof err.text, "expected flags only, got \"%s\"", rest[0]);
        code = usage_error(err.text);
    } else if (level < 0) {
        snprintf(err.text, sizeof err.text, "log-level: expected error, warn, info or debug, got \"%s\"",
                 settings.log_level);
        code = usage_error(err.text);
    } else if (settings.models == NULL || settings.models[0] == NULL) {
        code = usage_error("models: expected at least one model folder (--models DIR), got none");
    } else {
        log_set_level((enum log_level)level);
        struct sigaction action = {.sa_handler = on_signal};
        sigemptyset(&action.sa_mask);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGINT, &action, NULL);
        signal(SIGPIPE, SIG_IGN);
        lost_file_catch("kvfleet-worker", exit_code(KVF_EIO));
        struct worker_options options = {
            .coordinator = settings.coordinator,
            .keys = settings.keys,
            .key = settings.key,
            .models = settings.models,
            .backend = settings.backend,
            .kernels = settings.kernels,
            .kv_type = settings.kv_type,
            .threads = (int)settings.threads,
            .max_batch = (int)settings.max_batch,
            .prefill_chunk_tokens = (int)settings.prefill_chunk,
            .kv_bytes = settings.kv_memory,
            .drain_ms = settings.drain_timeout,
            .version = KVF_VERSION,
            .revision = KVF_REVISION,
            .build_flags = KVF_BUILD_FLAGS,
        };
        int rc = worker_run(&options, &signals, &err);
        if (rc != 0) fprintf(stderr, "kvfleet-worker: %s\n", err.text);
        code = exit_code(rc);
    }
    conf_free(&conf);
    return code;
}
