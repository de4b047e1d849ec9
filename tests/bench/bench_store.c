/* bench_store.c: results a second through ZeroMQ into PostgreSQL. Workers that answer at once, as threads of this
 * process, against a running coordinator: bench_store --coordinator URL --keys DIR [--db CONNINFO] [--workers N]
 * [--samples N] [--text BYTES] [--cpu PID,...] Submits a job of that many samples, answers every lease, and prints
 * stored results a second from START's answer to the last ACK. With --db the rows in the database are counted
 * afterwards; with --cpu the processor time of those processes and of this one is printed, a row. Exit 0 when every
 * sample was stored. */
#include <inttypes.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "proto/clock.h"
#include "proto/conf.h"
#include "proto/wire.h"

#define BATCH_ROWS   64
#define CREDIT       256 /* samples in hand, as eight full leases */
#define PROBLEMS     1000
#define REQUEST_MS   120000
#define HEARTBEAT_MS 1000
#define CPU_PIDS_MAX 8

struct settings {
    const char *coordinator, *keys, *db, *cpu;
    int64_t workers, samples, text;
};

static const char model_hash[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
static struct settings settings;
static atomic_llong acknowledged;
static atomic_bool over;
static char *answer_text;

static void die(const struct kvf_err *err)
{
    fprintf(stderr, "bench_store: %s\n", err->text);
    exit(1);
}

static void send_now(struct wire_dealer *dealer, int type, const void *msg)
{
    struct kvf_err err = {""};
    int code;

    while ((code = wire_dealer_send(dealer, type, msg, &err)) == KVF_EAGAIN) usleep(200);
    if (code != KVF_OK) die(&err);
}

/* ---- a worker ---- */

struct fake {
    struct wire_dealer *dealer;
    uint64_t batch;
    struct {
        uint64_t fence, batch;
        uint32_t rows;
    } waiting[1024]; /* for their ACK */
    uint32_t n_waiting, in_hand;
};

static void hello_send(struct wire_dealer *dealer, int number)
{
    struct rec_model model = {str_of("bench"), str_of(model_hash)};
    struct msg_hello hello;
    char instance[33];

    snprintf(instance, sizeof instance, "bench-%d-%d", (int)getpid(), number);
    msg_init(MSG_HELLO_TYPE, &hello);
    hello.proto_min = hello.proto_max = MSG_PROTO_MAJOR;
    hello.instance = str_of(instance);
    hello.host = str_of("bench");
    hello.pid = (uint64_t)getpid();
    hello.version = hello.revision = hello.build_flags = hello.device = str_of("bench");
    hello.backend = str_of("none");
    hello.kernel_set = str_of("none");
    hello.threads = 1;
    hello.max_batch = CREDIT;
    hello.models = &model;
    hello.n_models = 1;
    send_now(dealer, MSG_HELLO_TYPE, &hello);
}

static void result_fill(struct rec_result *row, const struct rec_sample *sample)
{
    rec_result_init(row);
    row->sample_id = sample->sample_id;
    row->attempt = sample->attempt;
    row->seed = sample->seed;
    row->finish = str_of("stop");
    row->text = (struct str){answer_text, (uint32_t)settings.text};
    row->prompt_ids = str_of("1 2 3 4 5 6 7 8 ... 11 12 13 14 15 16 17 18");
    row->prompt_tokens = 80;
    row->output_tokens = 400;
    row->thinking_tokens = 380;
    row->output_hash = (int64_t)sample->seed;
    row->queue_us = row->ttft_us = row->prefill_us = 1000;
    row->decode_us = row->total_us = 100000;
    row->compaction_us = 500;
    row->compactions = 9;
    row->evicted_entries = 3000;
    row->budget_achieved = 95.5;
    row->weights_bytes = 6600000;
    row->kv_live_mean_bytes = row->kv_live_peak_bytes = row->kv_reserved_bytes = 200000;
    row->workspace_bytes = 100000;
    row->batch_mean = 30.5;
    row->batch_max = 32;
    row->min_margin = 0.01;
    row->grade = str_of("correct");
    row->extracted = sample->answer;
    row->grader = str_of("boxed-text/1");
}

static void lease_answer(struct fake *fake, const struct msg_lease *lease)
{
    static _Thread_local struct rec_result rows[BATCH_ROWS];

    for (uint32_t at = 0; at < lease->n_samples; at += BATCH_ROWS) {
        uint32_t n = lease->n_samples - at < BATCH_ROWS ? lease->n_samples - at : BATCH_ROWS;
        struct msg_result result;
        for (uint32_t i = 0; i < n; i++) result_fill(&rows[i], &lease->samples[at + i]);
        msg_init(MSG_RESULT_TYPE, &result);
        result.fence = lease->fence;
        result.batch = ++fake->batch;
        result.results = rows;
        result.n_results = n;
        send_now(fake->dealer, MSG_RESULT_TYPE, &result);
        if (fake->n_waiting == sizeof fake->waiting / sizeof *fake->waiting) {
            fprintf(stderr, "bench_store: more leases than credit\n");
            exit(1);
        }
        fake->waiting[fake->n_waiting].fence = lease->fence;
        fake->waiting[fake->n_waiting].batch = result.batch;
        fake->waiting[fake->n_waiting++].rows = n;
        fake->in_hand += n;
    }
}

static void ack_take(struct fake *fake, const struct msg_ack *ack)
{
    for (uint32_t i = 0; i < fake->n_waiting; i++) {
        if (fake->waiting[i].fence != ack->fence || fake->waiting[i].batch != ack->batch) continue;
        fake->in_hand -= fake->waiting[i].rows;
        atomic_fetch_add(&acknowledged, fake->waiting[i].rows);
        fake->waiting[i] = fake->waiting[--fake->n_waiting];
        return;
    }
}

static void ready_send(struct fake *fake)
{
    struct rec_fence fences[1024];
    struct msg_ready ready;

    msg_init(MSG_READY_TYPE, &ready);
    ready.credit = fake->in_hand < CREDIT ? CREDIT - fake->in_hand : 0;
    for (uint32_t i = 0; i < fake->n_waiting; i++) fences[i].fence = fake->waiting[i].fence;
    ready.leases = fences;
    ready.n_leases = fake->n_waiting;
    send_now(fake->dealer, MSG_READY_TYPE, &ready);
}

static void *worker_main(void *arg)
{
    struct fake fake = {0};
    struct kvf_err err = {""};
    int64_t told_ms = 0;
    bool welcomed = false;

    if (wire_dealer_open(settings.coordinator, settings.keys, "worker", &fake.dealer, &err) != KVF_OK) die(&err);
    hello_send(fake.dealer, (int)(intptr_t)arg);
    while (!atomic_load(&over)) {
        struct wire_message message;
        uint32_t before = fake.in_hand;
        int code;
        wire_dealer_wait(fake.dealer, -1, 50);
        while ((code = wire_dealer_recv(fake.dealer, &message, &err)) == KVF_OK) {
            if (message.in.type == MSG_WELCOME_TYPE) welcomed = true;
            if (message.in.type == MSG_LEASE_TYPE) lease_answer(&fake, message.in.body);
            if (message.in.type == MSG_ACK_TYPE) ack_take(&fake, message.in.body);
            if (message.in.type == MSG_GOAWAY_TYPE || message.in.type == MSG_REVOKE_TYPE) {
                fprintf(stderr, "bench_store: the coordinator sent %s\n", msg_name(message.in.type));
                exit(1);
            }
            wire_message_free(&message);
        }
        if (code != KVF_EAGAIN) die(&err);
        if (welcomed && (fake.in_hand < before || clock_ms() - told_ms >= HEARTBEAT_MS)) {
            ready_send(&fake);
            told_ms = clock_ms();
        }
    }
    wire_dealer_close(&fake.dealer, 100);
    return NULL;
}

/* ---- the client ---- */

static struct msg_job request(struct wire_dealer *dealer, int type, const void *msg)
{
    int64_t deadline = clock_ms() + REQUEST_MS;
    struct kvf_err err = {"no answer"};
    struct msg_job job;

    send_now(dealer, type, msg);
    while (clock_ms() < deadline) {
        struct wire_message message;
        int got;
        wire_dealer_wait(dealer, -1, 100);
        if (wire_dealer_recv(dealer, &message, &err) != KVF_OK) continue;
        got = message.in.type;
        if (got == MSG_REFUSED_TYPE) {
            const struct msg_refused *no = message.in.body;
            kvf_fail(&err, KVF_EINVAL, "%.*s", (int)no->reason.len, no->reason.text);
            die(&err);
        }
        if (got == MSG_JOB_TYPE) memcpy(&job, message.in.body, sizeof job);
        wire_message_free(&message);
        if (got == MSG_JOB_TYPE) return job;
    }
    die(&err);
    exit(1);
}

static uint64_t job_submit(struct wire_dealer *dealer, uint64_t n_problems, uint64_t repeats)
{
    static struct rec_problem problems[PROBLEMS];
    static char texts[PROBLEMS][40], hashes[PROBLEMS][65];
    struct rec_cell cell = {.cell_id = 1,
                            .policy = str_of("full"),
                            .interval_tokens = 32,
                            .temperature = 0,
                            .top_p = 1,
                            .max_new_tokens = 500,
                            .template_name = str_of("auto")};
    struct msg_submit submit;
    struct msg_problems chunk;
    struct msg_start start;
    uint64_t job_id;

    msg_init(MSG_SUBMIT_TYPE, &submit);
    submit.request = 1;
    submit.content_hash = submit.model_hash = submit.dataset_hash = str_of(model_hash);
    submit.title = submit.model_name = submit.dataset_name = str_of("bench");
    submit.repeats = repeats;
    submit.n_problems = n_problems;
    submit.cells = &cell;
    submit.n_cells = 1;
    submit.spec = str_of("{}");
    submit.max_attempts = 3;
    job_id = request(dealer, MSG_SUBMIT_TYPE, &submit).job_id;
    for (uint64_t i = 0; i < n_problems; i++) {
        unsigned char digest[crypto_hash_sha256_BYTES];
        int len = snprintf(texts[i], sizeof texts[i], "What is %" PRIu64 "?", i);
        texts[i][len + 1] = '7'; /* the hash is over problem, zero byte, answer */
        crypto_hash_sha256(digest, (const unsigned char *)texts[i], (unsigned long long)len + 2);
        sodium_bin2hex(hashes[i], sizeof hashes[i], digest, sizeof digest);
        problems[i] = (struct rec_problem){str_of(texts[i]), str_of(hashes[i]), 0, str_of(texts[i]), str_of("7")};
    }
    msg_init(MSG_PROBLEMS_TYPE, &chunk);
    chunk.request = 2;
    chunk.job_id = job_id;
    chunk.problems = problems;
    chunk.n_problems = (uint32_t)n_problems;
    (void)request(dealer, MSG_PROBLEMS_TYPE, &chunk);
    msg_init(MSG_START_TYPE, &start);
    start.request = 3;
    start.job_id = job_id;
    (void)request(dealer, MSG_START_TYPE, &start);
    return job_id;
}

static long long rows_in_database(uint64_t job_id)
{
    PGconn *conn = PQconnectdb(settings.db);
    char sql[128];
    PGresult *result;
    long long rows = -1;

    snprintf(sql, sizeof sql, "SELECT done FROM v_job WHERE job_id = %" PRIu64, job_id);
    result = PQexec(conn, sql);
    if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1) rows = atoll(PQgetvalue(result, 0, 0));
    if (rows < 0) fprintf(stderr, "bench_store: %s", PQerrorMessage(conn));
    PQclear(result);
    PQfinish(conn);
    return rows;
}

