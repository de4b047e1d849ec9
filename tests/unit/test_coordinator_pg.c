/* pg.h, and the reader on top of it, against a server in a thread of this process, which answers a statement with the
 * bytes that the test gives it. */
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "coordinator/pg.h"
#include "coordinator/reader.h"
#include "proto/clock.h"

static struct {
    char folder[64], conninfo[128];
    struct sockaddr_un address;
    int listening;
    pthread_t thread;
    bool silent;        /* it lets nobody in */
    const char *answer; /* to the first statement; then the connection is closed */
    size_t answer_len;
    int asked_fd; /* eventfd, written when there was something to answer: the client waits then */
    bool stays;   /* until the client has gone */
} fake;
static struct pg pg;
static struct kvf_err err;

/* Stands before libpq's. */
static bool consume_fails;
int PQconsumeInput(PGconn *conn)
{
    int (*consume)(PGconn *);

    *(void **)&consume = dlsym(RTLD_NEXT, "PQconsumeInput");
    return consume_fails ? 0 : consume(conn);
}

/* ---- the server ---- */

/* Takes messages until one of this type, 0: the one without a type, with which the client begins. */
static bool take(int fd, char type)
{
    for (;;) {
        unsigned char head[5], body[4096];
        size_t head_len = type == 0 ? 4 : 5, len;
        if (recv(fd, head, head_len, MSG_WAITALL) != (ssize_t)head_len) return false;
        len = (size_t)head[head_len - 2] << 8 | head[head_len - 1];
        if (len < 4 || len - 4 > sizeof body) return false;
        if (len > 4 && recv(fd, body, len - 4, MSG_WAITALL) != (ssize_t)(len - 4)) return false;
        if (type == 0 || head[0] == (unsigned char)type) return true;
    }
}

#define LET_IN "R\0\0\0\10\0\0\0\0Z\0\0\0\5I"

static void *serve(void *unused)
{
    int fd = accept(fake.listening, NULL, NULL);

    if (take(fd, 0) && (fake.silent || (send(fd, LET_IN, sizeof LET_IN - 1, MSG_NOSIGNAL) > 0 && take(fd, 'S')))) {
        send(fd, fake.answer, fake.answer_len, MSG_NOSIGNAL);
        eventfd_write(fake.asked_fd, 1);
        while (fake.stays && take(fd, 'X')) continue;
    }
    close(fd);
    return unused;
}

static void serve_start(const char *answer, size_t answer_len)
{
    fake.answer = answer;
    fake.answer_len = answer_len;
    ck_assert_int_eq(pthread_create(&fake.thread, NULL, serve, NULL), 0);
}

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    strcpy(fake.folder, "/tmp/kvfleet-pg.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake.folder));
    fake.address.sun_family = AF_UNIX;
    snprintf(fake.address.sun_path, sizeof fake.address.sun_path, "%s/.s.PGSQL.5432", fake.folder);
    snprintf(fake.conninfo, sizeof fake.conninfo, "host=%s port=5432 user=u dbname=d", fake.folder);
    fake.asked_fd = eventfd(0, 0);
    fake.listening = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fake.listening, (struct sockaddr *)&fake.address, sizeof fake.address), 0);
    ck_assert_int_eq(listen(fake.listening, 8), 0);
}

static void teardown(void)
{
    pg_close(&pg);
    close(fake.listening);
    close(fake.asked_fd);
    unlink(fake.address.sun_path);
    rmdir(fake.folder);
}

static void connect_pg(int stop_fd)
{
    int code;

    ck_assert_msg(pg_connect_start(&pg, fake.conninfo, "test", stop_fd, &err) == KVF_OK, "%s", err.text);
    while ((code = pg_connect_poll(&pg, 1000, &err)) == KVF_EAGAIN) continue;
    ck_assert_msg(code == KVF_OK, "%s", err.text);
}

/* ---- tests ---- */

/* ParseComplete, BindComplete, RowDescription of one text column "a", its row "x", CommandComplete, ReadyForQuery */
static const char answer[] = "1\0\0\0\4"
                             "2\0\0\0\4"
                             "T\0\0\0\32\0\1"
                             "a\0"
                             "\0\0\0\0\0\0\0\0\0\31\377\377\377\377\377\377\0\0"
                             "D\0\0\0\13\0\1\0\0\0\1x"
                             "C\0\0\0\15SELECT 1\0"
                             "Z\0\0\0\5I";
#define ANSWER_LEN (sizeof answer - 1)

/* Wherever the server goes away within its answer, the outcome is not known. */
START_TEST(an_answer_that_breaks_off)
{
    for (size_t len = 0; len <= ANSWER_LEN; len++) {
        PGresult *result = NULL;
        int code;
        serve_start(answer, len);
        connect_pg(-1);
        code = pg_run(&pg, "SELECT 'x' AS a", NULL, 60000, &result, &err);
        pthread_join(fake.thread, NULL);
        if (len < ANSWER_LEN) {
            ck_assert_msg(code == KVF_EUNAVAIL, "after %zu bytes: code %d: %s", len, code, err.text);
            ck_assert_ptr_null(pg.conn);
            ck_assert_ptr_null(result);
            continue;
        }
        ck_assert_msg(code == KVF_OK, "%s", err.text);
        ck_assert_str_eq(PQgetvalue(result, 0, 0), "x");
        PQclear(result);
    }
}
END_TEST

/* What a server says before it goes is the reason. */
START_TEST(last_words)
{
    static const char fatal[] = "E\0\0\0\43"
                                "SFATAL\0"
                                "C57P01\0"
                                "Mgoing away now\0"
                                "\0";

    serve_start(fatal, sizeof fatal - 1);
    connect_pg(-1);
    ck_assert_int_eq(pg_run(&pg, "SELECT 1", NULL, 60000, NULL, &err), KVF_EUNAVAIL);
    pthread_join(fake.thread, NULL);
    ck_assert_msg(strstr(err.text, "going away now") != NULL, "%s", err.text);
    ck_assert_ptr_null(pg.conn);
}
END_TEST

/* Of a connection that libpq cannot read any more (no memory for its buffer) nothing is waited for. */
START_TEST(input_that_cannot_be_read)
{
    fake.stays = true;
    serve_start("", 0);
    connect_pg(-1);
    consume_fails = true;
    ck_assert_int_eq(pg_run(&pg, "SELECT 1", NULL, 60000, NULL, &err), KVF_EUNAVAIL);
    pthread_join(fake.thread, NULL);
    ck_assert_msg(strstr(err.text, "connection lost") != NULL, "%s", err.text);
    ck_assert_ptr_null(pg.conn);
}
END_TEST

/* The stop comes when the server has the statement, so that it meets a wait. */
START_TEST(a_stop_ends_the_wait_for_an_answer)
{
    fake.stays = true;
    serve_start("", 0);
    connect_pg(fake.asked_fd);
    ck_assert_int_eq(pg_run(&pg, "SELECT 1", NULL, 60000, NULL, &err), KVF_EUNAVAIL);
    pthread_join(fake.thread, NULL);
    ck_assert_msg(strstr(err.text, "the program stops") != NULL, "%s", err.text);
    ck_assert_ptr_null(pg.conn);
}
END_TEST

START_TEST(a_stop_ends_the_wait_for_a_connection)
{
    int code;

    fake.silent = fake.stays = true;
    serve_start("", 0);
    ck_assert_msg(pg_connect_start(&pg, fake.conninfo, "test", fake.asked_fd, &err) == KVF_OK, "%s", err.text);
    while ((code = pg_connect_poll(&pg, 1000, &err)) == KVF_EAGAIN) continue;
    ck_assert_int_eq(code, KVF_EUNAVAIL);
    pthread_join(fake.thread, NULL);
    ck_assert_msg(strstr(err.text, "the program stops") != NULL, "%s", err.text);
}
END_TEST

/* An answer gives up after 20 s by itself. */
START_TEST(a_reader_stops_in_the_middle_of_a_question)
{
    struct wire_peer peer = {.id_len = 1};
    struct msg_query query;
    struct reader *reader;
    eventfd_t asked;
    int64_t before_ms;

    fake.stays = true;
    serve_start("", 0);
    ck_assert_msg(reader_start(fake.conninfo, &reader, &err) == KVF_OK, "%s", err.text);
    msg_init(MSG_QUERY_TYPE, &query);
    query.view = str_of("jobs");
    query.limit = 1;
    ck_assert_msg(reader_ask(reader, &peer, &query, &err) == KVF_OK, "%s", err.text);
    ck_assert_int_eq(eventfd_read(fake.asked_fd, &asked), 0);
    before_ms = clock_ms();
    reader_stop(&reader);
    ck_assert_int_lt(clock_ms() - before_ms, 15000);
    pthread_join(fake.thread, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator pg");
    TCase *all = tcase_create("all");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, an_answer_that_breaks_off);
    tcase_add_test(all, last_words);
    tcase_add_test(all, input_that_cannot_be_read);
    tcase_add_test(all, a_stop_ends_the_wait_for_an_answer);
    tcase_add_test(all, a_stop_ends_the_wait_for_a_connection);
    tcase_add_test(all, a_reader_stops_in_the_middle_of_a_question);
    suite_add_tcase(suite, all);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