/* Processor time of process number `at` in --cpu, 0 being this one, in seconds; negative: there is no such process. */
static double cpu_seconds(int at)
{
    char path[64] = "/proc/self/stat", line[1024];
    const char *pid = settings.cpu, *fields;
    unsigned long long user = 0, kernel = 0;
    FILE *file;

    for (int i = 1; i < at && pid != NULL; i++)
        if ((pid = strchr(pid, ',')) != NULL) pid++;
    if (at > 0 && pid == NULL) return -1;
    if (at > 0) snprintf(path, sizeof path, "/proc/%ld/stat", strtol(pid, NULL, 10));
    file = fopen(path, "r");
    if (file == NULL) return -1;
    line[fread(line, 1, sizeof line - 1, file)] = '\0';
    fclose(file);
    fields = strrchr(line, ')'); /* the name may hold anything */
    if (fields == NULL ||
        sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &kernel) != 2)
        return -1;
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

#define AT(field) offsetof(struct settings, field)
static const struct conf_item items[] = {
    {"coordinator", 0, CONF_TEXT, AT(coordinator), "tcp://127.0.0.1:7710", 0, 0, "URL", "of the coordinator"},
    {"keys", 0, CONF_TEXT, AT(keys), "keys", 0, 0, "DIR", "key folder with worker.secret and client.secret"},
    {"db", 0, CONF_TEXT, AT(db), NULL, 0, 0, "CONNINFO", "count the rows afterwards"},
    {"cpu", 0, CONF_TEXT, AT(cpu), NULL, 0, 0, "PIDS", "print their processor time a row, comma-separated"},
    {"workers", 0, CONF_INT, AT(workers), "4", 1, 1000, "N", "threads that answer at once"},
    {"samples", 0, CONF_INT, AT(samples), "200000", 1000, 100000000, "N", "of the job, in thousands"},
    {"text", 0, CONF_INT, AT(text), "400", 0, 100000, "BYTES", "of each answer"},
    {NULL, 0, CONF_TEXT, 0, NULL, 0, 0, NULL, NULL},
};

int main(int argc, char **argv)
{
    struct conf *conf = NULL;
    char **rest = NULL;
    struct kvf_err err = {""};
    struct wire_dealer *client;
    pthread_t threads[1000];
    int64_t start_us, seconds_us;
    double cpu_before[CPU_PIDS_MAX], cpu_s[CPU_PIDS_MAX];
    long long total, stored;
    uint64_t job_id;

    if (conf_read(items, &settings, argc, argv, &conf, &rest, &err) != KVF_OK) die(&err);
    total = settings.samples / PROBLEMS * PROBLEMS;
    answer_text = malloc((size_t)settings.text + 1);
    memset(answer_text, 'x', (size_t)settings.text + 1);
    if (wire_dealer_open(settings.coordinator, settings.keys, "client", &client, &err) != KVF_OK) die(&err);
    job_id = job_submit(client, PROBLEMS, (uint64_t)(total / PROBLEMS));
    for (int i = 0; i < CPU_PIDS_MAX; i++) cpu_before[i] = cpu_seconds(i);
    start_us = clock_us();
    for (int i = 0; i < settings.workers; i++) pthread_create(&threads[i], NULL, worker_main, (void *)(intptr_t)i);
    while (atomic_load(&acknowledged) < total) {
        usleep(2000);
        if (clock_us() - start_us > (int64_t)600000000) break;
    }
    seconds_us = clock_us() - start_us;
    for (int i = 0; i < CPU_PIDS_MAX; i++) cpu_s[i] = cpu_seconds(i) - cpu_before[i];
    atomic_store(&over, true);
    for (int i = 0; i < settings.workers; i++) pthread_join(threads[i], NULL);
    wire_dealer_close(&client, 0);
    stored = settings.db == NULL ? atomic_load(&acknowledged) : rows_in_database(job_id);
    printf("store: %lld of %lld results through ZeroMQ into PostgreSQL in %.2f s: %.0f results/s (%" PRId64
           " workers, %" PRId64 " bytes of text each, with grades)\n",
           stored, total, (double)seconds_us / 1e6, (double)stored / ((double)seconds_us / 1e6), settings.workers,
           settings.text);
    printf("processor time a row: bench_store %.1f us", cpu_s[0] * 1e6 / (double)total);
    for (int i = 1; i < CPU_PIDS_MAX && cpu_before[i] >= 0; i++)
        printf(", process %d of --cpu %.1f us", i, cpu_s[i] * 1e6 / (double)total);
    printf("\n");
    conf_free(&conf);
    free(answer_text);
    return stored == total ? 0 : 1;
}
